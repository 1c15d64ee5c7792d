"""The interface of a recording, and the recorder of a relay without --record."""

from collections.abc import Callable, Sequence
from typing import Literal

from bwtui.errors import BwtuiError
from bwtui.model.delivery import Receipt
from bwtui.model.position import Position, RecordedPosition
from bwtui.model.status import RecordingStatus
from bwtui.pgoutput.messages import Field, Relation
from bwtui.recording.payloads import NoMessageReason, Transaction
from bwtui.relay.routes.route import TableRoute
from bwtui.sink.destination import MessageTuple

_EVERYTHING = (1 << 64) - 1


class Recorder:
    """The interface of a recording; this one records nothing, and lets everything be confirmed."""

    #: Whether the relay must collect the frames of each batch.
    is_recording = False

    def __init__(self) -> None:
        #: Frames, or lines of a snapshot, of the current batch.
        self.frames: list[bytes] = []

    # -- the stream ----------------------------------------------------------------------------------------

    def begin_pass(
        self, kind: Literal["snapshot", "stream"], start_lsn: int, behind: Position | None = None
    ) -> None:
        """Record that a snapshot, or streaming, begins at ``start_lsn``; it may repeat recorded changes.

        Nothing up to the position ``behind`` follows, since Kafka already holds it.
        """

    def go_back(self, lsn: int, *, is_gap: bool = False) -> None:
        """Continue with a server whose WAL is the former one's up to ``lsn``, or after a gap that ends there.

        Raises RefusedError if changes beyond ``lsn`` are recorded: the ones that follow would count as the
        same.
        """

    def begin_table(self, relation: Relation, lsn: int, time_ms: int, ordinal: int = 0) -> None:
        """Record that the following frames are rows of a snapshot of ``relation``, after row ``ordinal``."""

    def begin_rows(self, relation: Relation, lsn: int, time_ms: int, ordinal: int) -> None:
        """Record that backfilled rows of ``relation`` follow, until `end_rows`.

        Everything collected before must be written, and no transaction may be open. ``lsn`` is the position
        of the stream: all that commits before it was sent. ``time_ms`` is the timestamp of the messages.
        ``ordinal`` is that of the row before the first one, so that `--headers` and the recording number rows
        alike; a run never gives one ordinal to two rows of a table that have the same ``lsn``. Frames are
        lines of COPY. A batch of messages without any frame contains tombstones, numbered like rows; no batch
        has both.
        """

    def end_rows(self) -> None:
        """Record that the stream continues after backfilled rows, whether they were written or abandoned."""

    def recorded(self, *, is_new_pass: bool) -> RecordedPosition | None:
        """Return how far this pass, or with ``is_new_pass`` the next, is recorded; None if that has ended."""
        return None

    def relation(self, relation: Relation) -> None:
        """Record the current definition of a relation; earlier batches hold rows of its former definition."""

    def forget(self, oid: int) -> None:
        """Forget a relation; it is recorded again before its next row."""

    def resume(self, transaction: Transaction) -> None:
        """Record that the following changes belong to ``transaction``, whose earlier changes Kafka holds."""

    def without(self, route: TableRoute, reason: NoMessageReason, frame: int | None = None) -> None:
        """Record why the current change, or the change of ``frame``, makes no message."""

    def filled(self, sent: Sequence[Field], completed: Sequence[Field]) -> int:
        """Record the TOAST values that were fetched for the streamed row; return their size in bytes."""
        return 0

    def write_batch(self, routes: Sequence[TableRoute]) -> list[Receipt]:
        """Write the batch; return a receipt for each route's messages, none if nothing is recorded.

        Raises StateFailed, see `settle`.
        """
        return []

    def write_cleanup(self, route: TableRoute, messages: Sequence[MessageTuple]) -> Receipt | None:
        """Write tombstones that clean up after an unfinished snapshot. Raises StateFailed, see `settle`."""
        return None

    def committed(self) -> None:
        """Write the held delivery reports of a snapshot, whose transaction is committed.

        Raises StateFailed, see `settle`.
        """

    # -- the ledger: see `bwtui.relay.state.ack.DurabilityLedger` --------------------------------------------

    def take_settled(self, receipts: list[Receipt]) -> None:
        """Write delivery reports, or hold them until their transaction is committed."""

    def take_unsettled(self, receipts: list[Receipt]) -> None:
        """Write the partial delivery reports of unsettled messages."""

    def reach(self, lsn: int) -> None:
        """Request that everything taken so far become durable; `durable_lsn` is ``lsn`` afterwards."""

    @property
    def durable_lsn(self) -> int:
        """The LSN before which everything is on the disk."""
        return _EVERYTHING

    def promise(self, *, soon: bool = False) -> Callable[[], bool]:
        """Return a function that reports whether all written so far is on the disk; see `Journal.promise`."""
        return lambda: True

    def settle(self, *, idle: bool = False) -> None:
        """Do periodic work; ``idle`` means that the relay is only waiting for the disk.

        Raises StateFailed if the disk refuses to write and the policy is to stop.
        """

    # -- statuses and the end ------------------------------------------------------------------------------

    def record_last_status(self) -> None:
        """Record changes of the last second, before the threads that measure are shut down."""

    def status(self) -> RecordingStatus | None:
        """Return the state of the recording; any thread may call this."""
        return None

    def close(self, error: BwtuiError | None = None) -> None:
        """Finish the recording.

        Raises StateFailed if that fails, was not reported, and the policy is to stop.
        """


class NullRecorder(Recorder):
    """The recorder of a relay without --record."""
