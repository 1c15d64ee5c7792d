"""Unchanged TOAST values: PostgreSQL omits a large value from an UPDATE that did not change it.

The value is never NULL and never empty. If the old row is available (REPLICA IDENTITY FULL), the value comes
from there, exactly. Otherwise there is no exact source, and ``--toast`` decides:

- ``fetch`` reads the row's present value by key. The topic's latest value is right; one in between may hold
  a value that is newer than its commit. If the row no longer exists, its delete is still to come, so this
  version of it is skipped. A column that was dropped meanwhile gets a placeholder. The same statement also
  reads the values of the table's next rows.
- ``error`` leaves the row to ``--on-error``.
- ``placeholder`` sends null for the column, and names the column in the record's field ``__escaped``.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

import psycopg2

from bwtui.encode.avro import UnchangedToastError
from bwtui.encode.compiled_encoders import Values
from bwtui.errors import ServiceRefused
from bwtui.model.sql import quote_qualified
from bwtui.pgoutput.messages import UNCHANGED, Field
from bwtui.relay.routes.route import TableRoute
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection, query
from bwtui.source.present_rows import PresentRows
from bwtui.source.snapshot import right_to_read
from bwtui.source.sql_hints import format_sql

_LOCKED_SQL = """select transactionid::text from pg_catalog.pg_locks
                  where locktype = 'transactionid' and transactionid::text = any(%s)"""
#: The number of rows that one statement reads: initial and maximum.
_ROWS_FIRST, _ROWS_MOST = 64, 2_000
#: The maximum size of the values that are kept for frames to come, for all tables together.
_BYTES_MOST = 16 << 20


T = TypeVar("T")
#: A row with missing values: its frame, its transaction's id and its key.
IncompleteRow = tuple[bytes, int, dict[str, bytes]]
#: Returns the table's next updates, except those of which the values are read already, or the rows that lack
#: exactly these columns, up to this number.
Ahead = Callable[[Values, Sequence[int], int], Iterable["ToastUpdate | IncompleteRow"]]


class RowVanished(Exception):
    """The row was deleted, or its key changed, after the change that is being relayed.

    ``row`` is as complete as the change itself made it: it includes the key.
    """

    def __init__(self, row: list[Field]) -> None:
        super().__init__()
        self.row = row


class ToastUpdate(NamedTuple):
    """An update in the stream."""

    frame: bytes
    new: Sequence[Field]
    #: The old row if ``full``, otherwise its key, or None if the key is the same.
    old: Sequence[Field] | None
    full: bool
    xid: int


class RowQueries(Protocol):
    """Runs queries in a session to PostgreSQL; see `bwtui.relay.state.service_retry`."""

    def query(self, query: Callable[[Connection], T]) -> T:
        """Return the answer; wait while the server is unavailable. Raises RefusedError."""

    def query_ahead(self, query: Callable[[Connection], T]) -> Callable[[], T | None]:
        """Start the query, and return a function that waits for its answer, or returns None if it failed."""


class _FetchedRows(NamedTuple):
    """The rows that were queried, and the results by index; rows without one must be queried again."""

    oid: int
    rows: list[IncompleteRow]
    results: dict[int, Sequence[Field] | None]


class ToastFiller:
    """Completes rows by the rules above."""

    def __init__(self, settings: RelaySettings, queries: RowQueries, pulse: Callable[[float], None]) -> None:
        """``pulse(seconds)`` waits, keeps the stream alive, and raises to stop the relay."""
        self._mode = settings.toast
        self._queries = queries
        self._pulse = pulse
        self._present = PresentRows()
        #: Values read for frames to come, in order of the missing columns; empty if the row is gone.
        self.values: Values = {}
        self._bytes = 0
        #: Each waits for values that are read while the relay handles the previous ones.
        self._next: list[Callable[[], _FetchedRows | None]] = []
        #: The mean size of a row's values when its table was last read, by the table's oid.
        self._sizes: dict[int, int] = {}

    def begin_session(self) -> None:
        """Discard what was read for the previous session: its frames come again, perhaps later ones first."""
        self.values.clear()
        self._bytes = 0
        self._next = []

    def fill(self, route: TableRoute, update: ToastUpdate, ahead: Ahead = lambda *_: ()) -> list[Field]:
        """Return the new row without UNCHANGED, except where a placeholder will replace it.

        Raises UnchangedToastError under --toast error, BwtuiError if the value can't be read, and
        RowVanished.
        """
        names = route.column_names
        row, missing = _completed(route, update)
        if not missing:
            return row
        if self._mode == "error" or not route.key_columns:
            error = UnchangedToastError(names[missing[0]])
            table = quote_qualified(route.relation.namespace, route.relation.name)
            alter = format_sql(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
            error.hint = f"use --toast fetch, or run: {alter}"
            raise error
        if self._mode == "fetch":
            if id(update.frame) not in self.values:
                self._take_next()
                if id(update.frame) not in self.values:
                    first = update.frame, update.xid, _key(route, row)
                    self._fetch(route, first, missing, ahead)
                self._begin_next(route, missing, ahead)
            values = self.take(route, update.frame)
            if not values:
                raise RowVanished(row)
            for index, field in zip(missing, values, strict=True):
                row[index] = field
        route.counters.toast_placeholders += sum(row[index] is UNCHANGED for index in missing)
        return row

    def take(self, route: TableRoute, frame: bytes) -> tuple[Any, ...] | None:
        """Return the values that were read for ``frame``, which is sent now; None if there are none."""
        if (fetched := self.values.pop(id(frame), None)) is None:
            return None
        values = fetched[2:]
        self._bytes -= fetched[1]
        route.counters.toast_fetched += len(values) - values.count(UNCHANGED)
        return values

    def take_all(self, route: TableRoute, frames: Sequence[bytes]) -> None:
        """Discard the values that were read for ``frames``: the C extension encoded them."""
        pop = self.values.pop
        taken = [fetched for frame in frames if (fetched := pop(id(frame), None)) is not None]
        self._bytes -= sum([fetched[1] for fetched in taken])
        route.counters.toast_fetched += sum(map(len, taken)) - 2 * len(taken)

    def _fetch(self, route: TableRoute, first: IncompleteRow, missing: Sequence[int], ahead: Ahead) -> None:
        """Read the values of ``first``, and of the next rows that lack the same columns."""
        rows, room = self._plan(route, [first], missing, ahead)
        query = self._make_query(route, rows, missing, room)
        while 0 not in (answer := self._queries.query(query)).results:
            if answer.rows:
                # The other rows' values used up the size limit.
                query = self._make_query(route, [first], missing, room)
            else:
                self._pulse(0.01)
        self._keep(answer)

    def _begin_next(self, route: TableRoute, missing: Sequence[int], ahead: Ahead) -> None:
        """Start reading the values that follow the kept ones, if many rows need them.

        Two sessions read about half of the rows each: for PostgreSQL a row takes longer than for the relay.
        One of them reads all rows of a key, so that a key's values never go back in time.
        """
        rows, room = self._plan(route, [], missing, ahead)
        if len(rows) < _ROWS_FIRST:
            return
        halves: tuple[list[IncompleteRow], list[IncompleteRow]] = [], []
        for row in rows:
            halves[hash(tuple(row[2].values())) & 1].append(row)
        for half in filter(None, halves):
            self._next.append(self._queries.query_ahead(self._make_query(route, half, missing, room // 2)))

    def _take_next(self) -> None:
        """Wait for the values that are being read, and keep them."""
        waiting, self._next = self._next, []
        for answer in waiting:
            if (fetched := answer()) is not None:
                self._keep(fetched)

    def _plan(
        self, route: TableRoute, first: Sequence[IncompleteRow], missing: Sequence[int], ahead: Ahead
    ) -> tuple[list[IncompleteRow], int]:
        """Return ``first`` and the rows to read with them, and the maximum size of their values.

        Each statement takes half of the remaining room, so that tables which alternate share it. A statement
        whose values exceed that ends its session, so plan for half of it.
        """
        room, size = (_BYTES_MOST - self._bytes) // 2, self._sizes.get(route.relation.oid)
        rows = _ROWS_FIRST if size is None else min(room // 2 // size, _ROWS_MOST)
        rows = max(0, rows - len(first))
        more = _lacking(route, missing, ahead(self.values, missing, rows))
        return [*first, *islice(more, rows)], room

    def _make_query(
        self, route: TableRoute, rows: list[IncompleteRow], missing: Sequence[int], room: int
    ) -> Callable[[Connection], _FetchedRows]:
        relation, columns = route.relation, [route.column_names[index] for index in missing]

        def query(session: Connection) -> _FetchedRows:
            visible = _visible(session, rows)
            keys = [key for _, _, key in visible]
            if not keys:
                return _FetchedRows(relation.oid, [], {})
            try:
                results = self._present.read(session, relation, keys, columns, room)
            except psycopg2.errors.InsufficientPrivilege as error:
                reason = error.diag.message_primary or "permission denied"
                hint = right_to_read(reason, relation, session)
                raise ServiceRefused(f"an unchanged TOAST value can't be fetched: {reason}", hint) from error
            return _FetchedRows(relation.oid, visible, results)

        return query

    def _keep(self, answer: _FetchedRows) -> None:
        before = self._bytes
        for at, fields in answer.results.items():
            frame = answer.rows[at][0]
            size = sum([len(field) for field in fields or () if isinstance(field, bytes)])
            self.values[id(frame)] = (frame, size, *(fields or ()))
            self._bytes += size
        if answer.results:
            self._sizes[answer.oid] = (self._bytes - before) // len(answer.results) + 1


def _visible(session: Connection, rows: list[IncompleteRow]) -> list[IncompleteRow]:
    """Return the rows whose transactions other sessions can see; none unless the first is among them.

    PostgreSQL streams a commit once its WAL is flushed. Other sessions see it a moment later; with
    synchronous replication, only after the standby has replied. Until then the row's present value would be
    outdated. A transaction releases the lock on its id after it has become visible.
    """
    locked = _locked(session, {str(xid) for xid in {xid for _, xid, _ in rows}})
    if not locked:
        return rows
    if str(rows[0][1]) in locked:
        return []
    return [one for one in rows if str(one[1]) not in locked]


def _locked(session: Connection, xids: Collection[str]) -> set[str]:
    return {xid for (xid,) in query(session, _LOCKED_SQL, sorted(xids))}


def _completed(route: TableRoute, update: ToastUpdate) -> tuple[list[Field], list[int]]:
    """Return the new row completed from the old one, and the indexes of the columns still missing."""
    row, old = list(update.new), update.old
    # Most rows lack one value, which is found at a tenth of the cost of a loop.
    single = row.count(UNCHANGED) == 1
    missing = [row.index(UNCHANGED)] if single else [i for i, field in enumerate(row) if field is UNCHANGED]
    if old is None:
        return row, missing
    for index in missing:
        if update.full or index in route.key_indexes:
            row[index] = old[index]
    return row, [index for index in missing if row[index] is UNCHANGED]


def _key(route: TableRoute, row: Sequence[Field]) -> dict[str, bytes]:
    key: dict[str, bytes] = {}
    for index in route.key_indexes:
        name, field = route.column_names[index], row[index]
        if not isinstance(field, bytes):
            raise UnchangedToastError(name)
        key[name] = field
    return key


def _lacking(
    route: TableRoute, missing: Sequence[int], ahead: Iterable[ToastUpdate | IncompleteRow]
) -> Iterable[IncompleteRow]:
    """Yield the rows among ``ahead`` that lack the same columns."""
    for update in ahead:
        if not isinstance(update, ToastUpdate):
            yield update
            continue
        row, lacks = _completed(route, update)
        if lacks == missing:
            with suppress(UnchangedToastError):
                yield update.frame, update.xid, _key(route, row)
