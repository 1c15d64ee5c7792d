"""Any name that PostgreSQL accepts, from the table to the consumer: no collision, nothing lost."""

import json
import secrets
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import SchemaRegistryClient

from bwtui.model.sql import quote_identifier
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts
from tests.database import Session
from tests.decoded_topic import decoded_avro, decoded_json, decoded_topics, latest
from tests.raw_topic import raw_messages
from tests.waiting import eventually

pytestmark = pytest.mark.services

NAMES = (
    "with space", "dot.ted", 'quo"te', "apo'strophe", "hy-phen", "größe", "表", "😀", "1leading", "Order",
    "order", "oRDER", "select", "null", "x" * 63, "é" * 31, "is_xact", "is_x5f_xact", "a b", "a_x20_b", "a_b",
    "__escaped", "_x5f__escaped", "per%cent", "per%s", "per%(a)s", "back\\slash", "\\", "{i}", "$1",
    "line\nbreak", "__consumer", "_schemas", ".", "..", "-", "Key", "Value", "unchanged TOAST",
)  # fmt: skip
SCHEMAS = ("public", 'we"ird %s.\\')


def quoted(*names: str) -> str:
    """Return a qualified identifier for `Session.run` without arguments."""
    return ".".join(map(quote_identifier, names))


def literal(value: str) -> str:
    """Return a literal under standard_conforming_strings."""
    return "'" + value.replace("'", "''") + "'"


def topics(services: ServiceAddresses, prefix: str) -> list[str]:
    """Return the topics of one relay."""
    found = AdminClient({"bootstrap.servers": services.broker}).list_topics(timeout=30).topics
    return sorted(name for name in found if name.startswith(f"{prefix}."))


def subjects(services: ServiceAddresses, prefix: str) -> list[str]:
    """Return the subjects of one relay."""
    with closing(SchemaRegistryClient({"url": services.schema_registry})) as registry:
        return sorted(name for name in registry.get_subjects() if name.startswith(f"{prefix}."))


def original_names(services: ServiceAddresses, topic: str) -> dict[str, str]:
    """Return the column of each field, as the value's schema declares it."""
    with closing(SchemaRegistryClient({"url": services.schema_registry})) as registry:
        text = registry.get_latest_version(f"{topic}-value").schema.schema_str
    assert text is not None
    fields = json.loads(text)["fields"]
    return {field["name"]: field.get("pgName", field["name"]) for field in fields}


def test_tables_of_any_name(attempts: Attempts, source: Session, database: str) -> None:
    """Each table's rows name the table; a row is fetched, an old key is removed."""
    services, prefix = attempts.services, attempts.name
    source.run(f"create schema {quoted(SCHEMAS[1])}")
    tables = [(SCHEMAS[0], name) for name in NAMES] + [(SCHEMAS[1], name) for name in NAMES[:4]]
    for schema, name in tables:
        key, big = quoted(f"k {name}"[:60]), quoted(name)
        source.run(f"create table {quoted(schema, name)} (who text, {key} text primary key, {big} text)")
        source.run(f"alter table {quoted(schema, name)} alter {big} set storage external")
        who = literal(f"{schema}/{name}")
        source.run(f"insert into {quoted(schema, name)} values ({who}, {who}, repeat('x', 3000))")
    publication = "a \"publication\" %s, \\ of 'ours'"
    run = ("--publication", publication)
    attempts.succeed(database, *run)
    for schema, name in tables:
        source.run(f"update {quoted(schema, name)} set who = who || '!'")
    status = attempts.succeed(database, *run).status
    assert source.publications() == [publication, f"{publication}_unkeyed"]
    found = topics(services, prefix)
    assert len(found) == len(tables) == len(status["tables"])
    assert {status["tables"][f"{schema}.{name}"]["topic"] for schema, name in tables} == set(found)
    read = decoded_topics(services, found)
    for schema, name in tables:
        (row,) = latest(read[status["tables"][f"{schema}.{name}"]["topic"]]).values()
        who = f"{schema}/{name}"
        assert sorted(row.values(), key=str) == sorted([who + "!", who, "x" * 3000]), who
    assert subjects(services, prefix) == sorted(
        f"{topic}-{part}" for topic in found for part in ("key", "value")
    )


@pytest.mark.parametrize("form", ["avro", "json"])
def test_columns_of_any_name(attempts: Attempts, source: Session, database: str, form: str) -> None:
    """One table with all of them: every column's value is its own name."""
    columns = ", ".join(f"{quoted(name)} text default {literal(name)}" for name in NAMES)
    source.run(f"create table t (id int primary key, {columns}, big text default repeat('x', 3000))")
    source.run("alter table t alter big set storage external")
    source.run("insert into t values (1)")
    attempts.succeed(database, "-f", form)
    source.run("insert into t values (2)")
    changed = quoted(NAMES[0])
    source.run(f"update t set {changed} = {changed}")
    attempts.succeed(database, "-f", form)
    topic = f"{attempts.name}.t"
    if form == "json":
        rows: list[dict[str, Any]] = list(latest(decoded_json(attempts.services, topic)).values())
    else:
        names = original_names(attempts.services, topic)
        decoded = latest(decoded_avro(attempts.services, topic)).values()
        rows = [{names[field]: value for field, value in row.items()} for row in decoded]
    assert len(rows) == 2
    for row in rows:
        assert {name: row[name] for name in NAMES} == {name: name for name in NAMES}
        assert row["big"] == "x" * 3000
        assert len(row) == len(NAMES) + 2


@pytest.mark.parametrize("form", ["avro", "json"])
def test_topics_that_kafka_can_not_tell_apart(
    attempts: Attempts, source: Session, database: str, form: str
) -> None:
    """Refused before the first message; without one of them the relay starts."""
    source.run(
        "create schema a; create table a.b (id int primary key); create table a_b (id int primary key)"
    )
    source.run("insert into a.b values (1); insert into a_b values (1)")
    error, hint = attempts.fail(database, 2, "-f", form)
    assert f"{attempts.name}.a.b and {attempts.name}.a_b" in error
    assert "a.b and public.a_b" in error
    assert "--exclude-table" in hint
    assert not topics(attempts.services, attempts.name)
    assert not subjects(attempts.services, attempts.name)
    attempts.succeed(database, "-f", form, "--exclude-table", "a_b")
    assert topics(attempts.services, attempts.name) == [f"{attempts.name}.a.b"]


def test_such_a_table_made_later(attempts: Attempts, source: Session, database: str) -> None:
    """Only this table is refused: the tables from before, and those created later, continue."""
    services = attempts.services
    source.run("create schema a; create table a.b (id int primary key)")
    source.publish_all(attempts.name)
    with attempts.start(database, "--on-error", "log") as process:
        eventually("the relay streams", lambda: source.reader(attempts.name))
        source.run("create table a_b (id int primary key); create table c (id int primary key)")
        source.run("insert into a_b values (1)")
        source.run("insert into a.b values (1)")
        source.run("insert into c values (1)")
        eventually("table c is relayed", lambda: raw_messages(services, f"{attempts.name}.c"))
        process.terminate()
        output, _ = process.communicate(timeout=60)
    tables = json.loads(output.splitlines()[-1])["tables"]
    letters = {name: table["dead_letters"] for name, table in tables.items()}
    assert letters == {"a.b": 0, "public.a_b": 1, "public.c": 0}
    assert latest(decoded_avro(services, f"{attempts.name}.a.b")) == {(1,): {"id": 1}}
    assert topics(services, attempts.name) == [f"{attempts.name}.a.b", f"{attempts.name}.c"]
    # The next start refuses it, as the first would have done.
    error, _ = attempts.fail(database, 2)
    assert "public.a_b" in error


@pytest.mark.since(15, "publications have column lists and row filters")
def test_a_filter_by_name(attempts: Attempts, source: Session, database: str) -> None:
    """A publication FOR TABLE of odd names, with a column list and a row filter."""
    name = f"odd %s '{secrets.token_hex(2)}\""
    column = 'col %s "\\'
    source.run(f"create table {quoted(name)} (id int primary key, {quoted(column)} text, hidden text)")
    source.run("create table other (id int primary key)")
    source.run(f"insert into {quoted(name)} values (1, '%s', 'x'), (2, 'no', 'x')")
    where = f"{quoted(column)} <> 'no'"
    published = f"{quoted(name)} (id, {quoted(column)}) where ({where})"
    source.run(f"create publication p for table {published} with (publish = 'insert')")
    attempts.succeed(database, "--publication", "p")
    source.run(f"insert into {quoted(name)} values (3, '%s', 'x'), (4, 'no', 'x')")
    status = attempts.succeed(database, "--publication", "p").status
    topic = status["tables"][f"public.{name}"]["topic"]
    rows = [list(row.values()) for row in latest(decoded_avro(attempts.services, topic)).values()]
    assert sorted(rows) == [[1, "%s"], [3, "%s"]]
