"""Every key in which a table and its topic differ, with everything that a repair of the topic needs.

The report has samples for people. This module has all of them, with the key as PostgreSQL writes it, by which
its row can be read again, and the bytes of the key in the topic.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import duckdb

from bwtui.audit.canonical_values import readable
from bwtui.audit.core import insert
from bwtui.verify.fold_tables import SPELLED
from bwtui.verify.tables import CHUNK, ComparedTable, TableShape

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
