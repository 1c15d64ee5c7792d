"""Know what the stream has sent, so that no older row of a chunk is sent after a newer one.

Let S be the snapshot in which the chunk is read, and p the place in the stream where its rows are added. A
row of the chunk would be older than what was sent of its key if a transaction that S does not show was sent
before p. A commit is streamed as soon as its WAL is flushed, and becomes visible to others only later: with a
synchronous standby much later. So the window is opened before S is taken, and S is taken only once everything
that was sent before the window was opened is visible (`SentTransactions`). If a key is sent while the window
is open, the chunk's row of that key is left out (`ChunkWindow`).
"""

from array import array
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from bwtui.relay.routes.route import TableRoute

#: Binary logarithm of the numbers in a page of bits, and how many numbers the list holds.
_PAGE_BITS, _PLAIN = 16, 20_000
_HALF = 1 << 31


class StreamOrigin(NamedTuple):
    """The server that a session of the stream has reached."""

    system_identifier: str
    timeline: int
    in_recovery: bool


class SentTransactions:
    """The transactions (32 bits) that were sent, as long as other sessions may not see them yet.

    A new transaction number only takes a place in a list. From time to time, the numbers below the oldest
    running transaction, which all sessions can see by now, are removed. If a transaction stays open for
    hours, the numbers sent meanwhile are stored as one bit each. It is unknown what an earlier run had sent
    before this one began, so every transaction that was running then may be one of them. The main thread
    writes, any thread may read.
    """

    def __init__(self) -> None:
        self.server: StreamOrigin | None = None
        self._recent = array("I")
        self._pages: dict[int, bytearray] = {}
        self._from_before: frozenset[int] = frozenset()
        #: The oldest running transaction as of the last look; None: no look in this session.
        self.oldest: int | None = None
        #: Takes the number of each transaction; get it again after `tidy` and `begin`.
        self.note: Callable[[int], None] = self._recent.append

    def begin(self, server: StreamOrigin, running: Collection[int]) -> None:
        """Begin a session of ``server``; the transactions ``running`` were running before it began.

        A different relay may have sent those while this one was suspended.
        """
        self._from_before |= frozenset(running)
        self.oldest = None
        if server != self.server:
            # Numbers of a different server or timeline are meaningless here.
            self.server, self._from_before = server, frozenset(running)
            self._pages = {}
            self._recent = array("I")
            self.note = self._recent.append

    def note_oldest(self, server: StreamOrigin | None, oldest: int | None) -> None:
        """Take the oldest running transaction from a look that began in a session of ``server``.

        Any thread may call. A look can end after the next session has begun, on another server or timeline:
        its number would then make `tidy` forget transactions that are not visible yet.
        """
        if oldest is not None and server == self.server:
            self.oldest = oldest

    def tidy(self) -> None:
        """Remove what all sessions can see by now, and store the rest compactly."""
        oldest, pages = self.oldest, dict(self._pages)
        remaining: Sequence[int] = self._recent
        if oldest is not None:
            remaining = [xid for xid in remaining if not _is_before(xid, oldest)]
            last = (1 << _PAGE_BITS) - 1
            visible = [number for number in pages if _is_before(number << _PAGE_BITS | last, oldest)]
            for number in visible:
                del pages[number]
            self._from_before = frozenset(xid for xid in self._from_before if not _is_before(xid, oldest))
        if len(remaining) > _PLAIN // 2:
            for xid in remaining:
                number, bit = xid >> _PAGE_BITS, xid & (1 << _PAGE_BITS) - 1
                page = pages.get(number)
                if page is None:
                    page = pages[number] = bytearray(1 << _PAGE_BITS - 3)
                page[bit >> 3] |= 1 << (bit & 7)
            remaining = []
        # In this order: a concurrent reader finds a number in at least one of the two.
        self._pages = pages
        self._recent = array("I", remaining)
        self.note = self._recent.append

    @property
    def is_full(self) -> bool:
        """True if it is time for `tidy`."""
        return len(self._recent) > _PLAIN

    def among(self, running: Collection[int]) -> set[int]:
        """Return those of the ``running`` transactions that were sent, or may have been."""
        recent = set(self._recent)
        return {xid for xid in running if xid in recent or self._is_recorded(xid) or xid in self._from_before}

    def is_certain(self, xid: int) -> bool:
        """Whether ``xid`` was sent by this run, rather than perhaps by an earlier one."""
        return xid in self._recent or self._is_recorded(xid)

    def _is_recorded(self, xid: int) -> bool:
        page = self._pages.get(xid >> _PAGE_BITS)
        bit = xid & (1 << _PAGE_BITS) - 1
        return page is not None and bool(page[bit >> 3] >> (bit & 7) & 1)


def _is_before(xid: int, oldest: int) -> bool:
    """Compare transactions as PostgreSQL does, whose numbers wrap around."""
    return (xid - oldest) & 0xFFFFFFFF >= _HALF


#: The inputs of a key's bytes in addition to its values: its columns, their types and its schema.
Form = tuple[tuple[str, ...], tuple[int, ...], int | None]


#: Maximum number of keys that are collected before the chunk's own keys are known.
_MOST_KEYS = 500_000


class ChunkWindow:
    """The keys of one table that are sent while it is open; the relay's main thread owns it."""

    def __init__(self, table: str) -> None:
        """``table`` is the qualified name of the table."""
        self.table = table
        #: Why the chunk must be read again, or "".
        self.broken = ""
        self._keys: set[bytes | None] = set()
        self._only: frozenset[bytes | None] | None = None
        self._forms: set[Form] = set()

    def note_batch(self, routes: Sequence[TableRoute]) -> None:
        """Collect the keys of a batch that is handed over."""
        for route in routes:
            if route.relation.qualified_name == self.table:
                self._forms.add(form_of(route))
                self.collect({message[0] for message in route.messages})
        if self._only is None and len(self._keys) > _MOST_KEYS:
            self.broken = "too many rows were written while the chunk was read"

    def collect(self, keys: Collection[bytes | None]) -> None:
        """Collect keys of which something newer was sent."""
        self._keys.update(keys if self._only is None else self._only.intersection(keys))

    def narrow(self, keys: Collection[bytes | None]) -> None:
        """Collect only ``keys`` from now on: those of the chunk."""
        self._only = frozenset(keys)
        self._keys &= self._only

    def fits(self, route: TableRoute) -> bool:
        """True if the keys of ``route`` can be compared with those that were sent."""
        return self._forms <= {form_of(route)}

    def truncate(self, tables: Collection[str]) -> None:
        """Break the window if the stream has truncated its table."""
        if self.table in tables:
            self.broken = "the table was truncated"

    def __contains__(self, key: bytes | None) -> bool:
        """Whether something newer of ``key`` may have been sent."""
        return key in self._keys


def form_of(route: TableRoute) -> Form:
    """Return the inputs that make keys of ``route`` comparable byte by byte."""
    types = tuple(route.relation.columns[index].type_oid for index in route.key_indexes)
    return route.key_columns, types, route.key_schema_id
