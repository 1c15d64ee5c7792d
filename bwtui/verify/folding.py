"""Topics folded to the latest record of each key, and compared with tables; in DuckDB, which may spill.

`Fold` keeps these tables: ``latest`` (a record for each key and partition), ``come`` (records since it was
folded), ``doubt`` (keys that differed at the fence before), ``fresh`` (those of this one), ``moved`` (keys in
doubt of which something came since), ``history`` (all that may be the latest record of a key in doubt at the
fence), ``agreed``, ``wrong`` and ``counted``: rows without a
key, and what was sent under none, or another one, than the table's.
"""

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from bwtui.audit.decoding import Schemas, Undecodable
from bwtui.audit.forms import Row, decode, decode_key
from bwtui.kafka.client import Config
from bwtui.kafka.offsets import Pinned
from bwtui.kafka.scan import Delivered, SplitScan
from bwtui.kafka.splits import Split
from bwtui.source.connection import Connection
from bwtui.verify.tables import CHUNK, Shape, rows

_PATIENCE_SECONDS = 5.0
#: What is said of a key whose columns the table's key does not have, and of a row that stands under such a
#: key, or under none.
_OTHER = "a key of other columns than the table's"
_SENT = "the row was sent before the table had this key"
#: Stands between what a key says and how it is written, where that is not how its topic's keys are.
SPELLED = "\x01"
_SPELLED = "the topic's other keys are in other bytes: no later change of the row reaches this one"
_ALONE = "the row stands under this key in other bytes alone"
#: So many records are folded at a time.
_FOLD = 500_000
_ODD = "topic varchar, key varchar, class varchar, fields varchar, p integer, o bigint, note varchar"
_RECORD = "topic varchar, key varchar, p integer, o bigint, ts bigint, value blob"
_TABLES = {
    "latest": _RECORD,
    "come": _RECORD,
    "doubt": _ODD,
    "fresh": _ODD,
    "wrong": _ODD,
    "undecided": _ODD,
    "moved": "topic varchar, key varchar",
    "history": _RECORD,
    "agreed": "topic varchar, key varchar",
    "there": "key varchar, row varchar",
    "counted": "topic varchar, digest varchar, n bigint",
}


class Fold:
    """What the topics say, and where the tables say something else."""

    def __init__(self, store: duckdb.DuckDBPyConnection, config: Config, schemas: Schemas) -> None:
        self._store = store
        self._config = config
        self._schemas = schemas
        self._read_to: dict[tuple[str, int], int] = {}
        self._come = 0
        #: Topics of which not everything can be seen, and those that may have lost records by right.
        self._hidden: set[str] = set()
        self._unproven: set[str] = set()
        #: Topics of tables without a key; of those of the others, how many records have none.
        self._keyless: set[str] = set()
        self.without_key: Counter[str] = Counter()
        #: Of each topic, how many offsets are in batches that can't be read.
        self.damaged: Counter[str] = Counter()
        #: How the keys of a topic are written, most of them.
        self._spelling: dict[str, str] = {}
        #: Rows of the tables, and those of which columns were not sent.
        self.rows = 0
        self.unsent = 0
        store.execute("set preserve_insertion_order = false; set memory_limit = '1500MB'")
        for name, columns in _TABLES.items():
            store.execute(f"create table {name} ({columns})")

    # -- topics ----------------------------------------------------------------------------------------------

    def read(self, pinned: Pinned, found: Sequence[Shape]) -> None:
        """Fold what has come since; keep the keys in doubt of which something came."""
        self._hidden.clear()
        self._store.execute("delete from moved; delete from history")
        self._store.execute("insert into history select * from latest semi join doubt using (topic, key)")
        by_topic = {shape.table.topic: shape for shape in found}
        for (topic, partition), (low, high) in pinned.offsets.items():
            if low > 0:
                self._unproven.add(topic)
            start = max(low, self._read_to.get((topic, partition), low))
            self._read_to[topic, partition] = high
            self._read_split(Split(topic, partition, start, high), by_topic[topic])
        self._fold()
        self._learn_spellings()

    def _learn_spellings(self) -> None:
        """Take the bytes in which most keys of a topic are for those of its keys; others are other keys."""
        found = self._store.execute(
            """select topic, spelling
                 from (select topic, split_part(key, chr(1), 2) as spelling, count(value) as n, max(ts) as ts
                         from latest
                        where starts_with(key, '[') and contains(key, chr(1))
                          and not list_contains(?::varchar[], topic)
                        group by all)
               qualify row_number() over (partition by topic order by n desc, ts desc, spelling) = 1""",
            [list(self._spelling)],
        ).fetchall()
        for topic, found_spelling in found:
            self._spelling[topic] = found_spelling
            self._store.execute(
                "update latest set key = split_part(key, chr(1), 1)"
                " where topic = ? and starts_with(key, '[') and split_part(key, chr(1), 2) = ?",
                [topic, found_spelling],
            )
            # A topic that had none before: all of its keys have come since.
            for table, columns in (("moved", "distinct topic, key"), ("history", "*")):
                self._store.execute(
                    f"insert into {table} select {columns} from latest semi join doubt using (topic, key)"
                    " where topic = ?",
                    [topic],
                )

    def _read_split(self, split: Split, shape: Shape) -> None:
        for part in SplitScan(self._config, split, "read_committed", _PATIENCE_SECONDS):
            for hole in part.holes:
                if hole.kind == "open":
                    # What is behind is seen once its transaction has ended.
                    self._read_to[split.topic, split.partition] = hole.low
                    self._hidden.add(split.topic)
                elif hole.kind == "damaged":
                    # Nobody can say which keys had their latest record there.
                    self.damaged[split.topic] += hole.high - hole.low
                    self._unproven.add(split.topic)
            if not shape.table.key:
                self._keyless.add(split.topic)
                self._count(shape, [message.value() for message in part.messages])
                continue
            self._take(shape, split, part)
            if self._come >= _FOLD:
                self._fold()

    def _take(self, shape: Shape, split: Split, part: Delivered) -> None:
        """Take what has a key; a record without one is no key's latest value."""
        come, others = [], []
        for message, offset in zip(part.messages, part.offsets, strict=True):
            data, value = message.key(), message.value()
            key = None if data is None else self._key(shape, data)
            if key is not None:
                come.append((split.topic, key, split.partition, offset, message.timestamp()[1], value))
            if key is None or key.startswith("{"):
                others.append(value)
            self.without_key[split.topic] += key is None
        self._put("come", come)
        self._come += len(come)
        self._count(shape, others)

    def _key(self, shape: Shape, data: bytes) -> str:
        """Return a key as the texts of its columns, and how it is written, or what can't be one."""
        try:
            row, spelled = decode_key(data, self._schemas)
        except Undecodable:
            return f"undecodable {data.hex()}"
        key = shape.key_of(row)
        return key if spelled == self._spelling.get(shape.table.topic) else f"{key}{SPELLED}{spelled}"

    def _fold(self) -> None:
        self._store.execute("""
            insert into moved select distinct topic, key from come semi join doubt using (topic, key)""")
        self._store.execute("insert into history select * from come semi join doubt using (topic, key)")
        self._store.execute("""
            create or replace table latest as
            select * from (select * from come union all select * from latest)
            qualify row_number() over (partition by topic, key, p order by o desc) = 1""")
        self._store.execute("delete from come")
        self._come = 0

    def _count(self, shape: Shape, values: Sequence[bytes | None]) -> None:
        found: Counter[str] = Counter()
        for data in values:
            # What can't be read is no row of the table.
            with contextlib.suppress(Undecodable):
                if data is not None:
                    row = decode(data, self._schemas)
                    found[_digest(json.dumps(shape.row_of(row)))] += 1
                    if row.unsent:
                        self._unproven.add(shape.table.topic)
        self._put("counted", [(shape.table.topic, digest, number) for digest, number in found.items()])

    # -- tables ----------------------------------------------------------------------------------------------

    def compare(self, snapshot: Connection, shape: Shape, *, again: bool, is_last: bool) -> None:
        """Put the keys whose latest record is not their row into `fresh`; ``again``: of those in doubt.

        ``is_last``: of a key that was written to at every look any record will do that may have been its
        latest one at the fence.
        """
        if not shape.table.key:
            self._compare_counts(snapshot, shape)
            return
        keys = self._asked(shape) if again else None
        if again and not self._one("select count(*) from doubt where topic = ?", shape.table.topic):
            return
        self._store.execute("delete from there")
        for some in rows(snapshot, shape, keys):
            self.rows += 0 if again else len(some)
            self._put("there", some)
        for found in self._pairs(shape.table.topic, again):
            judged = [self._judge(shape, *row, again=again) for row in found]
            self._put("fresh", [one for one in judged if one is not None])
        self._store.execute(
            f"""update fresh set note = '{_SENT}' from there as t
                 where topic = $topic and class = 'missing_key' and t.key = fresh.key
                   and md5(t.row) in (select digest from counted where topic = $topic)""",
            {"topic": shape.table.topic},
        )
        self._store.execute(
            # By equality, which is hashed: a prefix would be looked for in each pair of keys.
            """update fresh set note = $note
                  from (select distinct split_part(key, chr(1), 1) as key from latest
                         where topic = $topic and value is not null and contains(key, chr(1))) as l
                 where fresh.topic = $topic and class = 'missing_key' and l.key = fresh.key""",
            {"topic": shape.table.topic, "note": _ALONE},
        )
        if is_last and shape.table.topic not in self._hidden:
            self._agree(shape)

    def _agree(self, shape: Shape) -> None:
        topic = shape.table.topic
        cursor = self._store.cursor()
        cursor.execute(
            """select f.key, t.row, h.value
                 from fresh as f left join there as t using (key)
                 join history as h on h.topic = f.topic and h.key = f.key
                where f.topic = $topic
               union all
               -- What has come first may have come behind the fence.
               select f.key, t.row, null
                 from fresh as f left join there as t using (key) semi join moved as m
                   on m.topic = f.topic and m.key = f.key
                where f.topic = $topic and t.row is null""",
            {"topic": topic},
        )
        while found := cursor.fetchmany(CHUNK):
            same = [key for key, row, value in found if not self._judge(shape, key, row, value, again=True)]
            self._put("agreed", [(topic, key) for key in same])
        cursor.close()

    def _asked(self, shape: Shape) -> list[str] | None:
        """Return the keys in doubt, or None where it is better to read the whole table."""
        if not shape.has_plain_keys:
            return None
        found = self._store.execute(
            "select key from doubt where topic = ? limit ?", [shape.table.topic, CHUNK + 1]
        ).fetchall()
        keys = [key for (key,) in found]
        # What is written in other bytes is no key of the table's. Bytes that are no text can't be asked for.
        keys = [key for key in keys if SPELLED not in key]
        return keys if len(keys) <= CHUNK and not any("\\u0000" in key for key in keys) else None

    def _pairs(self, topic: str, again: bool) -> Iterator[list[tuple[Any, ...]]]:
        """Yield key, row, value, partition and offset of each key that one of the sides has."""
        asked = "semi join (select key from doubt where topic = $topic) as asked using (key)" if again else ""
        cursor = self._store.cursor()
        # A key may stand in several partitions, if somebody added some: the newest record holds.
        cursor.execute(
            f"""select coalesce(l.key, t.key), t.row, l.value, l.p, l.o
                  from (select * from latest {asked} where topic = $topic
                        qualify row_number() over (partition by key order by ts desc, o desc) = 1) as l
                  full join (select * from there {asked}) as t on t.key = l.key""",
            {"topic": topic},
        )
        while found := cursor.fetchmany(CHUNK):
            yield found
        cursor.close()

    def _judge(
        self, shape: Shape, key: str, row: str | None, value: bytes | None, *place: int | None, again: bool
    ) -> tuple[Any, ...] | None:
        topic = shape.table.topic
        if row is None:
            note = _OTHER if key.startswith("{") else _SPELLED if SPELLED in key else None
            return None if value is None else (topic, key, "extra_key", "[]", *place, note)
        if value is None:
            return topic, key, "missing_key", "[]", *place, None
        try:
            found = decode(value, self._schemas)
        except Undecodable:
            return topic, key, "different_row", "[]", *place, "the value can't be decoded"
        self.unsent += bool(found.unsent) and not again
        fields = _differing(shape, json.loads(row), found)
        return (topic, key, "different_row", json.dumps(fields), *place, None) if fields else None

    def _compare_counts(self, snapshot: Connection, shape: Shape) -> None:
        topic = shape.table.topic
        self._store.execute("delete from there")
        for some in rows(snapshot, shape, None):
            self.rows += len(some)
            self._put("there", [(_digest(row), row) for _, row in some])
        # An UPDATE that is not published, or a log that has lost its beginning, proves nothing.
        into = "wrong" if shape.is_identified and topic not in self._unproven | self._hidden else "undecided"
        self._store.execute(
            f"""insert into {into}
                select $topic, t.row, 'missing_row', '[]', null, null,
                       concat(n, ' in the table, ', there, ' in the topic')
                  from (select any_value(t.row) as row, count(*) as n, coalesce(any_value(c.n), 0) as there
                          from there as t
                          left join (select digest, sum(n)::bigint as n from counted
                                      where topic = $topic group by digest) as c on c.digest = t.key
                         group by t.key) as t, range(t.n - t.there)""",
            {"topic": topic},
        )

    def settle(self, *, is_first: bool) -> int:
        """Decide what nothing came of since it differed before; return how many keys are in doubt now."""
        if is_first:
            self._store.execute("insert into doubt select * from fresh")
        else:
            hidden = sorted(self._hidden)
            decided = "from fresh anti join moved using (topic, key) where topic not in (select unnest(?))"
            self._store.execute(f"insert into wrong select * {decided}", [hidden])
            self._store.execute("delete from doubt")
            self._store.execute(
                "insert into doubt select * from fresh anti join wrong using (topic, key)"
                " anti join agreed using (topic, key)"
            )
        self._store.execute("delete from fresh")
        return int(self._one("select count(*) from doubt"))

    # -- what was found --------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return class → number; what is still in doubt is indeterminate."""
        self._store.execute("insert into undecided select * from doubt; delete from doubt")
        found = dict(self._store.execute("select class, count(*) from wrong group by class").fetchall())
        return found | {"indeterminate": self._one("select count(*) from undecided")}

    def keys(self) -> int:
        """Return how many keys have a latest value, and how many rows without a key there are."""
        return int(
            self._one("select count(distinct (topic, key)) from latest where value is not null")
            + self._one(
                "select coalesce(sum(n), 0)::bigint from counted where topic in (select unnest(?))",
                sorted(self._keyless),
            )
        )

    def findings(self, samples: int) -> list[tuple[Any, ...]]:
        """Return topic, key, class, fields, partition, offset and note of the first of each class."""
        return self._store.execute(
            """select * from (select * from wrong union all by name
                              select * replace ('indeterminate' as class) from undecided)
               qualify row_number() over (partition by class order by topic, key) <= ?
               order by class, topic, key""",
            [samples],
        ).fetchall()

    def _one(self, sql: str, *values: Any) -> Any:
        return self._store.execute(sql, list(values)).fetchall()[0][0]

    def _put(self, table: str, found: Sequence[tuple[Any, ...]]) -> None:
        if found:
            columns = [list(column) for column in zip(*found, strict=True)]
            made = pa.table(columns, names=[f"c{number}" for number in range(len(columns))])
            self._store.register("put", made)
            self._store.execute(f"insert into {table} select * from put")
            self._store.unregister("put")


def _digest(row: str) -> str:
    return hashlib.md5(row.encode(), usedforsecurity=False).hexdigest()


def _differing(shape: Shape, row: Mapping[str, str | None], found: Row) -> list[tuple[str, Any, Any]]:
    """Return the columns that differ, with what the table and what the topic says."""
    there = shape.row_of(found)
    return [(name, row[name], there[name]) for name in there if there[name] != row[name]]
