"""The recorder interface for senders of snapshot rows: `Recorder`, or a worker's proxy of it."""

from collections.abc import Sequence
from typing import Protocol

from bwtui.model.delivery import Receipt
from bwtui.pgoutput.messages import Relation
from bwtui.recording.format.batch import NoMessageReason
from bwtui.relay.ack import DurabilityLedger
from bwtui.relay.routes.route import TableRoute


class BatchRecorder(Protocol):
    """Writes batch after batch."""

    #: Frames of the current batch.
    frames: list[bytes]

    def write_batch(self, routes: Sequence[TableRoute]) -> list[Receipt]:
        """Write the batch; return a receipt for each route's messages, none if nothing is recorded."""


class RowRecorder(BatchRecorder, DurabilityLedger, Protocol):
    """Writes the rows of tables."""

    def begin_table(self, relation: Relation, lsn: int, time_ms: int) -> None:
        """Record that the following frames are rows of a snapshot of ``relation``."""

    def without(self, route: TableRoute, reason: NoMessageReason) -> None:
        """Record why the current change makes no message."""

    def settle(self, *, idle: bool = False) -> None:
        """Do periodic work."""
