"""What those need of a recorder who send rows of a snapshot: `Recorder`, or a worker's word to it."""

from collections.abc import Sequence
from typing import Protocol

from bwtui.model.delivery import Receipt
from bwtui.pgoutput.messages import Relation
from bwtui.recording.format.batch import Without
from bwtui.relay.ack import Ledger
from bwtui.relay.routes.route import Route


class BatchRecorder(Protocol):
    """Takes batch after batch."""

    #: Of the batch that is being filled.
    frames: list[bytes]

    def write_batch(self, routes: Sequence[Route]) -> list[Receipt]:
        """Write the batch; return a receipt for each route's messages, none where nothing is recorded."""


class RowRecorder(BatchRecorder, Ledger, Protocol):
    """Takes the rows of tables."""

    def begin_table(self, relation: Relation, lsn: int, time_ms: int) -> None:
        """Note that the frames that follow are rows of a snapshot of ``relation``."""

    def without(self, route: Route, reason: Without) -> None:
        """Note why the change that is being handled makes no message."""

    def settle(self, *, idle: bool = False) -> None:
        """Do what is due now and then."""
