"""``--heal``: recreate a lost slot, keep streaming, and repair what topics lack.

The order of steps survives a kill at any point: the pending heal is stored first, and cleared last, once a
comparison of all tables with their topics was clean. In between, the relay recreates the slot without a
snapshot and streams from its LSN, while a comparison in a separate process (`HealComparison`) makes the relay
send the keys in which topics and tables differ. The memory of Spark and DuckDB then does not count against
the relay, and the relay uses the same command as a person would.

A pending heal is a small file in the relay's state folder. While the file exists, topics may lack what was
written between the lost slot and the new one, and every start continues the heal. ``lsn`` is written once the
new slot is created, its checkpoint is stored (`bwtui.relay.history.slot_checkpoint`), and the recording, if
any, has taken it. Without ``lsn`` a start creates the slot again, unless the checkpoint has the new slot
already.
"""

import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg2

from bwtui.blocking import BlockingCalls, check_stop
from bwtui.durable_files import private_parent, sync, write_durably
from bwtui.errors import BwtuiError, ConnectionFailed, Indeterminate, RefusedError, SlotLost, StateFailed
from bwtui.file_errors import file_failed, remove
from bwtui.model.backfill_texts import snapshot_command
from bwtui.model.events import event
from bwtui.model.heal import HealStatus
from bwtui.model.lsn import format_lsn
from bwtui.model.sql import quote_identifier
from bwtui.relay.history.promotion import refuse_former
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore, forgetting
from bwtui.relay.process.control import name_if_several
from bwtui.relay.snapshot.snapshot_copier import interruptible
from bwtui.relay.state.run_state import RunState
from bwtui.relay.stream.context import RelayContext
from bwtui.settings import RelaySettings
from bwtui.signals.parent_death import signalled_with_us
from bwtui.source import publication, slot
from bwtui.source.connection import Connection, connect, execute, query, statement_failed
from bwtui.source.preflight import (
    chosen_tables,
    obstacle_to_make,
    publication_again,
    wait_for_release,
    wait_while,
)
from bwtui.source.raw_session import ServerError, connect_raw, execute_raw
from bwtui.source.raw_stream import ServerIdentity, identify
from bwtui.source.slot import HEAL, SlotState, server_and_database

Identity = tuple[str, str, str]


def heal_path(folder: Path, slot: str) -> Path:
    """Return the path of the file that stores a heal of ``slot``."""
    return folder / f"heal-{slot}.json"


class HealStateStore:
    """The stored state of one slot's heal; any thread may read and write it."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        """``identity`` is the system identifier, the database and the slot; a heal of another is ignored.

        Raises StateFailed for a file that can't be read: a pending heal must not be forgotten.
        """
        self._path = heal_path(folder, identity[2])
        self._identity = identity
        self._lock = threading.Lock()
        self._now = self._load()

    @property
    def status(self) -> HealStatus | None:
        """The pending heal, if any."""
        return self._now

    def begin(self, reason: str) -> None:
        """Record durably that the slot has to be recreated. Raises StateFailed."""
        with self._lock:
            before = self._now
            since = before.since if before is not None else time.time()
            self._write(HealStatus(since, before.reason if before is not None else reason))

    def record_slot(self, lsn: str) -> None:
        """Record durably that the slot was recreated at ``lsn``, after the checkpoint and the recording.

        Raises StateFailed.
        """
        with self._lock:
            assert self._now is not None
            self._write(replace(self._now, lsn=lsn, state="comparing"))

    def begin_comparison(self, reason: str, lsn: str) -> None:
        """Record durably that a comparison is needed: the slot at ``lsn`` lacks changes that topics hold.

        This is a single write: after `begin` alone, a start would drop the slot. Raises StateFailed.
        """
        with self._lock:
            before = self._now if self._now is not None else HealStatus(time.time(), reason)
            self._write(HealStatus(before.since, before.reason, "comparing", lsn))

    def update(self, changed: HealStatus) -> None:
        """Update the progress in memory, without writing it."""
        with self._lock:
            if self._now is not None and self._now.lsn == changed.lsn:
                self._now = changed

    def finish(self, lsn: str) -> bool:
        """Clear the heal of the slot created at ``lsn``, after a clean comparison.

        Return whether that heal was pending: it may have been done before, or the slot may be lost again.
        """
        with self._lock:
            if not lsn or self._now is None or self._now.lsn != lsn:
                return False
            try:
                self._path.unlink(missing_ok=True)
                sync(self._path.parent)
            except OSError as error:
                raise file_failed(f"{self._path} can't be removed", error) from error
            self._now = None
            return True

    def _write(self, now: HealStatus) -> None:
        try:
            private_parent(self._path)
            write_durably(self._path, json.dumps({"of": self._identity, "heal": asdict(now)}))
        except OSError as error:
            # Nothing is dropped before this state is stored.
            raise file_failed(f"the pending heal can't be recorded in {self._path}", error) from error
        self._now = now

    def _load(self) -> HealStatus | None:
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            identity, heal = tuple(data["of"]), HealStatus.from_json(data["heal"])
        except FileNotFoundError:
            return None
        except OSError as error:
            raise file_failed(f"{self._path} can't be read", error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateFailed(
                f"{self._path} can't be read: it records a pending heal",
                "remove it, and run 'bwtui repair' while the relay runs",
            ) from error
        return (
            replace(heal, state="comparing" if heal.lsn else "slot") if identity == self._identity else None
        )


def forget(folder: Path, slot: str) -> None:
    """Clear a heal, because its slot is dropped for a new snapshot. Raises StateFailed."""
    remove(heal_path(folder, slot))


OnWait = Callable[[str], None]
#: Two sessions that get the same answer are with the same server, whichever servers share the address.
_SERVER_SQL = "select pg_catalog.pg_postmaster_start_time()::text"


def lost(connection: Connection, settings: RelaySettings, checkpoint: SlotCheckpointStore) -> SlotLost | None:
    """Return how the slot is lost, if it is: missing, moved, without its WAL, or without its publication."""
    state = slot.slot_state(connection, settings.slot)
    try:
        checkpoint.check(state)
        if state is not None and state.plugin == slot.PLUGIN:
            slot.check_readable(state, connection.server_version, settings.drop_command)
    except SlotLost as error:
        return error
    except RefusedError:
        # The slot exists but can't be read. The checks at startup report what helps.
        return None
    if (
        state is not None
        and settings.owns_publication
        and not publication.existing(connection, settings.publication_name)
    ):
        return SlotLost(
            f"slot {settings.slot} exists, but its publication {settings.publication_name} is missing",
            "changes written since then were not published",
        )
    return None


def lost_here(
    connection: Connection, settings: RelaySettings, checkpoint: SlotCheckpointStore, how: SlotLost
) -> SlotLost | None:
    """Return how the slot is lost on the server of ``connection``, where it would be dropped.

    ``how`` is how it was lost on the server that answered before; one address may reach several servers.
    Raises ConnectionFailed for a server of a different cluster, for a standby unless the slot was on a
    standby, and for a former primary if several hosts are configured.
    """
    server = _server(connection, settings)
    try:
        checkpoint.check_cluster(server)
    except RefusedError as error:
        raise ConnectionFailed(
            error.message, "the relay does not create the slot there; point the address at the slot's server"
        ) from error
    if server.in_recovery and not checkpoint.on_standby:
        raise ConnectionFailed(
            "a standby answered, but the slot was not on a standby",
            "the relay recreates the slot once the primary answers; point the address at the primary",
        )
    refuse_former(settings, checkpoint, server.timeline)
    try:
        checkpoint.common_end(server, accept=settings.accept_divergence)
    except SlotLost as error:
        return error
    if slot.slot_state(connection, settings.slot) is None:
        return how
    return lost(connection, settings, checkpoint)


def _server(connection: Connection, settings: RelaySettings) -> ServerIdentity:
    """Return the server of ``connection``; only a replication session can read its timeline history."""
    session = connect_raw(settings.postgres)
    try:
        server, began = identify(session), execute_raw(session, _SERVER_SQL)
    except ServerError as error:
        raise ConnectionFailed(error.message, "check PostgreSQL's log") from error
    finally:
        session.finish()
    if began != query(connection, _SERVER_SQL):
        raise ConnectionFailed(
            "different servers answered at the same address",
            "the relay recreates the slot once the same server answers twice; point the address at one "
            "server",
        )
    return server


def make(connection: Connection, settings: RelaySettings, on_wait: OnWait) -> tuple[int, tuple[str, ...]]:
    """Drop the slot if it exists, and create it; return its LSN and the publications to read.

    The session must have reserved the slot, see `preflight.obstacle_to_make`. The publications are created
    first, since the stream begins with what they publish at that point. Raises RefusedError.
    """
    name = settings.slot
    state = wait_for_release(lambda: slot.slot_state(connection, name), on_wait)
    _refuse_foreign(connection, state)
    publications = publication.existing(connection, settings.publication_name)
    if not publications:
        if not settings.owns_publication:
            raise RefusedError(
                f"publication {settings.publication_name} is missing, and bwtui recreates only its own "
                "publications",
                f"{publication_again(connection, settings)}; then start the relay again",
            )
        # Somebody who dropped the publication may have left its unkeyed companion.
        companion = quote_identifier(publication.unkeyed_name(settings.publication_name))
        execute(connection, f"drop publication if exists {companion}")
        tables = chosen_tables(connection, settings, None)
        publications = publication.create(connection, settings.publication_name, tables)
    if state is not None:
        execute(connection, "select pg_catalog.pg_drop_replication_slot(%s)", name)
    return slot.create_permanent(connection, name), publications


def _refuse_foreign(connection: Connection, state: SlotState | None) -> None:
    """Raise RefusedError for a slot of a different plugin or database: it was never this relay's."""
    if state is None:
        return
    if state.plugin != slot.PLUGIN or state.database != connection.info.dbname:
        raise RefusedError(
            f"slot {state.name} does not belong to this relay: plugin {state.plugin}, database "
            f"{state.database}",
            "choose a different slot with -s/--slot",
        )


_COMMAND = (sys.executable, "-P", "-m", "bwtui")
#: Pause between failed attempts, in seconds: the first and the maximum.
_PAUSE_SECONDS, _MOST_SECONDS = 2.0, 300.0
#: Timeout for an interrupted command to end in order.
_END_SECONDS = 20.0
_log = logging.getLogger(__name__)
#: The hint after an unexpected failure of an attempt.
_LOG = "see the relay's log; the comparison is retried automatically"


class HealComparison:
    """Runs the command in its own thread, until the heal is done or somebody has to decide."""

    def __init__(
        self, relay: str, drop: str, due: HealStateStore, on_end: Callable[[Indeterminate | None], None]
    ) -> None:
        """``drop`` is the command that drops the slot.

        ``on_end`` is called in that thread: with None once the heal is done, or with why it can't be.
        """
        self._relay = relay
        self._drop = drop
        self._due = due
        self._on_end = on_end
        self._stop = threading.Event()
        self._command = RepairCommand(relay)
        self._thread = threading.Thread(target=self._work, name="heal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_at_work(self) -> bool:
        """True if the heal is neither done nor given up."""
        return self._thread.is_alive()

    def interrupt(self) -> None:
        """Interrupt the command without waiting for it to end."""
        self._stop.set()
        self._command.interrupt()

    def stop(self) -> None:
        """Interrupt the command, wait for it to end, and kill it after a timeout."""
        self.interrupt()
        self._thread.join(_END_SECONDS)
        self._command.signal(signal.SIGKILL)

    def _work(self) -> None:
        pause = _PAUSE_SECONDS
        while not self._stop.is_set():
            try:
                if self._is_over():
                    return
            except Exception as error:
                # Without this handler the heal would never end, and nothing would report that.
                _log.warning("the comparison failed", exc_info=True, extra=event("comparison_failed"))
                self._command.signal(signal.SIGKILL)
                tries = self._due.status.tries + 1 if self._due.status is not None else 0
                kind = type(error).__name__
                self._report_progress(
                    state="waiting", tries=tries, detail=f"the comparison failed: {kind}", hint=_LOG
                )
            self._stop.wait(pause)
            pause = min(2 * pause, _MOST_SECONDS)

    def _is_over(self) -> bool:
        """Run the command once; return whether this thread has nothing left to do."""
        self._report_progress(state="comparing", detail="comparing tables with topics", hint="")
        code, result, lines = self._command.run(
            ["--lost-slot"], lambda detail: self._report_progress(detail=detail)
        )
        due = self._due.status
        if due is None:
            self._on_end(None)
        elif self._stop.is_set():
            return True
        elif untrusted := result.get("untrusted"):
            self._give_up(due, list(map(str, untrusted)), result)
        else:
            why, hint = _why(code, result, lines), _hint(lines)
            self._report_progress(state="waiting", tries=due.tries + 1, detail=why, hint=hint)
            return False
        return True

    def _give_up(self, due: HealStatus, tables: list[str], result: dict[str, Any]) -> None:
        notes = [
            f"{one['table']}: {note}"
            for one in result["tables"]
            if not one["trusted"]
            for note in one["notes"]
        ]
        detail = "the comparison can't be trusted: " + "; ".join(notes)
        command = snapshot_command(
            tables,
            relay=name_if_several(self._relay),
            unkeyed=any(one["unkeyed"] for one in result["tables"] if not one["trusted"]),
        )
        hint = (
            f"run '{command}' to send these tables completely, then 'bwtui repair --relay "
            f"{self._relay}' to end the heal; or run '{self._drop}' and start again for a new "
            "snapshot"
        )
        self._report_progress(state="undecided", tries=due.tries + 1, detail=detail, hint=hint)
        self._on_end(Indeterminate(f"the heal is not complete: {detail}", hint))

    def _report_progress(self, **changed: Any) -> None:
        now = self._due.status
        if now is not None:
            self._due.update(replace(now, **changed))


class RepairCommand:
    """Runs ``bwtui repair`` in a separate process and reads its JSON output; one at a time."""

    def __init__(self, relay: str) -> None:
        self._relay = relay
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def interrupt(self) -> None:
        """Interrupt the command, and prevent a new one, without waiting for it to end."""
        if not self._stop.is_set():
            self._stop.set()
            self.signal(signal.SIGINT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command, if it runs."""
        with self._lock:
            if self._child is not None and self._child.poll() is None:
                self._child.send_signal(number)

    def run(
        self, arguments: Sequence[str], on_progress: Callable[[str], None]
    ) -> tuple[int, dict[str, Any], list[str]]:
        """Run the command; return its exit code, its result, and its lines on stderr.

        The calling thread has to outlive the command, which gets a signal when that thread ends.
        """
        command = [*_COMMAND, "repair", "--relay", self._relay, "--json", "--progress-json", *arguments]
        with self._lock:
            if self._stop.is_set():
                return 130, {}, []
            child = self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=signalled_with_us(signal.SIGINT),  # noqa: PLW1509
            )
        lines: list[str] = []
        assert child.stdout is not None and child.stderr is not None
        listener = threading.Thread(target=_listen, args=[child.stderr, on_progress, lines], daemon=True)
        listener.start()
        output = child.stdout.read()
        code = child.wait()
        listener.join()
        child.stdout.close()
        child.stderr.close()
        try:
            result = json.loads(output)
        except ValueError:
            result = {}
        return code, result if isinstance(result, dict) else {}, lines


def _listen(stream: Any, on_progress: Callable[[str], None], lines: list[str]) -> None:
    """Report progress, and collect all other lines."""
    for line in stream:
        text = line.decode("utf-8", "replace").rstrip()
        try:
            event = json.loads(text)
            done, total = int(event.get("done", 0)), int(event.get("total", 0))
            counted = f": {done:,} of {total:,}" if total else ""
            on_progress(f"{event['phase']}{counted}")
        except (ValueError, KeyError, TypeError, AttributeError):
            lines.append(text)


def _why(code: int, result: dict[str, Any], lines: list[str]) -> str:
    error = next((line for line in lines if line.startswith("bwtui: error: ")), "")
    if error:
        return error.removeprefix("bwtui: error: ")
    after = result.get("after") or result.get("before") or {}
    if result:
        return f"the comparison ended {after.get('verdict')}: {after.get('classes')}; it will be repeated"
    return lines[-1] if lines else f"the comparison ended with exit code {code}"


def _hint(lines: list[str]) -> str:
    hint = next((line for line in lines if line.startswith("hint: ")), "")
    return hint.removeprefix("hint: ")


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
        #: The notice of the slot's recreation, until the heal is complete.
        self._notice = ""
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
        if self._due is None or not self._due.finish(lsn):
            return False
        self._report.end_notice(self._notice, None)
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
        checkpoint = SlotCheckpointStore(self._folder, *identity, drop=settings.drop_command)
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
            if self._settings.exactly_once and HEAL in error.hint:
                raise SlotLost(error.message, forgetting(self._settings.drop_command)) from error
            raise error
        self.close()
        while True:
            try:
                publications = self._make(context.history.checkpoint, error, context.services.patience.calls)
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
        context.output.policy.forget()
        self._report.transaction_log.go_back(0)
        self.begun(context)
        return publications

    def request_comparison(self, reason: str, lsn: int) -> None:
        """Compare topics with tables from the next session on, for ``reason``, although the slot exists.

        Raises StateFailed.
        """
        assert self._due is not None
        self.close()
        self._due.begin_comparison(reason, format_lsn(lsn))

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
        context.output.recorder.go_back(created_at, is_gap=True)
        self._due.record_slot(format_lsn(created_at))

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

        self._comparing = HealComparison(self._settings.relay_name, self._settings.drop_command, due, ended)
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
        with self._report.clock.during("slot"):
            lsn, publications = calls.make(partial(self._in_session, self._make_slot))
        checkpoint.renew(lsn, publications)
        self._created_at = lsn
        name, at = self._settings.slot, format_lsn(lsn)
        self._report.end_notice(self._notice, None)
        self._notice = (
            f"the relay recreated slot {name} at {at} and compares topics with tables, because {how.message}"
        )
        self._report.error("notice", RefusedError(self._notice, _HINT))
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
