"""Relayed transactions: the newest ones, and the largest of the last ten minutes.

The relay's thread only records raw notes, once per transaction and once per batch. The thread of
`bwtui.relay.state.recent_history` turns them into a list once a second (`TransactionLog.tick`), which any
thread may read.
"""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from bwtui.model.delivery import DeliverySpan
from bwtui.model.lsn import format_lsn
from bwtui.model.service_views import RelayedTransaction, Transactions
from bwtui.pgoutput.frames import POSTGRES_EPOCH_US
from bwtui.pgoutput.messages import Relation

#: Numbers of listed transactions: the newest, and the largest of the last minutes by each measure.
NEWEST, LARGEST = 500, 50
_MINUTES = 10
#: Maximum notes between two ticks; beyond that the oldest are dropped, unless the transactions are large: a
#: thousand of those take more than a second.
_MOST, _MOST_LARGE = 4_096, 1_024
LARGE_ROWS, LARGE_BYTES = 100, 1 << 16
#: Maximum number of listed or formerly listed transactions that wait for their acknowledgement.
_WAITING = 4_096
#: Maximum number of named tables per transaction, those with the most messages; the others are only counted.
_NAMED = 20
_MICROS = 1_000_000


class TransactionNote(NamedTuple):
    """The relay thread's data on a transaction, except for its tables.

    ``committed`` is in microseconds since PostgreSQL's epoch, ``received`` by the monotonic clock.
    """

    commit_lsn: int
    xid: int
    committed: int
    rows: int
    bytes: int
    received: float


#: Messages by table for a large transaction; the table or tables of a small one; None if not determined.
_Touched = dict[str, int] | Relation | list[Relation] | None
#: The fields of `TransactionNote`, as a plain tuple because that is faster to create, and the tables.
_Note = tuple[int, int, int, int, int, float, _Touched]
T = TypeVar("T")


class TransactionTables(NamedTuple):
    """The tables of a transaction, up to a maximum: it may have thousands of partitions.

    ``named`` is messages by table, or 0 if they were not counted; None if the tables are unknown. ``more`` is
    the number of further tables, and ``messages`` the number of their messages.
    """

    named: dict[str, int] | None = None
    more: int = 0
    messages: int = 0

    @classmethod
    def of(cls, counts: dict[str, int]) -> "TransactionTables":
        """Return the largest tables by name, and the others as a count."""
        if len(counts) <= _NAMED:
            return cls(counts)
        named = dict(heapq.nlargest(_NAMED, counts.items(), key=lambda one: one[1]))
        return cls(named, len(counts) - _NAMED, sum(counts.values()) - sum(named.values()))


#: Returns what is known of the transaction that is being read, or None.
SoFar = Callable[[], tuple[TransactionNote, TransactionTables] | None]


def _nothing() -> None:
    return None


@dataclass(slots=True, eq=False)
class _LoggedTransaction:
    """One transaction in the list."""

    number: int
    noted: TransactionNote
    tables: TransactionTables
    #: By the monotonic clock; 0 if not acknowledged yet.
    acknowledged: float = 0.0
    reads: int = 1
    #: It will never be acknowledged: the relay continues on a server whose history does not contain it.
    is_given_up: bool = False

    def again(self, noted: TransactionNote, tables: TransactionTables) -> None:
        """Record that the transaction was read once more before it was acknowledged."""
        # The second reading does not change when the transaction was first received.
        self.noted, self.tables = noted._replace(received=self.noted.received), tables
        self.reads += 1


class _LargestTransactions:
    """The largest transactions of the last minutes by one measure; each minute keeps a full list."""

    def __init__(self, measure: Callable[[TransactionNote], int]) -> None:
        self.measure = measure
        #: The size that a transaction of this minute must exceed to be listed.
        self.least = -1
        self._minutes: deque[tuple[int, list[tuple[int, int, _LoggedTransaction]]]] = deque()

    def begin(self, now: float) -> None:
        """Drop expired minutes, and start a new minute when it is due."""
        minutes, minute = self._minutes, int(now / 60)
        if not minutes or minutes[-1][0] != minute:
            minutes.append((minute, []))
            self.least = -1
        while minutes[0][0] <= minute - _MINUTES:
            minutes.popleft()

    def offer(self, record: _LoggedTransaction) -> None:
        """Add a transaction that is large enough."""
        heap = self._minutes[-1][1]
        entry = (self.measure(record.noted), record.number, record)
        if len(heap) < LARGEST:
            heapq.heappush(heap, entry)
        else:
            heapq.heapreplace(heap, entry)
        if len(heap) == LARGEST:
            self.least = heap[0][0]

    def records(self) -> Iterable[_LoggedTransaction]:
        """Return the largest transactions, in no particular order."""
        entries = (entry for _, heap in self._minutes for entry in heap)
        return [record for _, _, record in heapq.nlargest(LARGEST, entries)]


class TransactionLog:
    """The transactions of one run.

    `note`, `note_large`, `acknowledged` and `go_back` belong to the relay's thread, `tick` to one other
    thread, and any thread may call `view`.
    """

    def __init__(self) -> None:
        self._noted: deque[_Note] = deque(maxlen=_MOST)
        self._large: deque[_Note] = deque(maxlen=_MOST_LARGE)
        self._acks: deque[tuple[int, float]] = deque(maxlen=_MOST)
        #: Take the fields of `TransactionNote` for each transaction, and again for a large one.
        self.note, self.note_large = self._noted.append, self._large.append
        self._so_far: SoFar = _nothing
        self._newest: deque[_LoggedTransaction] = deque(maxlen=NEWEST)
        self._largest = (
            _LargestTransactions(lambda noted: noted.rows),
            _LargestTransactions(lambda noted: noted.bytes),
        )
        #: Transactions that are not acknowledged, oldest first.
        self._waiting: dict[tuple[int, int], _LoggedTransaction] = {}
        self._number = 0
        #: When small transactions were last dropped, by the monotonic clock.
        self._dropped_at = float("-inf")
        self._lock = threading.Lock()

    def begin_session(self, so_far: "SoFar") -> None:
        """Begin a session; ``so_far`` returns the transaction that it is reading, in any thread."""
        self._so_far = so_far

    def end_session(self) -> None:
        """End the session: no transaction is being read."""
        self._so_far = _nothing

    def acknowledged(self, span: DeliverySpan, now: float) -> None:
        """Record that all of ``span`` was acknowledged, ``now`` by the monotonic clock."""
        if span.lsn is not None:
            self._acks.append((span.lsn, now))

    def go_back(self, common_end: int) -> None:
        """Give up waiting transactions from ``common_end`` on: the current server does not have them."""
        # Transactions that are only noted so far are given up as well.
        self.tick(time.monotonic())
        with self._lock:
            for key in [key for key in self._waiting if key[0] >= common_end]:
                self._waiting.pop(key).is_given_up = True

    def tick(self, now: float) -> None:
        """Update the list, ``now`` by the monotonic clock."""
        with self._lock:
            # Before the transactions: later acknowledgements belong to transactions of the next tick.
            acks = _taken(self._acks)
            fresh = self._take_noted(now)
            for largest in self._largest:
                largest.begin(now)
            for noted in self._worth_listing(fresh):
                self._list(TransactionNote._make(noted[:6]), _tables(noted[6]))
            self._acknowledge(acks)

    def _take_noted(self, now: float) -> list[_Note]:
        fresh = _taken(self._noted)
        large = _taken(self._large)
        if len(fresh) >= _MOST:
            # Older notes may have been dropped.
            self._dropped_at = now
            here = {id(noted) for noted in fresh}
            fresh[:0] = [noted for noted in large if id(noted) not in here]
        return fresh

    def _worth_listing(self, fresh: list[_Note]) -> list[_Note]:
        """Return the newest, and earlier ones that may be among the largest."""
        rows, size = (largest.least for largest in self._largest)
        before = [noted for noted in fresh[:-NEWEST] if noted[3] > rows or noted[4] > size]
        return before + fresh[-NEWEST:]

    def _list(self, noted: TransactionNote, tables: TransactionTables) -> None:
        key = (noted.commit_lsn, noted.xid)
        before = self._waiting.get(key)
        if before is not None:
            before.again(noted, tables)
            return
        self._number += 1
        record = _LoggedTransaction(self._number, noted, tables)
        self._newest.append(record)
        for largest in self._largest:
            if largest.measure(noted) > largest.least:
                largest.offer(record)
        self._waiting[key] = record
        if len(self._waiting) > _WAITING:
            del self._waiting[next(iter(self._waiting))]

    def _acknowledge(self, acks: list[tuple[int, float]]) -> None:
        done = []
        following = iter(acks)
        ack = next(following, None)
        # By LSN: a transaction that no server has any more must not block those that were read after it.
        for key in sorted(self._waiting):
            record = self._waiting[key]
            noted = record.noted
            while ack is not None and (ack[0] <= noted.commit_lsn or ack[1] < noted.received):
                ack = next(following, None)
            if ack is None:
                break
            record.acknowledged = ack[1]
            done.append(key)
        for key in done:
            del self._waiting[key]

    def view(self, confirmed_lsn: int, total: int) -> Transactions:
        """Return the list; of ``total`` transactions, those up to ``confirmed_lsn`` were acknowledged."""
        now = time.monotonic()
        clock = time.time() - now
        with self._lock:
            for largest in self._largest:
                largest.begin(now)
            large = {record for largest in self._largest for record in largest.records()}
            records = large.union(self._newest)
            entries = [_entry(record, clock, confirmed_lsn) for record in records]
            newest, flooded = len(self._newest), now - self._dropped_at < 60 * _MINUTES
        so_far = self._so_far()
        return Transactions(
            time=clock + now,
            notes=(_FLOODED,) if flooded else (),
            total=total,
            newest=newest,
            largest=LARGEST,
            under_way=() if so_far is None else (_entry(_LoggedTransaction(0, *so_far), clock, 0),),
            transactions=tuple(entries),
        )


_FLOODED = (
    f"More than {_MOST:,} transactions arrived within a second: some of those with fewer "
    f"than {LARGE_ROWS} rows and less than {LARGE_BYTES >> 10} kB were not recorded"
)


def _taken(noted: deque[T]) -> list[T]:
    # Notes that arrive meanwhile belong to the next tick.
    return [noted.popleft() for _ in range(len(noted))]


def _tables(touched: _Touched) -> TransactionTables:
    if touched is None:
        return TransactionTables()
    if isinstance(touched, dict):
        return TransactionTables.of(touched)
    relations = touched if isinstance(touched, list) else (touched,)
    return TransactionTables.of({relation.qualified_name: 0 for relation in relations})


def _entry(record: _LoggedTransaction, clock: float, confirmed_lsn: int) -> RelayedTransaction:
    noted, at, tables = record.noted, record.acknowledged, record.tables
    committed = (noted.committed + POSTGRES_EPOCH_US) / _MICROS
    return RelayedTransaction(
        number=record.number,
        xid=noted.xid,
        commit_lsn=format_lsn(noted.commit_lsn),
        commit_time=committed,
        rows=noted.rows,
        bytes=noted.bytes,
        received=round(noted.received + clock, 6),
        tables=tables.named,
        acknowledged=bool(at) or (noted.commit_lsn < confirmed_lsn and not record.is_given_up),
        relayed_seconds=round(at - noted.received, 6) if at else None,
        commit_seconds=round(at + clock - committed, 6) if at else None,
        reads=record.reads,
        more_tables=tables.more,
        more_messages=tables.messages,
        is_given_up=record.is_given_up,
    )
