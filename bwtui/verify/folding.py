"""Topics folded to the latest record of each key, and compared with tables; in DuckDB, which may spill."""

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, groupby
from typing import Any, Literal, NamedTuple

import duckdb
import numpy as np
from numpy.typing import NDArray

from bwtui.audit.canonical_values import DecodedRow, Schemas, UndecodableMessage, decode, decode_key, readable
from bwtui.audit.core import insert
from bwtui.kafka.client import Config
from bwtui.kafka.columns import hashes_of
from bwtui.kafka.scan import PinnedTopics, ScannedMessages, Split, SplitScan
from bwtui.source.connection import Connection
from bwtui.verify.agreement import Agreement, records_at
from bwtui.verify.tables import CHUNK, ComparedTable, TableShape, rows

# The tables that `bwtui.verify.folding.Fold` keeps in DuckDB.
#
# In all of them ``topic`` and ``key`` are texts. A key's text is JSON, followed by its encoding if that
# differs from its topic's other keys. ``partition_id`` and ``log_offset`` are the position of a record, and
# ``timestamp_ms`` is its timestamp in milliseconds since 1970:
#
# - ``latest``: the latest record of each key in each partition; ``arrived``: records read since the last
# fold. - ``differing``: keys that differ at this fence; ``doubtful``: those that differed at the previous
# one.   ``class`` and ``fields`` (JSON) say how, ``note`` why. ``key_bytes`` is the key of the topic's newest
# record, ``key_texts`` PostgreSQL's texts of the key (JSON) if they differ from those of ``key``. -
# ``doubted``: the content of ``doubtful`` after the first fence. - ``changed_key``: doubtful keys with a
# newer record; ``history``: every record that may have been a doubtful   key's latest at the fence;
# ``agreed``: keys for which one of these equals the row. - ``in_letter``: differing keys for which the relay
# has a dead letter. - ``wrong``: keys that are decided; ``undecided``: keys that can't be. - ``stray``: rows
# of keys whose newest record is in another partition, ``newest_id``, at the last fence; null:   the key
# belongs into a different partition. ``away`` has the latter. - ``table_row``: the rows of the table being
# compared, as texts; ``key_texts`` as above. - ``row_count``: how often (``n``) the topic had a row, by its
# MD5: rows without a key, and those sent without   one, or under a different key than the table's.

#: Separates a key's text from its encoding, if that differs from the topic's other keys.
SPELLED = "\x01"

_DIFFERENCE = (
    "topic varchar, key varchar, class varchar, fields varchar, partition_id integer, log_offset bigint,"
    " note varchar, key_bytes blob, key_texts varchar"
)
_RECORD = (
    "topic varchar, key varchar, partition_id integer, log_offset bigint, timestamp_ms bigint, value blob,"
    " key_bytes blob"
)
#: Name → columns.
TABLES = {
    "latest": _RECORD,
    "arrived": _RECORD,
    "doubtful": _DIFFERENCE,
    "differing": _DIFFERENCE,
    "wrong": _DIFFERENCE,
    "undecided": _DIFFERENCE,
    "stray": f"{_RECORD}, newest_id integer",
    "away": "topic varchar, key varchar, partition_id integer",
    "doubted": "topic varchar, key varchar, class varchar",
    "changed_key": "topic varchar, key varchar",
    "history": _RECORD,
    "agreed": "topic varchar, key varchar",
    "table_row": "key varchar, row varchar, key_texts varchar",
    "in_letter": "topic varchar, key varchar, note varchar",
    "row_count": "topic varchar, digest varchar, n bigint",
}


# Records whose schema the registry does not have, so that their rows are unknown.
#
# The registry may have lost schemas, or not be the relay's. Without the schemas of its keys, each row of a
# table would count as missing, and each record as an extra key. A single such record is more likely damaged,
# or another producer's.

_RECORDS = """
select topic, part, ('0x' || substr(head, 3))::bigint as number, count(*) as n
  from (select topic, 'key' as part, substr(key, 13, 10) as head
          from latest where value is not null and starts_with(key, 'undecodable 00')
        union all
        select w.topic, 'value', substr(hex(l.value), 1, 10)
          from wrong as w join latest as l using (topic, key, partition_id, log_offset)
         where w.class = 'different_row' and starts_with(hex(l.value), '00'))
 where length(head) = 10
 group by all having n > 1 order by all
"""
#: The keys, and the rows that may be under one of them; the values.
_OF_KEYS = """
topic = $topic and (class = 'extra_key' and starts_with(key, 'undecodable 00' || $head)
                    or class = 'missing_key' and
                       $keys >= (select count(*) from wrong where topic = $topic and class = 'missing_key'))
"""
_OF_VALUES = """
topic = $topic and class = 'different_row'
and (partition_id, log_offset) in (
    select (partition_id, log_offset) from latest
     where topic = $topic and starts_with(hex(value), '00' || upper($head)))
"""


@dataclass(frozen=True, slots=True)
class UnknownSchema:
    """The number of keys, or values, of a topic that name a schema which the registry does not have."""

    topic: str
    part: Literal["key", "value"]
    number: int
    records: int

    @property
    def note(self) -> str:
        """The note for the report."""
        return (
            f"the schema registry has no schema {self.number}, to which {self.records:,} {self.part}s of "
            f"{self.topic} refer, so they can't be decoded; restore the schema, or check -r/--schema-registry"
        )


def undecide_unknown(store: duckdb.DuckDBPyConnection, unknown: Collection[int]) -> list[UnknownSchema]:
    """Move differences caused by a missing schema from ``wrong`` to ``undecided``; return those schemas.

    If more rows are missing than there are such keys, the rows stay in ``wrong``.
    """
    if not unknown:
        return []
    rows = store.execute(_RECORDS).fetchall()
    schemas = [UnknownSchema(*row) for row in rows if row[2] in unknown]
    for one in schemas:
        keys = sum(schema.records for schema in schemas if (schema.topic, schema.part) == (one.topic, "key"))
        where = _OF_KEYS if one.part == "key" else _OF_VALUES
        parameters: dict[str, str | int] = {"topic": one.topic, "head": f"{one.number:08x}"}
        parameters |= {"keys": keys} if one.part == "key" else {}
        store.execute(f"insert into undecided select * from wrong where {where}", parameters)
        store.execute(f"delete from wrong where {where}", parameters)
    return schemas


# Every key in which a table and its topic differ, with everything that a repair of the topic needs.
#
# The report has samples for people. This module has all of them, with the key as PostgreSQL writes it, by
# which its row can be read again, and the bytes of the key in the topic.

#: Prefix of the note for a value that can't be decoded.
UNDECODABLE = "the value can't be decoded"

DoubtName = Literal[
    "unkeyed", "expired", "damaged", "open", "unknown_schema", "undecodable", "no_key", "unsent"
]  # fmt: skip
_DOUBTS: dict[DoubtName, str] = {
    "unkeyed": "table has no key, so only missing rows are found",
    "expired": "offsets are missing at the beginning of its log, or at its end",
    "damaged": "offsets are in batches that can't be read",
    "open": "or more transactions of other producers are open, and the records after them were not read",
    "unknown_schema": "records refer to schemas that the schema registry does not have: restore the "
    "schemas, or "
    "check -r/--schema-registry, and compare again",
    "undecodable": "keys or values can't be decoded: a different producer writes to this topic",
    "no_key": "records have no key: they are from before the table had one, or from a different producer",
    "unsent": "rows have placeholders for unchanged TOAST values, which were not compared",
}


#: Doubts that a relay does not resolve: consumers may have errors that no comparison can find.
UNTRUSTED: frozenset[DoubtName] = frozenset(
    {"expired", "damaged", "open", "unknown_schema", "undecodable", "no_key", "unsent"}
)


@dataclass(frozen=True, slots=True)
class Doubt:
    """The reason why a table's topic may be wrong even after its differing keys were re-sent."""

    name: DoubtName
    #: The description, with the number of cases.
    text: str


class LiveRecord(NamedTuple):
    """A partition in which the latest record of a key is a row, with that record's timestamp and key."""

    partition: int
    timestamp_ms: int
    key: bytes


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key, or a row without one, in which a table and its topic differ."""

    #: ``missing_key``, ``extra_key``, ``different_row``, ``missing_row``, or ``stray_row`` if only the newest
    #: record is right: docs/audit.md defines them.
    name: str
    #: Whether it is certain; otherwise it was written to in every round, or can't be proven.
    is_proven: bool
    #: The texts of the key's columns in key order, as PostgreSQL writes them; for an ``extra_key``, texts
    #: that it accepts. None: the table has no key, or no row of it can have this key in these bytes.
    key: tuple[str, ...] | None
    #: The key of the topic's newest record for it, which may be a tombstone; None if the topic has none.
    raw: bytes | None
    note: str | None
    #: The partitions in which the topic has a row of the key.
    places: tuple[LiveRecord, ...] = ()


def differences(store: duckdb.DuckDBPyConnection, shape: TableShape) -> Iterator[KeyDifference]:
    """Yield the differences between the table and its topic, in the order of keys."""
    cursor = store.cursor()
    cursor.execute(
        """with found as (
             select *, true as is_proven from wrong where topic = $topic union all by name
             select *, false as is_proven from undecided where topic = $topic)
           select class, is_proven, key, key_texts, found.key_bytes, note, place
             from (from found union all by name
                   select 'stray_row' as class, true as is_proven, key, any_value(key_bytes) as key_bytes
                     from stray anti join found using (key) where topic = $topic group by key) as found
             left join (select key, list((partition_id, timestamp_ms, key_bytes)) as place
                          from latest where topic = $topic and value is not null group by key) as l
            using (key) order by key""",
        {"topic": shape.table.topic},
    )
    while fetched := cursor.fetchmany(CHUNK):
        for name, is_proven, key, texts, raw, note, places in fetched:
            live_records = tuple(LiveRecord(*place) for place in places or ())
            yield KeyDifference(name, is_proven, _texts(shape, key, texts), raw, note, live_records)
    cursor.close()


def note_letters(
    store: duckdb.DuckDBPyConnection, shape: TableShape, letters: Mapping[tuple[str, ...], str]
) -> int:
    """Add a note to each differing key that has a dead letter; return the number of such keys.

    ``letters`` has the letters' IDs by the key's texts.
    """
    topic, number = shape.table.topic, 0
    cursor = store.cursor()
    cursor.execute("select key, key_texts from wrong where topic = ?", [topic])
    while fetched := cursor.fetchmany(CHUNK):
        notes = [
            (topic, key, f"dead letter {letters[names]} has a change of it")
            for key, texts in fetched
            if (names := _texts(shape, key, texts)) in letters and names is not None
        ]
        insert(store, "in_letter", notes)
        number += len(notes)
    cursor.close()
    store.execute(
        """update wrong set note = concat_ws('; ', wrong.note, l.note) from in_letter as l
            where wrong.topic = $topic and l.topic = $topic and l.key = wrong.key""",
        {"topic": topic},
    )
    return number


def _texts(shape: TableShape, key: str, texts: str | None) -> tuple[str, ...] | None:
    names = shape.table.key
    if not names or SPELLED in key or not key.startswith("["):
        return None
    values: list[Any] = json.loads(key if texts is None else texts)
    if texts is None:
        values = [readable(one, shape.forms[name]) for one, name in zip(values, names, strict=True)]
    # No row has NULL in its key. A trailing zero byte marks bytes that are not text.
    return None if any(one is None or one.endswith("\0") for one in values) else tuple(values)


def doubts(
    store: duckdb.DuckDBPyConnection, table: ComparedTable, counted: Mapping[DoubtName, int]
) -> list[Doubt]:
    """Return doubts about a topic, from the counts of reading it and from its latest records."""
    [(undecodable,)] = store.execute(
        """select (select count(*) from latest where topic = $topic and starts_with(key, 'undecodable '))
                  + (select count(*) from wrong where topic = $topic and starts_with(note, $note))
                  - (select count(*) from undecided
                      where topic = $topic and starts_with(key, 'undecodable '))""",
        {"topic": table.topic, "note": UNDECODABLE},
    ).fetchall()
    counts = {**counted, "unkeyed": int(not table.key), "undecodable": undecodable}
    return [Doubt(name, f"{counts[name]:,} {text}") for name, text in _DOUBTS.items() if counts.get(name)]


_PATIENCE_SECONDS = 5.0
#: Notes of findings: for a key with other columns than the table's, and for a row that was sent under such a
#: key or without one.
_UNREADABLE = "its key can't be decoded"
_OTHER = "its key has different columns than the table's key"
_SENT = "the row was sent before the table had this key"
_SPELLED = (
    "its key is encoded differently from the topic's other keys, so later changes of the row do not "
    "replace it"
)
_ALONE = "the topic has the row only under this differently encoded key"
#: Maximum number of records that are folded at a time.
_FOLD = 500_000


class Fold:
    """The topics' latest values in DuckDB, and their differences from the tables."""

    def __init__(
        self,
        store: duckdb.DuckDBPyConnection,
        config: Config,
        schemas: Schemas,
        partitioner: str = "",
        spellings: Mapping[str, str] | None = None,
    ) -> None:
        self._hashes = hashes_of(partitioner) if partitioner else None
        #: Topic → its number of partitions.
        self._partitions: dict[str, int] = {}
        self._store = store
        self._config = config
        self._schemas = schemas
        self._read_to: dict[tuple[str, int], int] = {}
        self._arrived = 0
        #: Topics with records after an open transaction, and those that may legitimately have lost records.
        self._hidden: set[str] = set()
        self._unproven: set[str] = set()
        #: Topic of a table with a key → number of records without one.
        self.without_key: Counter[str] = Counter()
        #: Topic → number of offsets in batches that can't be read.
        self.damaged: Counter[str] = Counter()
        #: Topic → number of offsets lost at its start or end by retention or a broker's failure.
        self._expired: Counter[str] = Counter()
        #: Topic → the encoding of its keys: that of ``spellings``, or otherwise of most of them.
        self._spelling = dict(spellings or {})
        #: Tables that are compared by digests first, and the number of equal keys that need no further
        #: comparison.
        self._quick: list[TableShape] = []
        self._agreement = Agreement(store, schemas)
        self._agreed = 0
        #: Rows of the tables, and the topics' keys with a value and rows without a key, at the first fence.
        self.rows = self.keys = 0
        #: Topic of a table without a key → how many more records it has than the table has rows.
        self.surplus: Counter[str] = Counter()
        #: Number of rows with columns that were not sent.
        self.unsent: Counter[str] = Counter()
        #: Records that can't be read because the registry does not have their schemas.
        self.unknown_schemas: list[UnknownSchema] = []
        store.execute("set preserve_insertion_order = false; set memory_limit = '1500MB'")
        for name, columns in TABLES.items():
            store.execute(f"create table {name} ({columns})")

    # -- topics ----------------------------------------------------------------------------------------------

    def read(self, pinned: PinnedTopics, snapshot: Connection, shapes: Sequence[TableShape]) -> None:
        """Read the topics on to the pinned ends and fold them; record which doubtful keys have newer records.

        The first time, tables are digested meanwhile if possible. Raises ConnectionFailed and psycopg2.Error.
        """
        self._hidden.clear()
        self._partitions |= {name: topic.partitions for name, topic in pinned.topics.items()}
        self._store.execute("delete from changed_key; delete from history")
        self._store.execute("insert into history select * from latest semi join doubtful using (topic, key)")
        self._quick = [shape for shape in shapes if shape.records is not None and not self._read_to]
        with self._agreement.digesting(snapshot, self._quick):
            by_topic = {shape.table.topic: shape for shape in shapes}
            for (topic, partition), (low, high) in pinned.offsets.items():
                if low > 0:
                    self._unproven.add(topic)
                if (topic, partition) not in self._read_to and pinned.topics[topic].deletes is not False:
                    self._expired[topic] += low
                start = max(low, self._read_to.get((topic, partition), low))
                self._read_to[topic, partition] = high
                self._read_split(Split(topic, partition, start, high), by_topic[topic])
        self._fold()
        find_key_encodings(self._store, self._agreement, self._quick, self._spelling)

    def _read_split(self, split: Split, shape: TableShape) -> None:
        parts: Iterable[ScannedMessages] = SplitScan(self._config, split, "read_committed", _PATIENCE_SECONDS)
        if shape in self._quick:
            parts = self._agreement.screened(shape, split, parts, self._find_away)
        for part in parts:
            for hole in part.holes:
                if hole.kind == "open":
                    # Records after it can be read once the transaction has ended.
                    self._read_to[split.topic, split.partition] = hole.low
                    self._hidden.add(split.topic)
                elif hole.kind == "damaged":
                    # Any key may have had its latest record there.
                    self.damaged[split.topic] += hole.high - hole.low
                    self._unproven.add(split.topic)
                elif hole.kind != "gap":
                    self._expired[split.topic] += hole.high - hole.low
            if not shape.table.key:
                self._count(shape, [message.value() for message in part.messages])
                continue
            self._take(shape, split, part)
            if self._arrived >= _FOLD:
                self._fold()

    def _take(self, shape: TableShape, split: Split, part: ScannedMessages) -> None:
        """Keep the records that have a key, and count the others."""
        arrived, remaining = [], []
        for message, offset in zip(part.messages, part.offsets, strict=True):
            data, value = message.key(), message.value()
            key = None if data is None else self._key(shape, data)
            if key is not None:
                place = (split.partition, offset, message.timestamp()[1])
                arrived.append((split.topic, key, *place, value, data))
            if key is None or key.startswith("{"):
                remaining.append(value)
            self.without_key[split.topic] += key is None
        self._put("arrived", arrived)
        self._arrived += len(arrived)
        self._count(shape, remaining)

    def _key(self, shape: TableShape, data: bytes) -> str:
        """Return a key as the texts of its columns, with its encoding, or a text for invalid ones."""
        try:
            row, spelled = decode_key(data, self._schemas)
            key = shape.key_of(row)
        except UndecodableMessage:
            return f"undecodable {data.hex()}"
        return key if spelled == self._spelling.get(shape.table.topic) else f"{key}{SPELLED}{spelled}"

    def _fold(self) -> None:
        self._store.execute("""
            insert into changed_key
            select distinct topic, key from arrived semi join doubtful using (topic, key)""")
        self._store.execute("insert into history select * from arrived semi join doubtful using (topic, key)")
        self._store.execute("""
            create or replace table latest as
            select * from (select * from arrived union all select * from latest)
            qualify row_number() over (partition by topic, key, partition_id order by log_offset desc) = 1""")
        self._store.execute("delete from arrived")
        self._arrived = 0

    def _count(self, shape: TableShape, values: Sequence[bytes | None]) -> None:
        counts: Counter[str] = Counter()
        for data in values:
            # A value that can't be decoded is not a row of the table.
            with contextlib.suppress(UndecodableMessage):
                if data is not None:
                    row = decode(data, self._schemas)
                    counts[_digest(json.dumps(shape.row_of(row)))] += 1
                    if row.unsent:
                        self._unproven.add(shape.table.topic)
        if not shape.table.key:
            self.surplus[shape.table.topic] += len(values) - counts.total()
        self._put("row_count", [(shape.table.topic, digest, number) for digest, number in counts.items()])

    # -- tables ----------------------------------------------------------------------------------------------

    def compare(self, snapshot: Connection, shape: TableShape, *, again: bool, is_last: bool) -> None:
        """Put the keys whose latest record differs from their row into `differing`.

        ``again``: only the doubtful keys. ``is_last``: a key that was written at every fence counts as equal
        if any record that may have been its latest one equals the row.
        """
        if not shape.table.key:
            self._compare_counts(snapshot, shape)
            return
        keys = self._keys_to_read(shape) if again else None
        if again and not self._one("select count(*) from doubtful where topic = ?", shape.table.topic):
            return
        self._store.execute("delete from table_row")
        if shape in self._quick and not again:
            self._load_suspects(snapshot, shape)
        else:
            for chunk in rows(snapshot, shape, keys):
                self.rows += 0 if again else len(chunk)
                self._put("table_row", chunk)
        for pairs in self._pairs(shape.table.topic, again):
            judged = [(self._judge(shape, *pair[:5], again=again), pair[5:]) for pair in pairs]
            self._put("differing", [(*one, *more) for one, more in judged if one is not None])
        self._store.execute(
            f"""update differing set note = '{_SENT}' from table_row as t
                 where topic = $topic and class = 'missing_key' and t.key = differing.key
                   and md5(t.row) in (select digest from row_count where topic = $topic)""",
            {"topic": shape.table.topic},
        )
        self._store.execute(
            # By equality, which is hashed: a prefix would be tested for each pair of keys.
            """update differing set note = $note
                  from (select distinct split_part(key, chr(1), 1) as key from latest
                         where topic = $topic and value is not null and contains(key, chr(1))) as l
                 where differing.topic = $topic and class = 'missing_key' and l.key = differing.key""",
            {"topic": shape.table.topic, "note": _ALONE},
        )
        if is_last and shape.table.topic not in self._hidden:
            self._agree(shape)

    def _load_suspects(self, snapshot: Connection, shape: TableShape) -> None:
        """Read the records and rows again that the digests of a table do not prove to be equal."""
        topic = shape.table.topic
        self.rows += self._agreement.rows(shape)
        self._agreed += self._agreement.suspect(shape, self._spelling.get(topic, ""))
        for split, part in records_at(self._config, topic, self._agreement.places(topic)):
            self._take(shape, split, part)
        self._fold()
        for batch in self._agreement.suspect_rows(snapshot, shape):
            self._put("table_row", [row for row, *_ in batch])

    def _agree(self, shape: TableShape) -> None:
        topic = shape.table.topic
        cursor = self._store.cursor()
        cursor.execute(
            """select f.key, t.row, h.value
                 from differing as f left join table_row as t using (key)
                 join history as h on h.topic = f.topic and h.key = f.key
                where f.topic = $topic
               union all
               -- A key's first record may have come after the fence.
               select f.key, t.row, null
                 from differing as f left join table_row as t using (key) semi join changed_key as m
                   on m.topic = f.topic and m.key = f.key
                where f.topic = $topic and t.row is null""",
            {"topic": topic},
        )
        while fetched := cursor.fetchmany(CHUNK):
            same = [key for key, row, value in fetched if not self._judge(shape, key, row, value, again=True)]
            self._put("agreed", [(topic, key) for key in same])
        cursor.close()

    def _keys_to_read(self, shape: TableShape) -> list[str] | None:
        """Return the doubtful keys, or None if it is better to read the whole table."""
        sql = "select key from doubtful where topic = ?"
        keys = [key for (key,) in self._store.execute(sql, [shape.table.topic]).fetchall()]
        # A key in different bytes is not a key of the table. Bytes that are not text can't be queried.
        keys = [key for key in keys if SPELLED not in key]
        is_few = bool(shape.key_types) or len(keys) <= CHUNK
        return keys if shape.has_plain_keys and is_few and not any("\\u0000" in key for key in keys) else None

    def _pairs(self, topic: str, again: bool) -> Iterator[list[tuple[Any, ...]]]:
        """Yield key, row, value, partition, offset, key bytes and key texts of each key that either side
        has.
        """
        restriction = (
            "semi join (select key from doubtful where topic = $topic) as asked using (key)" if again else ""
        )
        cursor = self._store.cursor()
        # A key may be in several partitions, if some were added: its newest record counts.
        cursor.execute(
            f"""select coalesce(l.key, t.key), t.row, l.value, l.partition_id, l.log_offset,
                       l.key_bytes, t.key_texts
                  from (select * from latest {restriction} where topic = $topic
                        qualify row_number() over (partition by key
                                                   order by timestamp_ms desc, log_offset desc) = 1) as l
                  full join (select * from table_row {restriction}) as t on t.key = l.key""",
            {"topic": topic},
        )
        while fetched := cursor.fetchmany(CHUNK):
            yield fetched
        cursor.close()

    def _judge(
        self,
        shape: TableShape,
        key: str,
        row: str | None,
        value: bytes | None,
        *place: int | None,
        again: bool,
    ) -> tuple[Any, ...] | None:
        topic = shape.table.topic
        if row is None:
            note = _OTHER if key.startswith("{") else _SPELLED if SPELLED in key else None
            note = _UNREADABLE if key.startswith("undecodable ") else note
            return None if value is None else (topic, key, "extra_key", "[]", *place, note)
        if value is None:
            return topic, key, "missing_key", "[]", *place, None
        try:
            decoded, texts = decode(value, self._schemas), json.loads(row)
            fields = _differing(shape, texts, decoded)
        except UndecodableMessage as error:
            return topic, key, "different_row", "[]", *place, f"{UNDECODABLE}: {error}"
        self.unsent[topic] += bool(decoded.unsent) and not again
        if not fields:
            return None
        note = shape.history.explanation(texts, list(decoded.values), [name for name, *_ in fields])
        return topic, key, "different_row", json.dumps(fields), *place, note

    def _compare_counts(self, snapshot: Connection, shape: TableShape) -> None:
        topic = shape.table.topic
        self._store.execute("delete from table_row")
        before, records = self.rows, 0
        if shape in self._quick:
            records = self._load_surplus(snapshot, shape)
        else:
            for chunk in rows(snapshot, shape, None):
                self.rows += len(chunk)
                self._put("table_row", [(_digest(row), row, None) for _, row, _ in chunk])
        sql = "select coalesce(sum(n), 0)::bigint from row_count where topic = ?"
        records += self._one(sql, topic)
        self.keys += records
        self.surplus[topic] += max(0, records - (self.rows - before))
        # An unpublished UPDATE, or a log that has lost its start, proves nothing.
        into = "wrong" if shape.is_identified and topic not in self._unproven | self._hidden else "undecided"
        self._store.execute(
            f"""insert into {into}
                select $topic, t.row, 'missing_row', '[]', null, null,
                       concat(n, ' in the table, ', in_topic, ' in the topic'), null, null
                  from (select any_value(t.row) as row, count(*) as n, coalesce(any_value(c.n), 0) as in_topic
                          from table_row as t
                          left join (select digest, sum(n)::bigint as n from row_count
                                      where topic = $topic group by digest) as c on c.digest = t.key
                         group by t.key) as t, range(t.n - t.in_topic)""",
            {"topic": topic},
        )

    def _load_surplus(self, snapshot: Connection, shape: TableShape) -> int:
        """Read the rows that the table has more often than the topic, by their digests.

        Return the number of the topic's records that are not compared one by one.
        """
        self.rows += self._agreement.rows(shape)
        self._agreement.suspect(shape, "")
        counted: set[tuple[int, int]] = set()
        agreed = self._agreement.records(shape)
        for batch in self._agreement.suspect_rows(snapshot, shape):
            self._put("table_row", [(_digest(row), row, None) for (_, row, _), _, _ in batch])
            for (_, row, _), digest, copies in batch:
                if digest not in counted:
                    counted.add(digest)
                    agreed -= copies
                    self._put("row_count", [(shape.table.topic, _digest(row), copies)])
        return agreed

    def settle(self, *, is_first: bool) -> int:
        """Decide the keys without a newer record since they differed; return how many are still doubtful."""
        if is_first:
            self._agreement.close()
            self.keys += self._agreed + self._count_keys()
            self._store.execute("insert into doubtful select * from differing")
            self._store.execute("insert into doubted select topic, key, class from doubtful")
        else:
            hidden = sorted(self._hidden)
            self._store.execute(
                "insert into wrong select * from differing anti join changed_key using (topic, key)"
                " where topic not in (select unnest(?))",
                [hidden],
            )
            self._store.execute("delete from doubtful")
            self._store.execute(
                "insert into doubtful select * from differing anti join wrong using (topic, key)"
                " anti join agreed using (topic, key)"
            )
        self._store.execute("delete from differing")
        return int(self._one("select count(*) from doubtful"))

    # -- what was found --------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return class → number; keys still in doubt are indeterminate. Call this only once."""
        self._store.execute("insert into undecided select * from doubtful; delete from doubtful")
        self._find_strays()
        self.unknown_schemas = undecide_unknown(self._store, self._schemas.unknown)
        counts = dict(self._store.execute("select class, count(*) from wrong group by class").fetchall())
        # Keys that became equal at a later fence were written after the first one: there both sides had them,
        # or neither.
        self.keys += self._one(
            """select coalesce(sum(if(class = 'missing_key', 1, -1)), 0)::bigint from doubted
                where class in ('missing_key', 'extra_key')
                  and (topic, key) not in (from (select topic, key from wrong union all
                                                 select topic, key from undecided))"""
        )
        counts["stray_row"] = self._one("select count(*) from stray")
        return counts | {"indeterminate": self._one("select count(*) from undecided")}

    def _find_away(self, split: Split, keys: Sequence[bytes | None]) -> NDArray[np.bool_]:
        """Return which keys belong into another partition, if the producer's partitioner is known."""
        if self._hashes is None:
            return np.zeros(len(keys), np.bool_)
        hashes = self._hashes([key or b"" for key in keys])
        is_away: NDArray[np.bool_] = hashes % self._partitions[split.topic] != split.partition
        return is_away

    def _find_rows_away(self) -> None:
        """Record rows in another partition than their key's as strays: the next record is sent elsewhere."""
        cursor = self._store.cursor()
        cursor.execute(
            """select topic, key, partition_id, key_bytes from latest
                 anti join stray using (topic, key)
                where value is not null order by topic, partition_id"""
        )
        while fetched := cursor.fetchmany(CHUNK):
            for (topic, partition), some in groupby(fetched, lambda one: (one[0], one[2])):
                _, keys, _, raw = zip(*some, strict=True)
                is_away = self._find_away(Split(topic, partition, 0, 0), raw)
                self._put("away", [(topic, key, partition) for key in compress(keys, is_away)])
        cursor.close()
        self._store.execute(
            """insert into stray
               select l.*, null from latest as l semi join away using (topic, key, partition_id)"""
        )

    def differing(self) -> set[str]:
        """Return the topics with anomalies that no dead letter explains; call it after `counts`."""
        sql = "select topic from wrong anti join in_letter using (topic, key) union select topic from stray"
        return {topic for (topic,) in self._store.execute(sql).fetchall()}

    def _find_strays(self) -> None:
        """Find rows that a consumer of one partition keeps although another one has the key's newest record.

        The same applies to a row in a partition that is not its key's. After an open transaction there may be
        records that delete them.
        """
        self._store.execute(
            """insert into stray
               select l.*, n.partition_id
                 from latest as l
                 join (select topic, key, partition_id from latest
                       qualify row_number() over (partition by topic, key
                                                  order by timestamp_ms desc, log_offset desc) = 1) as n
                using (topic, key)
                where l.value is not null and l.partition_id <> n.partition_id"""
        )
        if self._hashes is not None:
            self._find_rows_away()
        # A key that the table does not have is one finding, in however many partitions it has a row.
        self._store.execute(
            "delete from stray using wrong as w"
            " where w.class = 'extra_key' and (w.topic, w.key) = (stray.topic, stray.key)"
        )
        self._store.execute(
            """insert into undecided
               select topic, key, 'stray_row', '[]', partition_id, log_offset, null, key_bytes, null
                 from stray where topic in (select unnest(?))""",
            [hidden := sorted(self._hidden)],
        )
        self._store.execute("delete from stray where topic in (select unnest(?))", [hidden])

    def _count_keys(self) -> int:
        return int(self._one("select count(distinct (topic, key)) from latest where value is not null"))

    def doubts(self, table: ComparedTable) -> list[Doubt]:
        """Return why the table's topic may be wrong even if its differing keys are re-sent."""
        topic = table.topic
        counted: dict[DoubtName, int] = {
            "expired": self._expired[topic],
            "damaged": self.damaged[topic],
            "open": int(topic in self._hidden),
            "no_key": self.without_key[topic],
            "unsent": self.unsent[topic],
            "unknown_schema": sum(one.records for one in self.unknown_schemas if one.topic == topic),
        }
        return doubts(self._store, table, counted)

    def findings(self, samples: int) -> list[tuple[Any, ...]]:
        """Return topic, key, class, fields, partition, offset and note of the first findings of each
        class.
        """
        return self._store.execute(
            f"""select topic, key, class, fields, partition_id, log_offset, note
                 from (select * from wrong union all by name
                       select * replace ('indeterminate' as class) from undecided union all by name
                       select topic, key, 'stray_row' as class, '[]' as fields, partition_id, log_offset,
                              concat(if(starts_with(key, 'undecodable '), $${_UNREADABLE}; $$, ''),
                                     coalesce('its newest record is in partition ' || newest_id,
                                              'its key belongs into another partition')) as note from stray)
               qualify row_number() over (partition by class order by topic, key) <= ?
               order by class, topic, key""",
            [samples],
        ).fetchall()

    def _one(self, sql: str, *values: Any) -> Any:
        return self._store.execute(sql, list(values)).fetchall()[0][0]

    def _put(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        insert(self._store, table, rows)


def _digest(row: str) -> str:
    return hashlib.md5(row.encode(), usedforsecurity=False).hexdigest()


def _differing(
    shape: TableShape, row: Mapping[str, str | None], latest: DecodedRow
) -> list[tuple[str, Any, Any]]:
    """Return the columns that differ, with the values of the table and the topic."""
    latest_values = shape.row_of(latest)
    return [
        (name, row[name], latest_values[name]) for name in latest_values if latest_values[name] != row[name]
    ]


# The encodings of keys: the most common one of each topic.

_COUNTS = """
select topic, split_part(key, chr(1), 2) as spelling, count(value), max(timestamp_ms)
  from latest
 where starts_with(key, '[') and contains(key, chr(1)) and not list_contains(?::varchar[], topic)
 group by all
"""


def find_key_encodings(
    store: duckdb.DuckDBPyConnection,
    agreement: Agreement,
    quick: Sequence[TableShape],
    spellings: dict[str, str],
) -> None:
    """Find the most common key encoding of each topic, and record it in ``spellings``.

    An encoding is a schema's ID, "json" or "odd". For the topics of ``quick``, nearly all keys are in
    ``agreement``; for others they are in ``latest``.
    """
    counts = store.execute(_COUNTS, [list(spellings)]).fetchall()
    counts += agreement.spellings([one for one in quick if one.table.key], {topic for topic, *_ in counts})
    for topic, spelling, _, _ in sorted(counts, key=lambda one: (-one[2], -one[3], one[1])):
        if topic in spellings:
            continue
        spellings[topic] = spelling
        store.execute(
            "update latest set key = split_part(key, chr(1), 1)"
            " where topic = ? and starts_with(key, '[') and split_part(key, chr(1), 2) = ?",
            [topic, spelling],
        )
        # A topic that had no keys before: all of them arrived since.
        for table, columns in (("changed_key", "distinct topic, key"), ("history", "*")):
            store.execute(
                f"insert into {table} select {columns} from latest semi join doubtful using (topic, key)"
                " where topic = ?",
                [topic],
            )
