"""Find the keys whose latest record equals the row, by digests, so that they need no further comparison.

PostgreSQL digests the tables (`digest_table`), and this module the topics: every record with a
plain key becomes a line of ``record_digest``, with the digests of key and row. If the latest record of a key
has the digest of the key's row, and the key is only in one partition, which is the right one, the two are
equal. All other keys are *suspects*: only their records and rows are read again and compared one by one. So
no difference is reported on the basis of digests alone.
"""

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
from confluent_kafka import Message
from numpy.typing import NDArray

from bwtui.audit.canonical_values import Schemas, UndecodableMessage
from bwtui.audit.column_decoder import Int64, MessageBuffer, PlainField, fields_of, read
from bwtui.kafka.client import Config
from bwtui.kafka.scan import LEAP, ScannedMessages, SeekingScan, Split, SplitScan
from bwtui.source.connection import Connection, query
from bwtui.verify.canonical import PARTS, DigestLayout, clear_no_texts
from bwtui.verify.tables import CHUNK, RowTexts, TableShape, from_table, rows_at

#: Name → columns. ``part`` is derived from a digest. A record's ``state`` is `ROW`, `TOMBSTONE` or `OTHER`;
#: ``spelling`` is the ID of its key's schema; ``is_away``: its partition is not its key's. A row is found
#: again by ``table_oid`` (of the partition, or 0), ``block`` and ``line``. ``suspect`` has the results of
#: `Agreement.suspect`, and ``copies`` only without a key.
TABLES = {
    "record_digest": "topic usmallint, part utinyint, key0 ubigint, key1 ubigint, row0 ubigint, row1 ubigint,"
    " state utinyint, spelling bigint, partition_id integer, log_offset bigint, is_away boolean",
    "row_digest": "topic usmallint, part utinyint, key0 ubigint, key1 ubigint, row0 ubigint, row1 ubigint,"
    " table_oid uinteger, block uinteger, line usmallint",
    "suspect": "key0 ubigint, key1 ubigint, spelling bigint, table_oid uinteger, block uinteger,"
    " line usmallint, row0 ubigint, row1 ubigint, copies bigint",
}
#: The value of a record: a plain row, null, or anything else.
ROW, TOMBSTONE, OTHER = range(3)
#: Maximum number and bytes of messages that are decoded together, column by column.
_BATCH, _BATCH_BYTES = 40_000, 32 << 20
#: Maximum number of records or rows that are compared in one query.
_AT_ONCE = 2_000_000
_NONE = -1
#: How long to wait for a log that ends too early.
_PATIENCE_SECONDS = 5.0
#: More than a table's maximum number of columns.
_MOST_FIELDS = 1_700

Digests = NDArray[np.uint64]
#: Returns which keys of a split belong into another partition.
FindAway = Callable[[Split, Sequence[bytes | None]], NDArray[np.bool_]]


class _PendingMessages(NamedTuple):
    """The messages to decode together next."""

    messages: list[Message]
    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]


class Agreement:
    """The digests of both sides in DuckDB, for the tables that can be digested."""

    def __init__(self, store: duckdb.DuckDBPyConnection, schemas: Schemas) -> None:
        self._store = store
        self._schemas = schemas
        self._hasher = duckdb.connect(config={"threads": 1})
        self._fields: dict[tuple[DigestLayout, int, tuple[str, ...]], list[PlainField] | None] = {}
        #: Topic → its number.
        self._numbers: dict[str, int] = {}
        #: Topic and key schema → the newest record's timestamp (milliseconds).
        self._newest: dict[tuple[str, int], int] = {}
        for name, columns in TABLES.items():
            store.execute(f"create table {name} ({columns})")

    def number(self, topic: str) -> int:
        """Return the number of a topic."""
        return self._numbers.setdefault(topic, len(self._numbers))

    def close(self) -> None:
        """Release the memory of the digests."""
        self._hasher.close()
        for name in TABLES:
            self._store.execute(f"truncate {name}")

    @contextlib.contextmanager
    def digesting(self, snapshot: Connection, shapes: Sequence[TableShape]) -> Iterator[None]:
        """Digest tables while the block runs. Raises psycopg2.Error."""

        def digest() -> None:
            with self._store.cursor() as store:
                for shape in shapes:
                    digest_table(snapshot, store, shape, self.number(shape.table.topic))

        for shape in shapes:
            self.number(shape.table.topic)
        with ThreadPoolExecutor(1, "digests of tables") as pool:
            digested = pool.submit(digest)
            try:
                yield
            except BaseException:
                snapshot.cancel()
                raise
            digested.result()

    # -- topics ----------------------------------------------------------------------------------------------

    def screened(
        self, shape: TableShape, split: Split, parts: Iterable[ScannedMessages], find_away: FindAway
    ) -> Iterator[ScannedMessages]:
        """Digest the records of a split; yield its holes, and the records that have to be read one by one."""
        pending = _PendingMessages([], [], [], [])
        size = 0
        for part in parts:
            if part.holes:
                yield ScannedMessages([], [], part.holes)
            values = [message.value() for message in part.messages]
            pending.messages.extend(part.messages)
            pending.offsets.extend(part.offsets)
            pending.values.extend(values)
            pending.keys.extend([message.key() for message in part.messages])
            size += sum([len(value) for value in values if value is not None])
            if len(pending.offsets) >= _BATCH or size >= _BATCH_BYTES:
                yield self._screen(shape, split, pending, find_away)
                pending, size = _PendingMessages([], [], [], []), 0
        yield self._screen(shape, split, pending, find_away)

    def _screen(
        self, shape: TableShape, split: Split, pending: _PendingMessages, find_away: FindAway
    ) -> ScannedMessages:
        assert shape.records is not None
        count = len(pending.offsets)
        rows, schemas = self._digests(shape.records.row, pending.values)
        is_null = np.fromiter((value is None for value in pending.values), np.bool_, count)
        states = np.where(is_null, TOMBSTONE, np.where(schemas == _NONE, OTHER, ROW))
        if shape.records.key is None:
            # Without a key, a record is identified only by its row.
            keys, spellings, is_row = np.zeros_like(rows), np.zeros(count, np.int64), states == ROW
            is_away = np.zeros(count, np.bool_)
        else:
            keys, spellings = self._digests(shape.records.key, pending.keys, shape.table.key)
            is_row = spellings != _NONE
            is_away = find_away(split, pending.keys)
        columns = {
            "part": (rows if shape.records.key is None else keys)[:, 0] % PARTS,
            **{f"key{half}": keys[:, half] for half in (0, 1)},
            **{f"row{half}": rows[:, half] for half in (0, 1)},
            "state": states,
            "spelling": spellings,
            "log_offset": np.fromiter(pending.offsets, np.int64, count),
            "is_away": is_away,
        }
        self._keep(split, {name: values[is_row] for name, values in columns.items()})
        for number in np.unique(spellings[is_row]).tolist():
            newest = pending.messages[int(np.flatnonzero(spellings == number)[-1])].timestamp()[1]
            self._newest[split.topic, number] = max(newest, self._newest.get((split.topic, number), newest))
        rest = np.flatnonzero(~is_row).tolist()
        return ScannedMessages(
            [pending.messages[at] for at in rest], [pending.offsets[at] for at in rest], []
        )

    def _keep(self, split: Split, columns: dict[str, NDArray[Any]]) -> None:
        self._store.register("digested", pa.table(columns))
        self._store.execute(
            """insert into record_digest
               select ?, part, key0, key1, row0, row1, state, spelling, ?, log_offset, is_away
                 from digested""",
            [self.number(split.topic), split.partition],
        )
        self._store.unregister("digested")

    def _digests(
        self, layout: DigestLayout, cells: Sequence[bytes | None], names: tuple[str, ...] = ()
    ) -> tuple[Digests, Int64]:
        """Return the digests and the schema IDs; -1 for values whose bytes have to be decoded one by one.

        ``names``: a key has exactly these columns.
        """
        messages = MessageBuffer.of([one or b"" for one in cells], _MOST_FIELDS)
        digests, schemas = np.zeros((len(cells), 2), np.uint64), messages.schema_ids()
        for number in np.unique(schemas).tolist():
            chosen = np.flatnonzero(schemas == number)
            fields = None if number == _NONE else self._plan(layout, number, names)
            if fields is None:
                schemas[chosen] = _NONE
                continue
            some = messages if len(chosen) == len(cells) else messages.some(chosen)
            columns, is_plain, is_short = read(fields, some)
            if names:
                # Bytes that a plain encoder would write differently are a different key; and no key contains
                # a null.
                is_plain &= is_short
                for column in columns:
                    is_plain &= ~column.is_null
            for column in columns:
                clear_no_texts(column, some, is_plain)
            digests[chosen] = layout.digests(self._hasher, columns, some, is_plain)
            schemas[chosen[~is_plain]] = _NONE
        return digests, schemas

    def _plan(self, layout: DigestLayout, number: int, names: tuple[str, ...]) -> list[PlainField] | None:
        plan = (layout, number, names)
        if plan not in self._fields:
            try:
                fields = fields_of(self._schemas.get(number)) or []
            except UndecodableMessage:
                fields = []
            is_supported = 0 < len(fields) <= _MOST_FIELDS and layout.takes(fields)
            is_whole = not names or tuple(one.column for one in fields if one.kind) == names
            self._fields[plan] = fields if is_supported and is_whole else None
        return self._fields[plan]

    # -- suspects --------------------------------------------------------------------------------------------

    def suspect(self, shape: TableShape, spelling: str) -> int:
        """Find the suspects of a table; return how many keys, or rows without one, are equal.

        ``spelling``: the encoding of the table's keys.
        """
        assert shape.records is not None
        self._store.execute("truncate suspect")
        topic, agreed = self.number(shape.table.topic), 0
        lines = self._store.execute(
            """select greatest((select count(*) from record_digest where topic = $topic),
                               (select count(*) from row_digest where topic = $topic))""",
            {"topic": topic},
        ).fetchall()[0][0]
        step = max(1, PARTS * _AT_ONCE // max(lines, 1))
        for low in range(0, PARTS, step):
            for name in ("record", "row"):
                self._store.execute(
                    f"create or replace temp view {name}_part as select * from {name}_digest"
                    f" where topic = {topic} and part between {low} and {low + step - 1}"
                )
            if shape.records.key is None:
                self._store.execute(_SURPLUS)
                continue
            self._store.execute(_LATEST)
            number = {"spelling": int(spelling) if spelling.isdecimal() else _NONE}
            agreed += self._store.execute(_AGREED, number).fetchall()[0][0]
            self._store.execute(_SUSPECTS, number)
        return int(agreed)

    def rows(self, shape: TableShape) -> int:
        """Return the number of rows of a table."""
        sql = "select count(*) from row_digest where topic = ?"
        return int(self._store.execute(sql, [self.number(shape.table.topic)]).fetchall()[0][0])

    def records(self, shape: TableShape) -> int:
        """Return the number of digested records of a topic."""
        sql = "select count(*) from record_digest where topic = ?"
        return int(self._store.execute(sql, [self.number(shape.table.topic)]).fetchall()[0][0])

    def spellings(
        self, shapes: Sequence[TableShape], excluded: Container[str]
    ) -> list[tuple[str, str, int, int]]:
        """Return topic, key encoding, number of its keys that have a row, and their newest timestamp.

        Keys are counted only if it matters: in topics with several key encodings, or if others were found
        (``excluded``).
        """
        encodings: list[tuple[str, str, int, int]] = []
        for topic in [shape.table.topic for shape in shapes]:
            ways = [(number, newest) for (name, number), newest in self._newest.items() if name == topic]
            counts: dict[int, int] = {}
            if len(ways) > 1 or topic in excluded:
                counts = dict(self._store.execute(_SPELLINGS, [self.number(topic)]).fetchall())
            encodings += [(topic, str(number), counts.get(number, 0), newest) for number, newest in ways]
        return encodings

    def places(self, topic: str) -> dict[int, Int64]:
        """Return partition → the sorted offsets of the suspects' latest records."""
        records = self._store.execute(
            """select partition_id, max(log_offset) as log_offset
                 from record_digest semi join (select distinct key0, key1 from suspect) using (key0, key1)
                where topic = ?
                group by key0, key1, spelling, partition_id order by all""",
            [self.number(topic)],
        ).fetchnumpy()
        partitions, offsets = np.asarray(records["partition_id"]), np.asarray(records["log_offset"])
        return {int(number): offsets[partitions == number] for number in np.unique(partitions)}

    def suspect_rows(
        self, snapshot: Connection, shape: TableShape
    ) -> Iterator[list[tuple[RowTexts, tuple[int, int], int]]]:
        """Yield the rows that are suspects, with their digests, and the number of copies in the topic."""
        cursor = self._store.cursor()
        cursor.execute(
            """select table_oid, block, line, row0, row1, copies
                 from suspect where block is not null order by all"""
        )
        while fetched := cursor.fetchmany(CHUNK):
            for table_oid, some in groupby(fetched, lambda one: int(one[0])):
                expected = {(block, line): (digest, copies) for _, block, line, *digest, copies in some}
                rows = rows_at(snapshot, shape, table_oid, list(expected))
                yield [(rows[at], (*digest,), copies) for at, (digest, copies) in expected.items()]
        cursor.close()


def records_at(
    config: Config, topic: str, places: Mapping[int, Int64]
) -> Iterator[tuple[Split, ScannedMessages]]:
    """Yield the records at ``places``, partition → sorted offsets; removed records have newer ones.

    Raises ConnectionFailed.
    """
    for partition, offsets in places.items():
        split = Split(topic, partition, int(offsets[0]), int(offsets[-1]) + 1)
        if split.high - split.low > LEAP * len(offsets):
            scan: SplitScan = SeekingScan(
                config, (topic, partition), offsets.tolist(), "read_committed", _PATIENCE_SECONDS
            )
        else:
            scan = SplitScan(config, split, "read_committed", _PATIENCE_SECONDS)
        for part in scan:
            if part.offsets:
                first, end = np.searchsorted(offsets, [part.offsets[0], part.offsets[-1] + 1]).tolist()
                requested = offsets[first:end].tolist()
                positions = [bisect_left(part.offsets, offset) for offset in requested]
                chosen = [
                    at for at, offset in zip(positions, requested, strict=True) if part.offsets[at] == offset
                ]
                messages = [part.messages[at] for at in chosen]
                yield split, ScannedMessages(messages, [part.offsets[at] for at in chosen], [])


_SPELLINGS = f"""
select spelling, count(*) filter (state <> {TOMBSTONE})
  from (select spelling, arg_max(state, log_offset) as state from record_digest
         where topic = ? group by spelling, key0, key1, partition_id)
 group by spelling
"""
_LATEST = f"""
create or replace temp table latest_digest as
select key0, key1, spelling, arg_max(state, log_offset) as state, arg_max(row0, log_offset) as row0,
       arg_max(row1, log_offset) as row1,
       min(partition_id) <> max(partition_id) or bool_or(is_away and state <> {TOMBSTONE}) as is_spread
  from record_part group by key0, key1, spelling
"""
_EQUAL = f"not l.is_spread and l.state = {ROW} and l.row0 = t.row0 and l.row1 = t.row1"
_AGREED = f"""
select count(*) from (select * from latest_digest where spelling = $spelling) as l
  join row_part as t using (key0, key1)
 where {_EQUAL}
"""
_SUSPECTS = f"""
insert into suspect
select coalesce(l.key0, t.key0), coalesce(l.key1, t.key1), $spelling, t.table_oid, t.block, t.line, t.row0,
       t.row1, null
  from (select * from latest_digest where spelling = $spelling) as l
  full join row_part as t using (key0, key1)
 where not coalesce({_EQUAL}, false)
   and not (t.key0 is null and l.state = {TOMBSTONE} and not l.is_spread)
union all
select key0, key1, spelling, null, null, null, null, null, null
  from latest_digest where spelling <> $spelling and (state <> {TOMBSTONE} or is_spread)
"""
#: Without a key: rows that the table has more often than the topic.
_SURPLUS = f"""
insert into suspect
select 0, 0, 0, t.table_oid, t.block, t.line, t.row0, t.row1, coalesce(r.copies, 0)
  from (select *, count(*) over (partition by row0, row1) as copies from row_part) as t
  left join (select row0, row1, count(*) as copies from record_part
              where state = {ROW}
              group by row0, row1) as r using (row0, row1)
 where t.copies > coalesce(r.copies, 0)
"""


# Tables as digests of their rows, computed by PostgreSQL: row values never leave it.
#
# A table is read block by block in ranges of ``ctid``, with one statement and one result value each, so that
# Python sees no rows. The digest is that of `bwtui.verify.canonical`, with the row's location, which stays
# the same as long as the snapshot exists.

#: Number of blocks that one statement reads: at most some hundred thousand short rows.
_BLOCKS = 2_000
_LINE = np.dtype([("block", ">u4"), ("line", ">u2"), ("table_oid", ">u4"), ("words", "<u8", (4,))])


def digest_table(
    snapshot: Connection, store: duckdb.DuckDBPyConnection, shape: TableShape, number: int
) -> None:
    """Put the rows of a table into ``row_digest``, under the table's ``number``.

    Raises psycopg2.Error.
    """
    assert shape.records is not None
    for digests in _ranges(snapshot, shape):
        lines = np.frombuffer(digests, _LINE)
        words = np.ascontiguousarray(lines["words"])
        columns: dict[str, Any] = {f"{name}{half}": words[:, at * 2 + half]
                                   for at, name in enumerate(("key", "row")) for half in (0, 1)}  # fmt: skip
        columns["part"] = columns["key0" if shape.records.key is not None else "row0"] % PARTS
        for name in ("block", "line", "table_oid"):
            columns[name] = lines[name].astype(lines[name].dtype.newbyteorder("="))
        store.register("digested_rows", pa.table(columns))
        store.execute(
            """insert into row_digest
               select ?, part, key0, key1, row0, row1, table_oid, block, line from digested_rows""",
            [number],
        )
        store.unregister("digested_rows")


def _ranges(snapshot: Connection, shape: TableShape) -> Iterator[memoryview]:
    assert shape.records is not None
    # Without a key, the key's digest is zero.
    key = "pg_catalog.repeat('0', 32)" if shape.records.key is None else _md5(shape.records.key.sql())
    line = (
        "pg_catalog.tidsend(ctid) || pg_catalog.oidsend(tableoid)"
        f" || pg_catalog.decode({key} || {_md5(shape.records.row.sql())}, 'hex')"
    )
    for low in range(0, shape.records.blocks + 1, _BLOCKS):
        # The last range is open-ended.
        end = f" and ctid < '({low + _BLOCKS},0)'" if low + _BLOCKS <= shape.records.blocks else ""
        ((digests,),) = query(
            snapshot,
            f"select pg_catalog.string_agg({line}, ''::pg_catalog.bytea) {from_table(shape)}"
            f" and ctid >= '({low},0)'{end}",
        )
        if digests is not None:
            yield digests


def _md5(record: str) -> str:
    return f"pg_catalog.md5({record})"
