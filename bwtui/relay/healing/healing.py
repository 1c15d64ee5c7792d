"""``--heal``: recreate a lost slot, keep streaming, and repair what topics lack.

The order of steps survives a kill at any point: the pending heal is stored first, and cleared last, once a
comparison of all tables with their topics was clean. In between, the relay recreates the slot without a
snapshot and streams from its LSN, while a comparison in a separate process (`comparing`) makes the relay send
the keys in which topics and tables differ.
"""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import psycopg2

from bwtui.blocking import BlockingCalls, check_stop
from bwtui.errors import BwtuiError, ConnectionFailed, Indeterminate, RefusedError, SlotLost
from bwtui.model.events import event
from bwtui.model.heal import HealStatus
from bwtui.model.lsn import format_lsn
from bwtui.relay.context import RelayContext
from bwtui.relay.healing.comparison import HealComparison
from bwtui.relay.healing.heal_state import HealStateStore, heal_path
from bwtui.relay.healing.slot_recreation import lost, lost_here, make
from bwtui.relay.run_state import RunState
from bwtui.relay.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.snapshot.interruptible import interruptible
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection, connect, statement_failed
from bwtui.source.preflight import obstacle_to_make, wait_while
from bwtui.source.slot import server_and_database

_log = logging.getLogger(__name__)
T = TypeVar("T")
_AGAIN_SECONDS = 1.0
_HINT = "no action needed: the relay finds and sends the differences; 'bwtui status' shows the progress"


class Healing:
    """The heal of one relay's slot; the main thread calls all methods except `status` and `healed`."""

    def __init__(
        self, settings: RelaySettings, report: RunState, folder: Path, stop_requested: Callable[[], bool]
    ) -> None:
        self._settings = settings
        self._report = report
        self._folder = folder
        self._stop_requested = stop_requested
        self._due: HealStateStore | None = None
        #: The session that holds the reservation of the slot until a session reads the slot.
        self._session: Connection | None = None
        #: Where this run created the slot, until the recording has taken note of it.
        self._created_at: int | None = None
        self._comparing: HealComparison | None = None
        #: Why the heal failed, for a relay that ends once it has caught up.
        self.ended: Indeterminate | None = None

    # -- for any thread --------------------------------------------------------------------------------------

    def status(self) -> HealStatus | None:
        """Return the pending heal."""
        return self._due.status if self._due is not None else None

    def files(self) -> dict[str, tuple[str, ...]]:
        """Return the file of a pending heal; it is about all tables."""
        return {heal_path(self._folder, self._settings.slot).name: ()} if self.is_due else {}

    def healed(self, lsn: str) -> bool:
        """Clear the heal of the slot created at ``lsn``, after a clean comparison. Raises StateFailed."""
        if self._due is None or not self._due.done(lsn):
            return False
        _log.warning("the heal of slot %s is complete", self._settings.slot, extra=event("heal_done"))
        return True

    # -- the main thread -------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether topics may differ from tables since a slot was lost."""
        return self.status() is not None

    def prepare(self, connection: Connection) -> None:
        """Recreate the slot if it is lost, or if an earlier run was recreating it.

        Call this before the startup checks. Raises RefusedError, ConnectionFailed or StateFailed.
        """
        settings = self._settings
        identity = (*server_and_database(connection), settings.slot)
        self._due = HealStateStore(self._folder, identity)
        due = self._due.status
        if due is None and not settings.heal:
            return
        if settings.record_only:
            raise RefusedError(
                f"slot {settings.slot} was lost, and the comparison of topics with tables is not complete",
                "let 'bwtui connect' complete the heal, or record with a separate slot",
            )
        checkpoint = SlotCheckpointStore(self._folder, *identity)
        how = lost(connection, settings, checkpoint)
        if how is None and due is not None and self._is_under_way:
            if checkpoint.is_unread and checkpoint.last is not None:
                # An earlier run created the slot, and ended before the heal or the recording took note of it.
                self._created_at = checkpoint.last.confirmed_lsn
            else:
                how = SlotLost(due.reason, _HINT)
        if how is not None:
            self._make(checkpoint, how, BlockingCalls(lambda _: check_stop(self._stop_requested)))

    def again(self, context: RelayContext, error: SlotLost) -> tuple[str, ...]:
        """Recreate a slot that was lost while the relay ran, and return the publications to read.

        Return () if a different server answers now, on which the slot is not lost. Raises ``error`` without
        --heal and without a pending heal, and RefusedError or StateFailed.
        """
        if self._settings.record_only or not (self._settings.heal or self.is_due):
            raise error
        self.close()
        while True:
            try:
                publications = self._make(context.checkpoint, error, context.patience.calls)
                break
            except ConnectionFailed as failure:
                self._report.error("outage", failure, dependency="PostgreSQL")
                self._report.detail = f"waiting for PostgreSQL: {failure.message}"
                context.wait(_AGAIN_SECONDS)
        if not publications:
            note = (
                f"{error.message}; the slot is not lost on the server that answers now, so the relay "
                "continues there"
            )
            self._report.error("notice", RefusedError(note, "point the address at one server"))
            context.wait(_AGAIN_SECONDS)
            return ()
        # Dropped rows are identified by LSNs, which may belong to other rows in this history.
        context.policy.forget()
        self._report.transaction_log.go_back(0)
        self.begun(context)
        return publications

    def compare(self, reason: str, lsn: int) -> None:
        """Compare topics with tables from the next session on, for ``reason``, although the slot exists.

        Raises StateFailed.
        """
        assert self._due is not None
        self.close()
        self._due.compare(reason, format_lsn(lsn))

    def begun(self, context: RelayContext) -> None:
        """Record in the recording what it misses. Raises RefusedError if it holds more than this history.

        The heal stores the slot as created only after that, so that a start after the refusal is refused
        again.
        """
        created_at, self._created_at = self._created_at, None
        if created_at is None:
            return
        assert self._due is not None
        # In an older copy's history, the LSNs received so far lie ahead. Careful mode up to there would not
        # end.
        self._report.confirmed_lsn = self._report.received_lsn = created_at
        if context.recorder is not None:
            context.recorder.go_back(created_at, is_gap=True)
        self._due.made(format_lsn(created_at))

    @property
    def is_at_work(self) -> bool:
        """True if topics are being compared: the heal is neither done nor given up."""
        return self._comparing is not None and self._comparing.is_at_work

    def streaming(self) -> None:
        """Release the reservation now that a session reads the slot, and start a pending comparison."""
        self._release()
        due = self._due
        if due is None or due.status is None or self._comparing is not None:
            return

        def ended(untrusted: Indeterminate | None) -> None:
            if self._settings.is_bounded:
                self.ended = untrusted

        self._comparing = HealComparison(self._settings.relay_name, due, ended)
        self._comparing.start()

    def interrupt(self) -> None:
        """Interrupt the comparison without waiting for it to end."""
        if self._comparing is not None:
            self._comparing.interrupt()

    def close(self) -> None:
        """Stop the comparison; the heal stays pending."""
        comparing, self._comparing = self._comparing, None
        if comparing is not None:
            comparing.stop()
        self._release()

    def _release(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    @property
    def _is_under_way(self) -> bool:
        """True if a heal began and its slot may not have been created yet."""
        due = self.status()
        return due is not None and not due.lsn

    def _make(self, checkpoint: SlotCheckpointStore, how: SlotLost, calls: BlockingCalls) -> tuple[str, ...]:
        """Recreate the slot, and return the publications to read; none if it is not lost after all.

        If the stream itself reported the loss, or a heal began, that is certain whatever the slot looks like
        now.
        """
        assert self._due is not None
        is_certain = how.in_stream or self._is_under_way
        self._report.detail = f"recreating slot {self._settings.slot}: {how.message}"
        loss = calls.make(partial(self._in_session, partial(self._reserve, checkpoint, how)))
        if loss is None and not is_certain:
            self._release()
            return ()
        self._due.begin(how.message)
        _log.warning("%s", self._report.detail, extra=event("heal_begun"))
        with self._report.account.during("slot"):
            lsn, publications = calls.make(partial(self._in_session, self._make_slot))
        checkpoint.renew(lsn, publications)
        self._created_at = lsn
        note = f"{how.message}; the relay recreated it at {format_lsn(lsn)} and compares topics with tables"
        self._report.error("notice", RefusedError(note, _HINT))
        return publications

    def _reserve(self, checkpoint: SlotCheckpointStore, how: SlotLost) -> SlotLost | None:
        """Begin the session that alone may create the slot; return how the slot is lost on its server."""
        self._release()
        session = self._session = connect(self._settings.postgres)
        with interruptible(session, self._stop_requested):
            wait_while(lambda: obstacle_to_make(session, self._settings.slot), self._waiting)
            return lost_here(session, self._settings, checkpoint, how)

    def _make_slot(self) -> tuple[int, tuple[str, ...]]:
        """Create the slot, which waits for every open transaction."""
        session = self._session
        assert session is not None
        with interruptible(session, self._stop_requested):
            return make(session, self._settings, self._waiting)

    def _in_session(self, call: Callable[[], T]) -> T:
        """Make a call in a helper thread, and close the session if it fails."""
        try:
            return call()
        except psycopg2.Error as error:
            self._release()
            raise statement_failed(error) from error
        except BwtuiError:
            self._release()
            raise

    def _waiting(self, detail: str) -> None:
        self._report.detail = detail
        check_stop(self._stop_requested)
