"""Brings what becomes of several workers' batches into the order of the batches, which readers rely on."""

from collections.abc import Callable, Iterable

from bwtui.model.delivery import Receipt

#: So many messages' places wait for those of an earlier batch, at 12 bytes each.
_MOST = 1_000_000


class Places:
    """Writes receipts by ``write``, none before those of an earlier batch, however workers come to them."""

    def __init__(self, write: Callable[[list[Receipt]], None]) -> None:
        self._write = write
        #: In the order in which they were recorded; True: what became of it is known.
        self._recorded: dict[tuple[int, int], tuple[Receipt, bool]] = {}
        self._messages = 0

    def expect(self, receipts: Iterable[Receipt]) -> None:
        """Take note of batches that are recorded."""
        for receipt in receipts:
            self._recorded[receipt.batch, receipt.section] = receipt, False

    def take(self, receipts: Iterable[Receipt]) -> None:
        """Take what became of some, or all that ever will be known of them; write what may be written."""
        for receipt in receipts:
            self._recorded[receipt.batch, receipt.section] = receipt, True
            self._messages += len(receipt.partitions)
        ready = []
        for receipt, is_known in self._recorded.values():
            # Rather than without a bound: a reader then takes an earlier one's for unknown.
            if not is_known and self._messages <= _MOST:
                break
            if is_known:
                ready.append(receipt)
        for receipt in ready:
            del self._recorded[receipt.batch, receipt.section]
            self._messages -= len(receipt.partitions)
        if ready:
            self._write(ready)
