"""All differing keys of tables and topics, in the form that a repair needs: PostgreSQL's texts, and bytes."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient

from bwtui.audit.canonical_values import schema_id
from bwtui.audit.report import AuditSummary
from bwtui.source.raw_session import connect_raw
from bwtui.source.slot import create_temporary
from bwtui.verify.database import (
    ComparedTable,
    ComparisonRequest,
    Doubt,
    Fence,
    KeyDifference,
    verify_database,
)
from tests.attempts import Attempts
from tests.database import Session
from tests.decoded_topic import decoded_avro
from tests.raw_topic import raw_messages, raw_records

pytestmark = pytest.mark.services

#: Keys whose decoded value does not determine PostgreSQL's text, and one with every delimiter.
_KEYS = {
    "f8": ("float8", ["0.1", "1e+300", "3", "-Infinity"]),
    "m": ("money", ["$1.50", "-$2.00", "$3.00", "$1,234,567.00"]),
    "words": ("text[]", ["{a,b}", r'{"b \" \\ , {c}"}', "{}", "{{a,b},{c,d}}"]),
    "i2": ("smallint", ["1", "-2", "3", "4"]),
    "o": ("oid", ["1", "4294967295", "3", "4"]),
    "vc": ("varchar(9)", ["1", '"', "{}", "\\"]),
    "bpc": ("char(3)", ["1", "'", "{}", "\\"]),
    "t": ("text", ["a", 'b" \\ , [c]', "d\ne", ""]),
}
_Found = dict[str, tuple[Sequence[Doubt], list[KeyDifference]]]


def test_keys_of_both_sides(attempts: Attempts, source: Session, database: str) -> None:
    """Of four keys the first is missing, the second differs, the third is extra, and the fourth is right."""
    for name, (kind, texts) in _KEYS.items():
        source.run(f"create table {name} (k {kind} primary key, v int)")
        for number, text in enumerate(texts):
            source.run(f"insert into {name} values (%s::{kind}, %s)", text, number)
    source.run("create table unkeyed (a int); alter table unkeyed replica identity full")
    source.run("insert into unkeyed values (1)")
    attempts.succeed(database, "--allow-unkeyed")
    sent = {name: _sent(attempts, f"{attempts.name}.{name}") for name in _KEYS}
    with closing(Producer({"bootstrap.servers": attempts.services.broker})) as producer:
        for name, keys in sent.items():
            producer.produce(f"{attempts.name}.{name}", None, keys[0][1], keys[0][0])
        assert not producer.flush(30)
    source.run("insert into unkeyed values (1), (2)")
    for name in _KEYS:
        source.run(f"update {name} set v = 5 where v = 1")
        source.run(f"delete from {name} where v = 2")
    tables = [_table(attempts, name, ("k", "v")) for name in _KEYS]
    found = _compared(attempts, database, [*tables, _table(attempts, "unkeyed", ("a",), ())])
    for name, (kind, texts) in _KEYS.items():
        doubts, differences = found[f"public.{name}"]
        assert doubts == [] and len(differences) == 3
        by_class = {one.name: one for one in differences}
        for number, of in enumerate(("missing_key", "different_row", "extra_key")):
            one = by_class[of]
            assert one.is_proven and one.raw == sent[name][number][1]
            assert one.key is not None and len(one.key) == 1
            # PostgreSQL has no text for a row that is not there.
            assert of == "extra_key" or (one.key[0].rstrip(),) == (texts[number],)
            assert source.value(f"select %s::{kind} = %s::{kind}", *one.key, texts[number])
    doubts, differences = found["public.unkeyed"]
    assert [one.name for one in doubts] == ["unkeyed"]
    assert [(one.name, one.is_proven, one.key, one.raw) for one in differences] == [
        ("missing_row", True, None, None)
    ] * 2


def test_keys_that_no_row_can_have(attempts: Attempts, source: Session, database: str) -> None:
    source.run("create table t (id int primary key); insert into t values (1)")
    attempts.succeed(database)
    topic = f"{attempts.name}.t"
    ((key, value),) = raw_messages(attempts.services, topic)
    assert key is not None
    others = [b"no schema", b'{"other": 1}', key[:-1] + b"\x84\x00", key[:-1] + b"\x06"]
    with closing(Producer({"bootstrap.servers": attempts.services.broker})) as producer:
        for one in others:
            producer.produce(topic, value, one, 0)
        assert not producer.flush(30)
    doubts, differences = _compared(attempts, database, [_table(attempts, "t", ("id",))])["public.t"]
    assert {one.raw: one.key for one in differences} == {**dict.fromkeys(others), others[3]: ("3",)}
    assert {one.name for one in differences} == {"extra_key"}
    assert [(one.name, one.text[:2]) for one in doubts] == [("undecodable", "1 ")]


def test_schemas_that_the_registry_does_not_have(attempts: Attempts, source: Session, database: str) -> None:
    """Nothing can be proven about such records; a single one among many counts as damaged."""
    for name in ("lost", "whole"):
        source.run(f"create table {name} (id int primary key, v int)")
        source.run(f"insert into {name} select g, g from generate_series(1, 9) g")
    attempts.succeed(database)
    topics = {name: f"{attempts.name}.{name}" for name in ("lost", "whole")}
    messages = {name: raw_messages(attempts.services, topic) for name, topic in topics.items()}
    key, value = messages["whole"][0]
    assert key is not None and value is not None
    damaged = b"\0\x7f\xff\xff\xff" + value[5:]
    with closing(Producer({"bootstrap.servers": attempts.services.broker})) as producer:
        (place,) = [number for number, one in _sent(attempts, topics["whole"]).values() if one == key]
        producer.produce(topics["whole"], damaged, key, place)
        assert not producer.flush(30)
    tables = [_table(attempts, name, ("id", "v")) for name in topics]
    key_id, value_id = (schema_id(one) for one in messages["lost"][0])
    for gone, count in (({key_id, value_id}, 18), ({key_id}, 18), ({value_id}, 9)):
        found, report = _reported(attempts, database, tables, frozenset(gone))
        doubts, differences = found["public.lost"]
        assert (len(differences), {one.is_proven for one in differences}) == (count, {False})
        assert report.classes["indeterminate"] == count
        assert [one.name for one in doubts] == ["unknown_schema"]
        doubts, differences = found["public.whole"]
        assert [(one.name, one.is_proven) for one in differences] == [("different_row", True)]
        assert differences[0].note == "the value can't be decoded: there is no schema with id 2147483647"
        assert [one.name for one in doubts] == ["undecodable"]
        assert (report.verdict, report.wrong) == ("anomalies", {"different_row": 1})
        said = [note for note in report.notes if "the schema registry has no schema" in note]
        # Values under unreadable keys are not checked.
        named, part = (key_id, "keys") if key_id in gone else (value_id, "values")
        assert len(said) == 1 and f" {named}, to which 9 {part} of {topics['lost']} refer" in said[0]
        # A row that certainly belongs to none of these keys is missing all the same.
        source.run("delete from lost where id = 10; insert into lost values (10, 10)")
        _, report = _reported(attempts, database, tables, frozenset(gone))
        assert report.wrong.get("missing_key", 0) == (10 if key_id in gone else 1)
        source.run("delete from lost where id = 10")


# -- helpers -------------------------------------------------------------------------------------------------


def _table(
    attempts: Attempts, name: str, columns: tuple[str, ...], key: tuple[str, ...] | None = None
) -> ComparedTable:
    return ComparedTable(
        "public", name, f"{attempts.name}.{name}", columns, columns[:1] if key is None else key
    )


def _sent(attempts: Attempts, topic: str) -> dict[int, tuple[int, bytes]]:
    """Return v → partition and key's bytes of each message."""
    records = raw_records(attempts.services, [topic])
    places = [(number, one.key()) for (_, number), every in sorted(records.items()) for one in every]
    rows = [row for _, row in decoded_avro(attempts.services, topic)]
    return {
        row["v"]: (number, key)
        for (number, key), row in zip(places, rows, strict=True)
        if row is not None and key is not None
    }


def _compared(attempts: Attempts, dsn: str, tables: Sequence[ComparedTable]) -> _Found:
    """Compare at the test's own fence, while no relay runs."""
    found, report = _reported(attempts, dsn, tables)
    assert report.found == {
        name: sum(one.name == name for _, every in found.values() for one in every) for name in report.found
    }
    return found


def _reported(
    attempts: Attempts, dsn: str, tables: Sequence[ComparedTable], gone: frozenset[int | None] = frozenset()
) -> tuple[_Found, AuditSummary]:
    """Return the report as well; the registry answers as if it lacked the schemas ``gone``."""
    found: _Found = {}

    def take(table: ComparedTable, doubts: Sequence[Doubt], differences: Iterator[KeyDifference]) -> None:
        found[table.full_name] = doubts, list(differences)

    with contextlib.ExitStack() as stack:
        raw = connect_raw(dsn)
        stack.callback(raw.finish)
        slot = create_temporary(raw)
        ends = {"url": attempts.services.schema_registry}
        registry = stack.enter_context(closing(SchemaRegistryClient(ends)))
        request = ComparisonRequest(
            dsn,
            attempts.name,
            tables,
            {"bootstrap.servers": attempts.services.broker},
            on_differences=take,
            at=Fence(slot.consistent_point, slot.snapshot),
        )
        report = verify_database(request, lambda number: _schema(registry, number, gone))
    return found, report


def _schema(registry: SchemaRegistryClient, number: int, gone: frozenset[int | None]) -> str | None:
    if number in gone or number > 1_000_000:
        return None
    return registry.get_schema(number).schema_str
