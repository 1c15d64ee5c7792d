"""The delivery ledger of a recording: where messages are, as far as that is certain.

With --exactly-once the place of a message in Kafka is certain only once its transaction is committed. Batches
of the stream are settled after that. A snapshot is a single transaction, and its rows are settled long before
its commit. Their delivery reports are held here until the commit, in an unnamed file, which disappears if the
relay is killed.
"""

import io
import tempfile
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path

from bwtui.model.delivery import REFUSED, UNKNOWN, Receipt
from bwtui.recording.format.batch import DeliveredRange, pack_delivery
from bwtui.recording.format.blocks import BlockKind
from bwtui.recording.journal import Journal
from bwtui.recording.segment import OutgoingBlock

_LENGTH = 4


class Deliveries:
    """Writes the delivery reports of messages; the relay's main thread owns it."""

    def __init__(
        self, journal: Journal, folder: Path, settle: Callable[[], None], *, in_transactions: bool
    ) -> None:
        """``settle`` does periodic work during long writes; ``in_transactions`` means --exactly-once."""
        self._journal = journal
        self._folder = folder
        self._settle = settle
        self._in_transactions = in_transactions
        #: Held delivery reports of an uncommitted snapshot. The file is unbuffered: a buffer would keep the
        #: data that the disk has refused, and fail again wherever the file is closed.
        self._held: io.FileIO | None = None

    def begin_pass(self, kind: str) -> None:
        """Begin a pass; delivery reports that an earlier pass has held are discarded."""
        self.close()
        if self._in_transactions and kind == "snapshot":
            try:
                self._held = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            except OSError as error:
                self._journal.fail(error)

    def settled(self, receipts: Iterable[Receipt]) -> None:
        """Write delivery reports, or hold them until their transaction is committed."""
        for receipt in receipts:
            parts = pack_delivery(
                DeliveredRange(receipt.batch, receipt.section, 0, receipt.partitions, receipt.offsets)
            )
            if self._held is None:
                self._journal.write(OutgoingBlock(BlockKind.DELIVERY, parts))
            else:
                self._hold(self._held, b"".join(parts))

    def given_up(self, receipts: Iterable[Receipt]) -> None:
        """Write the partial delivery reports of unsettled messages, without places in an open transaction.

        Kafka aborts that transaction. If its commit was in progress and succeeds, the relay does not learn of
        it.
        """
        if self._in_transactions:
            for receipt in receipts:
                partitions = (REFUSED if at == REFUSED else UNKNOWN for at in receipt.partitions)
                receipt.partitions = array("i", partitions)
                receipt.offsets = array("q", [UNKNOWN]) * len(receipt.offsets)
        self.settled(receipts)

    def committed(self) -> None:
        """Write the held delivery reports, since their transaction is committed.

        Raises StateFailed, see `Recorder.settle`.
        """
        held, self._held = self._held, None
        if held is None:
            return
        try:
            # This reader only reads, so closing it has nothing left to write, whatever the disk reports.
            with io.BufferedReader(held) as places:
                places.seek(0)
                while length := places.read(_LENGTH):
                    self._journal.write(
                        OutgoingBlock(BlockKind.DELIVERY, [places.read(int.from_bytes(length))])
                    )
                    self._settle()
        except OSError as error:
            self._journal.fail(error)

    def close(self) -> None:
        """Discard held delivery reports, since their transaction is not committed, or may not be."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _hold(self, file: io.FileIO, payload: bytes) -> None:
        remaining = memoryview(len(payload).to_bytes(_LENGTH) + payload)
        try:
            while remaining:
                remaining = remaining[file.write(remaining) :]
        except OSError as error:
            self._journal.fail(error)
            # The recording is not written any more, and neither are these reports.
            self.close()
