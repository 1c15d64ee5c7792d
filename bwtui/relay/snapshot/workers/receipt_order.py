"""Put the delivery reports of several workers into the order of the batches, which readers rely on."""

from collections.abc import Callable, Iterable

from bwtui.model.delivery import Receipt

#: Maximum number of messages whose places wait for those of an earlier batch, at 12 bytes each.
_MOST = 1_000_000


class ReceiptOrder:
    """Passes receipts to ``write`` in the order of their batches, whatever the order of the workers."""

    def __init__(self, write: Callable[[list[Receipt]], None]) -> None:
        self._write = write
        #: In the order in which they were recorded; True if the delivery report is complete.
        self._recorded: dict[tuple[int, int], tuple[Receipt, bool]] = {}
        self._messages = 0

    def expect(self, receipts: Iterable[Receipt]) -> None:
        """Add recorded batches."""
        for receipt in receipts:
            self._recorded[receipt.batch, receipt.section] = receipt, False

    def take(self, receipts: Iterable[Receipt]) -> None:
        """Take complete receipts, or those that get no more delivery reports; write what is in order."""
        for receipt in receipts:
            self._recorded[receipt.batch, receipt.section] = receipt, True
            self._messages += len(receipt.partitions)
        ready = []
        for receipt, is_known in self._recorded.values():
            # This bounds the memory. A reader then treats the places of the earlier batch as unknown.
            if not is_known and self._messages <= _MOST:
                break
            if is_known:
                ready.append(receipt)
        for receipt in ready:
            del self._recorded[receipt.batch, receipt.section]
            self._messages -= len(receipt.partitions)
        if ready:
            self._write(ready)
