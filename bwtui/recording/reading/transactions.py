"""Select a bounded number of transactions to list, from any number in the recording.

The segments' indexes have xid, commit, and start position of all transactions. Tables and bytes need a read
of the changes, so they are looked up for one transaction at a time.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from bwtui.recording.view import OnProgress, RecordedTransaction, RecordingView

#: Maximum number of listed transactions: the newest, the largest, and those that took longest.
NEWEST, LARGEST, LONGEST = 500, 100, 100
#: Approximate maximum of the newest transactions to examine.
MOST = 3_000_000
#: Transactions between two calls of the progress function.
STEP = 5_000


class TransactionContents(NamedTuple):
    """Messages by table, and bytes, of the first ``read`` changes of a transaction."""

    tables: dict[str, int]
    bytes: int
    read: int


@dataclass
class TransactionFold:
    """The transactions up to a position that are worth listing; `advance` only moves forward."""

    #: Position from which transactions were examined.
    first: int = 0
    position: int = 0
    count: int = 0
    #: The transaction that is open at the position, if any.
    under_way: RecordedTransaction | None = None
    _next: int = 0
    _highest: int = 0
    _newest: deque[RecordedTransaction] = field(default_factory=lambda: deque(maxlen=NEWEST))
    _largest: list[tuple[int, int, RecordedTransaction]] = field(default_factory=list)
    _longest: list[tuple[int, int, RecordedTransaction]] = field(default_factory=list)

    def advance(
        self,
        view: RecordingView,
        position: int,
        cancelled: Callable[[], bool] = lambda: False,
        on_progress: OnProgress = lambda done, total: None,
    ) -> bool:
        """Add the transactions that end by ``position``; return False if cancelled."""
        if not self.position:
            self.first = self._next = view.newest_transactions(position, MOST)
        self.under_way = None
        for number, one in enumerate(view.transactions(self._next, position), 1):
            if one.stop > position:
                self.under_way = one
                break
            self._take(one)
            self._next = one.stop
            if number % STEP == 0:
                on_progress(one.stop - self.first, max(position - self.first, 1))
                if cancelled():
                    self.position = one.stop
                    return False
        self.position = position
        return True

    def _take(self, one: RecordedTransaction) -> None:
        # After a reconnect, a transaction may be recorded again.
        if one.lsn <= self._highest:
            one = one._replace(is_repeat=True)
        else:
            self._highest = one.lsn
        self.count += 1
        self._newest.append(one)
        _keep(self._largest, one.rows, one, LARGEST)
        if one.confirmed:
            _keep(self._longest, one.confirmed - one.received, one, LONGEST)

    def listed(self) -> list[RecordedTransaction]:
        """Return the transactions to list, oldest first."""
        by_start = {one.start: one for one in self._newest}
        by_start |= {one.start: one for heap in (self._largest, self._longest) for _, _, one in heap}
        return [by_start[start] for start in sorted(by_start)]


def _keep(
    heap: list[tuple[int, int, RecordedTransaction]], value: int, one: RecordedTransaction, most: int
) -> None:
    if len(heap) < most:
        heapq.heappush(heap, (value, one.start, one))
    elif value > heap[0][0]:
        heapq.heapreplace(heap, (value, one.start, one))


def contents(view: RecordingView, one: RecordedTransaction, most: int) -> TransactionContents:
    """Read at most ``most`` changes of a transaction. Raises DamagedRecording."""
    tables: Counter[str] = Counter()
    size = read = 0
    for change in view.changes(one.start, min(one.stop, one.start + most)):
        tables.update({table: len(change.messages) or 1 for table in change.tables})
        size += change.message_bytes
        read += 1
    return TransactionContents(dict(tables), size, read)
