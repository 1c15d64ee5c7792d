"""Keys of sent messages, which identify the rows that backfilled tombstones delete."""

import itertools
import marshal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bwtui.pgoutput.messages import UNCHANGED, Binary, Field, Relation
from bwtui.recording.change import Change, SentMessage, old_key
from bwtui.recording.query_syntax import as_number, sort_key
from bwtui.recording.view import OnProgress, RecordingView

#: Length of the header of Confluent's wire format: a zero byte, and the schema's id.
_HEAD = 5


def body_of(key: bytes) -> bytes:
    """Return a message's key without its schema id, which may differ between messages."""
    return key[_HEAD:] if key[:1] == b"\0" and len(key) > _HEAD else key


class KeyEncodings:
    """The schema ids with which the keys of one table have been sent."""

    def __init__(self) -> None:
        self._heads: set[bytes] = set()

    def sent(self, change: Change) -> bytes | None:
        """Return the key that the row of a change was sent with; None if it was not sent."""
        key = change.messages[-1].key if change.messages else None
        if key is not None and key[:1] == b"\0":
            self._heads.add(key[:_HEAD])
        return key

    def of_tombstone(self, message: SentMessage) -> list[bytes]:
        """Return the keys with which the row that a backfilled tombstone deletes may have been sent.

        A tombstone with a schema id that is not the relay's own deletes an orphaned key: the same row may be
        in the topic with the relay's id, and only a row last sent with exactly this key is gone.
        """
        key = message.key or b""
        if key[:1] != b"\0" or int.from_bytes(key[1:_HEAD]) != message.key_schema_id:
            return [key]
        return [key, *(head + key[_HEAD:] for head in self._heads if head != key[:_HEAD])]


class SentKeys:
    """Key values of all rows, by the key that each was last sent with; kept on disk."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[KeyEncodings, list[tuple[str, int]]]] = {}
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(
            "pragma journal_mode = off; pragma synchronous = off; pragma temp_store = file;"
            "create table rows (oid integer, key blob, sent blob, primary key (oid, key)) without rowid;"
            "create index by_sent on rows (oid, sent); begin"
        )

    def close(self) -> None:
        """Release the keys."""
        self._database.close()

    def note(self, change: Change) -> None:
        """Record a change of a table with a key; deletes need not be recorded."""
        relation = change.relation
        spellings, types = self._of.setdefault(relation.oid, (KeyEncodings(), []))
        now = key_types(relation, change.key_columns)
        if types != now:
            self._database.execute("delete from rows where oid = ?", (relation.oid,))
            self._of[relation.oid] = (spellings, now)
        sent = spellings.sent(change)
        if change.after is not None and sent is not None:
            row = (relation.oid, pack(change.key), sent)
            self._database.execute("insert or replace into rows values (?, ?, ?)", row)

    def find(self, change: Change) -> tuple[Field, ...] | None:
        """Return the key values of the row that a backfilled tombstone deletes, or None if unknown."""
        oid = change.relation.oid
        spellings, types = self._of.get(oid, (KeyEncodings(), []))
        if types != key_types(change.relation, change.key_columns):
            return None
        query = "select key from rows where oid = ? and sent = ?"
        for key in itertools.chain.from_iterable(map(spellings.of_tombstone, change.messages)):
            row = self._database.execute(query, (oid, key)).fetchone()
            if row is not None:
                return unpack(row[0])
        return None


def key_types(relation: Relation, key_columns: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return the key columns with their types; keys are comparable while these stay the same."""
    types = {column.name: column.type_oid for column in relation.columns}
    return [(name, types.get(name, 0)) for name in key_columns]


def pack(fields: Sequence[Field]) -> bytes:
    """Return fields as bytes, for SQLite."""
    # False means a value that PostgreSQL did not send, a tuple means bytes that are not text.
    return marshal.dumps(
        [False if f is UNCHANGED else (bytes(f),) if isinstance(f, Binary) else f for f in fields]
    )


def unpack(blob: bytes) -> tuple[Field, ...]:
    """Return the fields that `pack` was given."""
    return tuple(_field(value) for value in marshal.loads(blob))


def _field(value: object) -> Field:
    if value is None or isinstance(value, bytes):
        return value
    return Binary(value[0]) if isinstance(value, tuple) else UNCHANGED


# A table as of a position of a recording: its changes folded by key into rows, which are kept on disk.
#
# The rows are in a temporary SQLite database: it stays in memory while it is small and moves to a file when
# it grows, so that tables of any size can be shown.

#: Changes between two calls of the progress function.
STEP = 2_000
_CACHE_KIB = 32_768
#: Types of key columns that sort as numbers: smallint, integer, bigint, oid.
_NUMBERS = frozenset((20, 21, 23, 26))
#: Types of other columns that sort as numbers: also real, double precision and numeric.
_SORTED_AS_NUMBERS = _NUMBERS | {700, 701, 1700}
#: Sort keys of special values; those of numbers begin with 0 or 1.
_NO_NUMBERS = {"-Infinity": "/", "Infinity": "2", "NaN": "3"}
#: SQLite steps between two checks for cancellation.
_STEPS = 100_000
_SCHEMA = """
create table rows (
  sort, key blob, n integer, position integer, row blob, sent blob, primary key (sort, key, n)
) without rowid
"""
#: Backfilled tombstones find their row by the key that it was last sent with.
_BY_SENT = "create index if not exists by_sent on rows (sent)"


class TableRow(NamedTuple):
    """One row, and the position of its last change."""

    position: int
    fields: tuple[Field, ...]


class RowOrder(NamedTuple):
    """The sort order of rows: by a column, or by the key."""

    column: str | None = None
    descending: bool = False


class TableGaps(NamedTuple):
    """The gaps in a table as of a position."""

    #: There is no snapshot before the position: rows unchanged since the recording began are missing.
    no_snapshot: bool
    #: The snapshot is still running at this position: more rows follow.
    snapshot_runs: bool
    #: Number of deletes and updates of rows that were never recorded.
    unknown_rows: int
    #: Number of backfilled tombstones that may belong to rows that are still shown.
    unknown_tombstones: int


class TableFold:
    """Folds the changes of one table; `advance` only moves forward."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.position = 0
        self.relation: Relation | None = None
        self.key_columns: tuple[str, ...] = ()
        self.truncates = 0
        self._unknown = 0
        self._unknown_tombstones = 0
        self._spellings = KeyEncodings()
        self._snapshot_pass: int | None = None
        self._arranged = False
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.executescript(
            f"pragma cache_size = -{_CACHE_KIB}; pragma journal_mode = off; pragma synchronous = off;"
            f"pragma temp_store = file; {_SCHEMA}"
        )

    def close(self) -> None:
        """Release the rows."""
        self._database.close()

    def advance(
        self,
        view: RecordingView,
        position: int,
        cancelled: Callable[[], bool] = lambda: False,
        on_progress: OnProgress = lambda done, total: None,
    ) -> bool:
        """Fold the changes up to ``position``; return False if cancelled. Raises DamagedRecording."""
        self._arranged = False
        self._database.execute("begin")
        try:
            for change in view.changes(self.position, position):
                self._take(change)
                self.position = change.position + 1
                if self.position % STEP == 0:
                    on_progress(self.position, position)
                    if cancelled():
                        return False
            return True
        finally:
            self._database.execute("commit")

    @property
    def count(self) -> int:
        """Number of rows in the table."""
        return int(self._database.execute("select count(*) from rows").fetchone()[0])

    @property
    def shown(self) -> int:
        """Number of rows that pass the filter of `arrange`."""
        if not self._arranged:
            return self.count
        return int(self._database.execute("select count(*) from arranged").fetchone()[0])

    def rows(self, offset: int, limit: int) -> list[TableRow]:
        """Return a page of rows in key order, or of those that `arrange` selected, in its order."""
        query = "select position, row from rows order by sort, key, n limit ? offset ?"
        if self._arranged:
            query = (
                "select position, row from arranged join rows using (sort, key, n)"
                " where rank > ?2 order by rank limit ?1"
            )
        return [TableRow(p, unpack(r)) for p, r in self._database.execute(query, (limit, offset))]

    def arrange(
        self,
        matches: Callable[[Change], bool] | None,
        order: RowOrder | None,
        cancelled: Callable[[], bool] = lambda: False,
        on_progress: OnProgress = lambda done, total: None,
    ) -> bool:
        """Filter and sort the rows; return False if cancelled.

        ``matches`` gets a change that has only the fields of a row (see `query.of_rows`). The result is as of
        the current position: call this again after `advance`.
        """
        database, relation = self._database, self.relation
        database.execute("drop table if exists arranged")
        if relation is not None and order is not None and not _has(relation, order.column):
            order = None
        self._arranged = relation is not None and (matches is not None or order is not None)
        if not self._arranged or relation is None:
            return True
        done, total = itertools.count(1), self.count

        def found(position: int, blob: bytes) -> bool:
            if (number := next(done)) % STEP == 0:
                on_progress(number, total)
            change = as_change(TableRow(position, unpack(blob)), relation, self.key_columns)
            return matches is None or matches(change)

        database.create_function("found", 2, found)
        by = ""
        if order is not None and order.column is not None:
            database.create_function("place", 1, _place(relation, order.column))
            by = f"place(row) {'desc' if order.descending else 'asc'} nulls last, "
        key = "sort desc, key desc, n desc" if order == RowOrder(None, True) else "sort, key, n"
        database.execute("create table arranged (rank integer primary key, sort, key blob, n integer)")
        database.set_progress_handler(cancelled, _STEPS)
        try:
            database.execute(
                "insert into arranged (sort, key, n) select sort, key, n from rows where found(position, row)"
                f" order by {by}{key}"
            )
        except sqlite3.OperationalError:
            if not cancelled():
                raise
            self._arranged = False
            return False
        finally:
            database.set_progress_handler(None, 0)
        return True

    def gaps(self, snapshot_runs: bool) -> TableGaps:
        """Return what is missing."""
        return TableGaps(self._snapshot_pass is None, snapshot_runs, self._unknown, self._unknown_tombstones)

    # Folding.

    def _take(self, change: Change) -> None:
        if change.operation == "snapshot" and change.pass_number != self._snapshot_pass:
            # A snapshot contains all rows: everything before it is outdated.
            self._snapshot_pass = change.pass_number
            self._empty()
        if self.table not in change.tables or change.is_repeat:
            return
        if change.operation == "truncate":
            self.truncates += 1
            self._empty()
            return
        self._keep_columns(change)
        if change.key_columns:
            self._take_keyed(change)
        else:
            self._take_unkeyed(change)

    def _take_keyed(self, change: Change) -> None:
        if change.operation == "cleanup":
            self._clear(change)
            return
        key = change.key
        moved = old_key(change)
        is_needed = change.in_transaction or not change.messages
        existing = self._find(change, moved if moved is not None else key) if is_needed else None
        before = existing[0] if existing is not None and change.in_transaction else None
        if change.operation in ("update", "delete") and before is None:
            self._unknown += 1
        if moved is not None:
            self._delete(change, moved)
        if change.after is None:
            self._delete(change, key)
            return
        after = _completed(change, before)
        sent = self._spellings.sent(change)
        if sent is None and existing is not None and moved is None:
            # The topic still has the message that was sent before.
            sent = existing[1]
        values = (_sort(change, key), pack(key), 0, change.position, pack(after), sent)
        self._database.execute("insert or replace into rows values (?, ?, ?, ?, ?, ?)", values)

    def _clear(self, change: Change) -> None:
        """Delete the row of a backfilled tombstone: the stream never sent its delete."""
        database = self._database
        database.execute(_BY_SENT)
        for key in itertools.chain.from_iterable(map(self._spellings.of_tombstone, change.messages)):
            if database.execute("delete from rows where sent = ?", (key,)).rowcount:
                return
        if database.execute("select 1 from rows where sent is null limit 1").fetchone() is not None:
            self._unknown_tombstones += 1

    def _take_unkeyed(self, change: Change) -> None:
        """Apply a change of a table without a key: rows are identified by their whole content."""
        if change.before is not None and not self._delete_one(pack(change.before)):
            self._unknown += 1
        if change.after is not None:
            blob = pack(change.after)
            if change.operation == "backfill" and self._has_row(blob):
                # A backfill sent the row again; the table has it only once.
                return
            values = (0, blob, change.position, change.position, blob, None)
            self._database.execute("insert into rows values (?, ?, ?, ?, ?, ?)", values)

    def _keep_columns(self, change: Change) -> None:
        relation = change.relation
        if relation is self.relation:
            return
        old, self.relation = self.relation, relation
        if old is not None and [c.name for c in old.columns] != [c.name for c in relation.columns]:
            self._rearrange(old, relation)
        if old is not None and key_types(old, self.key_columns) != key_types(relation, change.key_columns):
            # Rows are found by their key: a different key changes the place of every row.
            self._rekey(change)
        self.key_columns = change.key_columns

    def _rearrange(self, old: Relation, new: Relation) -> None:
        """Convert all rows to the columns of ``new``; values of added columns are unknown."""
        names = [column.name for column in old.columns]
        places = [names.index(c.name) if c.name in names else None for c in new.columns]

        def moved(blob: bytes) -> bytes:
            row = unpack(blob)
            return pack([UNCHANGED if p is None else row[p] for p in places])

        self._database.create_function("moved", 1, moved, deterministic=True)
        self._database.execute("update rows set row = moved(row)")

    def _rekey(self, change: Change) -> None:
        names = [column.name for column in change.relation.columns]
        places = [names.index(n) for n in change.key_columns if n in names]

        def key(blob: bytes) -> list[Field]:
            row = unpack(blob)
            return [row[p] for p in places] if places else list(row)

        database = self._database
        database.create_function("key_of", 1, lambda blob: pack(key(blob)), deterministic=True)
        database.create_function("sort_of", 1, lambda blob: _sort(change, key(blob)), deterministic=True)
        database.execute("create temp table old as select * from rows")
        database.execute("delete from rows")
        number = "0" if places else "position"
        database.execute(
            "insert or replace into rows"
            f" select sort_of(row), key_of(row), {number}, position, row, null from old"
        )
        database.execute("drop table old")

    def _find(self, change: Change, key: Sequence[Field]) -> tuple[tuple[Field, ...], bytes | None] | None:
        """Return a row, and the key that it was last sent with."""
        query = "select row, sent from rows where sort = ? and key = ? and n = 0"
        row = self._database.execute(query, (_sort(change, key), pack(key))).fetchone()
        return None if row is None else (unpack(row[0]), row[1])

    def _delete(self, change: Change, key: Sequence[Field]) -> None:
        self._database.execute(
            "delete from rows where sort = ? and key = ? and n = 0", (_sort(change, key), pack(key))
        )

    def _has_row(self, blob: bytes) -> bool:
        query = "select 1 from rows where sort = 0 and key = ? limit 1"
        return self._database.execute(query, (blob,)).fetchone() is not None

    def _delete_one(self, blob: bytes) -> bool:
        query = "select n from rows where sort = 0 and key = ? order by n limit 1"
        row = self._database.execute(query, (blob,)).fetchone()
        if row is None:
            return False
        self._database.execute("delete from rows where sort = 0 and key = ? and n = ?", (blob, row[0]))
        return True

    def _empty(self) -> None:
        self._database.execute("delete from rows")


def as_change(row: TableRow, relation: Relation, key_columns: tuple[str, ...]) -> Change:
    """Return a row as a change, for the evaluation of a query."""
    return Change(
        position=row.position,
        pass_number=0,
        lsn=0,
        ordinal=0,
        xid=0,
        commit_time=0,
        received=0,
        operation="snapshot",
        relation=relation,
        tables=(relation.qualified_name,),
        key_columns=key_columns,
        before=None,
        before_is_key=False,
        after=row.fields,
        filled=(),
        messages=(),
        without=None,
        is_repeat=False,
    )


def _has(relation: Relation, name: str | None) -> bool:
    """Return whether the relation has this column to sort by; None means the key, which always exists."""
    return name is None or any(column.name == name for column in relation.columns)


def _place(relation: Relation, name: str) -> Callable[[bytes], str | None]:
    """Return a function that computes a row's sort key by a column (numeric for numbers); None if unknown."""
    at = next(i for i, column in enumerate(relation.columns) if column.name == name)
    is_number = relation.columns[at].type_oid in _SORTED_AS_NUMBERS

    def place(blob: bytes) -> str | None:
        value = unpack(blob)[at]
        if not isinstance(value, bytes):
            return None
        text = value.decode("utf-8", "replace")
        if not is_number:
            return text
        return sort_key(text) if as_number(text) is not None else _NO_NUMBERS.get(text, text)

    return place


def _completed(change: Change, before: tuple[Field, ...] | None) -> Sequence[Field]:
    """Return the new row, with values that PostgreSQL did not send taken from the old row."""
    after = change.after
    assert after is not None
    if before is None or UNCHANGED not in after or len(before) != len(after):
        return after
    return [before[i] if value is UNCHANGED else value for i, value in enumerate(after)]


def _sort(change: Change, key: Sequence[Field]) -> int | str:
    """Return a row's sort value: the first key column, as a number if it is one."""
    if not change.key_columns:
        return 0
    if not key or not isinstance(key[0], bytes):
        return ""
    if _is_number(change):
        try:
            return int(key[0])
        except ValueError:
            pass
    return key[0].decode("utf-8", "replace")


def _is_number(change: Change) -> bool:
    first = change.key_columns[0] if change.key_columns else None
    return any(c.name == first and c.type_oid in _NUMBERS for c in change.relation.columns)


def pages(fold: TableFold, size: int = 1_000) -> Iterator[TableRow]:
    """Yield all rows of a table, with one page in memory."""
    for offset in range(0, fold.count, size):
        yield from fold.rows(offset, size)
