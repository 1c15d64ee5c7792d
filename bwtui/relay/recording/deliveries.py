"""The recording's ledger: where messages are, as far as that is certain.

With --exactly-once a message is where Kafka has put it only once its transaction is committed. Batches of the
stream are settled behind that. A snapshot is one transaction, whose rows are settled long before: what became
of them waits here until it is committed, in a file without a name that a kill takes away.
"""

import io
import tempfile
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path

from bwtui.model.delivery import REFUSED, UNKNOWN, Receipt
from bwtui.recording.format.batch import Delivery, pack_delivery
from bwtui.recording.format.blocks import Kind
from bwtui.recording.journal import Journal
from bwtui.recording.segment import BlockOut

_LENGTH = 4


class Deliveries:
    """Writes what became of messages; the relay's main thread owns it."""

    def __init__(
        self, journal: Journal, folder: Path, settle: Callable[[], None], *, in_transactions: bool
    ) -> None:
        """``settle`` does what is due while much is written; ``in_transactions``: with --exactly-once."""
        self._journal = journal
        self._folder = folder
        self._settle = settle
        self._in_transactions = in_transactions
        #: Of a snapshot that is not committed. Without a buffer: one keeps what the disk has refused, and
        #: refuses it again wherever the file is closed.
        self._held: io.FileIO | None = None

    def begin_pass(self, kind: str) -> None:
        """Go on with a pass; nothing is known any more of what an earlier one has held."""
        self.close()
        if self._in_transactions and kind == "snapshot":
            try:
                self._held = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            except OSError as error:
                self._journal.fail(error)

    def settled(self, receipts: Iterable[Receipt]) -> None:
        """Take what became of messages, or hold it until their transaction is committed."""
        for receipt in receipts:
            parts = pack_delivery(
                Delivery(receipt.batch, receipt.section, 0, receipt.partitions, receipt.offsets)
            )
            if self._held is None:
                self._journal.write(BlockOut(Kind.DELIVERY, parts))
            else:
                self._hold(self._held, b"".join(parts))

    def given_up(self, receipts: Iterable[Receipt]) -> None:
        """Take what is known of messages that are not settled: of an open transaction, no places.

        Kafka aborts it. If its commit was under way and gets through, no word of that comes either.
        """
        if self._in_transactions:
            for receipt in receipts:
                known = (REFUSED if at == REFUSED else UNKNOWN for at in receipt.partitions)
                receipt.partitions = array("i", known)
                receipt.offsets = array("q", [UNKNOWN]) * len(receipt.offsets)
        self.settled(receipts)

    def committed(self) -> None:
        """Write what was held: its transaction is committed. Raises StateFailed, see `Recorder.settle`."""
        held, self._held = self._held, None
        if held is None:
            return
        try:
            # It reads alone, so whatever the disk says by now, nothing is left to write when it is closed.
            with io.BufferedReader(held) as places:
                places.seek(0)
                while length := places.read(_LENGTH):
                    self._journal.write(BlockOut(Kind.DELIVERY, [places.read(int.from_bytes(length))]))
                    self._settle()
        except OSError as error:
            self._journal.fail(error)

    def close(self) -> None:
        """Forget what is held: its transaction is not committed, or nobody knows."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _hold(self, file: io.FileIO, payload: bytes) -> None:
        left = memoryview(len(payload).to_bytes(_LENGTH) + payload)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError as error:
            self._journal.fail(error)
            # Nothing of the recording is written any more, this neither.
            self.close()
