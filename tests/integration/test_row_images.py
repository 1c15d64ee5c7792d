"""The messages for each kind of table and replica identity: docs/row-images.md, row by row."""

import json
from typing import Any

import pytest

from tests.attempts import Attempts
from tests.database import Session
from tests.decoded_topic import Decoded, decoded_avro, latest, of_key
from tests.raw_topic import raw_messages

pytestmark = pytest.mark.services


def read(attempts: Attempts, table: str) -> list[Decoded]:
    """Return the messages for a table of public."""
    return decoded_avro(attempts.services, f"{attempts.name}.{table}")


def test_replica_identities(attempts: Attempts, source: Session, database: str) -> None:
    for name in ("by_default", "by_index", "by_full"):
        source.run(f"create table {name} (a int primary key, b int not null, c text)")
    source.run("create unique index picked on by_index (b) include (c)")
    source.run("alter table by_index replica identity using index picked")
    source.run("alter table by_full replica identity full")
    for name in ("by_default", "by_index", "by_full"):
        source.run(f"insert into {name} values (1, 10, 'x'), (2, 20, 'y')")
    attempts.succeed(database)
    for name in ("by_default", "by_index", "by_full"):
        source.run(f"update {name} set c = 'z' where a = 1")
        source.run(f"update {name} set a = 11 where a = 1")
        source.run(f"update {name} set b = 12 where a = 11")
        source.run(f"delete from {name} where a = 2")
    attempts.succeed(database)
    keyed_by_a = [
        ({"a": 1}, {"a": 1, "b": 10, "c": "x"}),
        ({"a": 1}, {"a": 1, "b": 10, "c": "z"}),
        ({"a": 1}, None),
        ({"a": 2}, {"a": 2, "b": 20, "c": "y"}),
        ({"a": 2}, None),
        ({"a": 11}, {"a": 11, "b": 10, "c": "z"}),
        ({"a": 11}, {"a": 11, "b": 12, "c": "z"}),
    ]
    keyed_by_b = [
        ({"b": 10}, {"a": 1, "b": 10, "c": "x"}),
        ({"b": 10}, {"a": 1, "b": 10, "c": "z"}),
        ({"b": 10}, {"a": 11, "b": 10, "c": "z"}),
        ({"b": 10}, None),
        ({"b": 12}, {"a": 11, "b": 12, "c": "z"}),
        ({"b": 20}, {"a": 2, "b": 20, "c": "y"}),
        ({"b": 20}, None),
    ]
    for name, expected in {"by_default": keyed_by_a, "by_full": keyed_by_a, "by_index": keyed_by_b}.items():
        found = read(attempts, name)
        assert sorted(found, key=lambda message: sorted((message[0] or {}).items())) == expected, name


def test_without_a_key(attempts: Attempts, source: Session, database: str) -> None:
    """FULL sends every new row with a null key; NOTHING, and DEFAULT without a key, send only inserts."""
    for name in ("full_unkeyed", "nothing", "keyless"):
        key = "primary key" if name == "nothing" else ""
        source.run(f"create table {name} (a int {key}, b text)")
    source.run("alter table full_unkeyed replica identity full")
    source.run("alter table nothing replica identity nothing")
    for name in ("full_unkeyed", "nothing", "keyless"):
        source.run(f"insert into {name} values (1, 'x')")
    error, hint = attempts.fail(database, 2)
    assert "2 tables have no primary key" in error
    assert "table public.nothing has REPLICA IDENTITY NOTHING" in error
    assert "-u" in hint
    attempts.succeed(database, "-u")
    for name in ("full_unkeyed", "nothing", "keyless"):
        source.run(f"insert into {name} values (2, 'y')")
        source.run(f"update {name} set b = 'z' where a = 1")
        source.run(f"delete from {name}")
    tables = attempts.succeed(database, "-u").status["tables"]
    first, second, changed = ({"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 1, "b": "z"})
    for name, rows in {
        "full_unkeyed": [first, second, changed],
        "nothing": [first, second],
        "keyless": [first, second],
    }.items():
        found = read(attempts, name)
        assert all(key is None for key, _ in found)
        assert sorted((value for _, value in found if value), key=str) == sorted(rows, key=str)
        counted = tables[f"public.{name}"]
        assert (counted["updates"], counted["deletes"]) == ((1, 2) if name == "full_unkeyed" else (0, 0))
        assert any(note.startswith("unkeyed: messages have a null key") for note in counted["notes"])
    note = "unkeyed: updates and deletes are not captured (REPLICA IDENTITY FULL captures updates)"
    assert all(note in tables[f"public.{name}"]["notes"] for name in ("nothing", "keyless"))


def test_primary_key_updates(attempts: Attempts, source: Session, database: str) -> None:
    """A tombstone for the old key, then the new row, also if one row takes the place of another."""
    source.run("create table chain (id int, part text, n int, primary key (id, part))")
    source.run("insert into chain select i, 'p', i from generate_series(1, 4) i")
    attempts.succeed(database)
    source.run("update chain set id = 0 where id = 1; update chain set id = 1 where id = 2")
    source.run("begin; update chain set id = 2 where id = 0; update chain set part = 'q' where n = 4; commit")
    source.run("begin; delete from chain where id = 3; insert into chain values (3, 'p', 30); commit")
    attempts.succeed(database)
    found = latest(read(attempts, "chain"))
    expected = [(1, "p", 2), (2, "p", 1), (3, "p", 30), (4, "q", 4)]
    assert sorted((row["id"], row["part"], row["n"]) for row in found.values()) == expected
    assert {(row["id"], row["part"]) for row in found.values()} == found.keys()


def test_deferrable_key(attempts: Attempts, source: Session, database: str) -> None:
    """Two rows may have it for a while, and a tombstone for one would delete the other."""
    for name in ("late", "late_full"):
        source.run(f"create table {name} (id int primary key deferrable)")
        source.run(f"insert into {name} values (1), (2)")
    source.run("alter table late_full replica identity full")
    error, hint = attempts.fail(database, 2)
    assert "table public.late has a deferrable primary key" in error
    assert "table public.late_full has a deferrable primary key" in error
    assert 'ALTER TABLE "public"."late" REPLICA IDENTITY USING INDEX "late_replica_identity";' in hint
    attempts.succeed(database, "-u")
    # PostgreSQL would refuse this if the table were among the keyed ones.
    source.run("update late set id = id + 1")
    source.run("update late_full set id = id + 1")
    attempts.succeed(database, "-u")
    assert sorted(value["id"] for _, value in read(attempts, "late") if value) == [1, 2]
    assert sorted(value["id"] for _, value in read(attempts, "late_full") if value) == [1, 2, 2, 3]


def test_generated_and_identity_columns(attempts: Attempts, source: Session, database: str) -> None:
    modern = source.connection.server_version >= 180000
    virtual = ", v int generated always as (n * 3) virtual" if modern else ""
    key = "id int generated always as identity primary key"
    columns = f"{key}, n int, s int generated always as (n * 2) stored{virtual}"
    source.run(f"create table plain ({columns}); create table published ({columns})")
    if modern:
        name = f"bwtui_{attempts.name}"
        source.run(f"create publication {name} for all tables with (publish_generated_columns = stored)")
    source.run("insert into plain (n) values (1); insert into published (n) values (1)")
    attempts.succeed(database)
    source.run("insert into plain (n) values (2); insert into published (n) values (2)")
    source.run("update published set n = 5 where n = 1")
    attempts.succeed(database)
    stored = (lambda n: {"s": n * 2}) if modern else (lambda n: {})
    assert latest(read(attempts, "published")) == {
        (number,): {"id": number, "n": n} | stored(n) for number, n in ((1, 5), (2, 2))
    }
    assert latest(read(attempts, "plain")) == {
        (number,): {"id": number, "n": number} | stored(number) for number in (1, 2)
    }


def test_generated_columns_are_left_out_by_default(
    attempts: Attempts, source: Session, database: str
) -> None:
    source.run("create table t (id int primary key, s int generated always as (id * 2) stored, n text)")
    source.run("insert into t (id, n) values (1, 'a')")
    attempts.succeed(database)
    source.run("insert into t (id, n) values (2, 'b')")
    attempts.succeed(database)
    assert latest(read(attempts, "t")) == {(1,): {"id": 1, "n": "a"}, (2,): {"id": 2, "n": "b"}}


@pytest.mark.parametrize("form", ["avro", "json"])
def test_no_columns(attempts: Attempts, source: Session, database: str, form: str) -> None:
    """A row without columns is a row: a record without columns, or an empty object."""
    source.run("create table bare (); insert into bare default values; insert into bare default values")
    attempts.succeed(database, "-u", "-f", form)
    source.run("insert into bare default values")
    status = attempts.succeed(database, "-u", "-f", form).status
    found = raw_messages(attempts.services, f"{attempts.name}.bare")
    assert len(found) == 3
    assert all(key is None for key, _ in found)
    assert {value for _, value in found} == ({found[0][1]} if form == "avro" else {b"{}"})
    if form == "avro":
        assert [value for _, value in read(attempts, "bare")] == [{"__escaped": None}] * 3
    assert status["tables"]["public.bare"]["inserts"] == 1


@pytest.mark.timeout(120)
def test_as_many_columns_as_postgresql_takes(attempts: Attempts, source: Session, database: str) -> None:
    columns = ", ".join(f"c{number} int" for number in range(1_599))
    source.run(f"create table wide (id int primary key, {columns})")
    source.run("insert into wide (id, c0, c1598) values (1, 10, 11)")
    assert attempts.succeed(database).seconds < 40
    source.run("update wide set c700 = 12")
    source.run(f"insert into wide values (2, {', '.join('1' * 1_599)})")
    assert attempts.succeed(database).seconds < 40
    found = latest(read(attempts, "wide"))
    given = {name: value for name, value in found[1,].items() if value is not None}
    assert given == {"id": 1, "c0": 10, "c700": 12, "c1598": 11}
    assert len(found[1,]) == 1_600
    assert sum(found[2,].values()) == 1_599 + 2


def test_partitions(attempts: Attempts, source: Session, database: str) -> None:
    """Rows belong to the root, also those that move from one partition to another."""
    source.run("create table part (id int, n text, primary key (id)) partition by range (id)")
    for number in range(2):
        bounds = f"from ({number * 100}) to ({number * 100 + 100})"
        source.run(f"create table part{number} partition of part for values {bounds}")
    source.run("insert into part values (1, 'a'), (101, 'b')")
    attempts.succeed(database)
    source.run("update part set id = 102 where id = 1; insert into part1 values (103, 'c')")
    source.run("create table part2 partition of part for values from (200) to (300)")
    source.run("insert into part values (203, 'new')")
    attempts.succeed(database)
    assert names(read(attempts, "part")) == {101: "b", 102: "a", 103: "c", 203: "new"}
    assert of_key(read(attempts, "part"), 1)[-1] is None


@pytest.mark.since(15, "a stream notices ATTACH and DETACH PARTITION")
def test_attached_and_detached_partitions(attempts: Attempts, source: Session, database: str) -> None:
    """Rows belong to the root; a table that is attached or detached changes its topic from then on."""
    source.publish_all(attempts.name)
    source.run("create table part (id int, n text, primary key (id)) partition by range (id)")
    for number in range(2):
        bounds = f"from ({number * 100}) to ({number * 100 + 100})"
        source.run(f"create table part{number} partition of part for values {bounds}")
    source.run("create table single (id int primary key, n text)")
    source.run("insert into part values (1, 'a'), (101, 'b'); insert into single values (201, 'before')")
    attempts.succeed(database)
    source.run("update part set id = 102 where id = 1")
    source.run("insert into single values (202, 'before')")
    source.run("alter table part attach partition single for values from (200) to (300)")
    source.run("update part set n = 'after' where id = 201; insert into part values (203, 'after')")
    source.run("alter table part detach partition part1")
    source.run("update part1 set n = 'alone' where id = 101; insert into part1 values (103, 'alone')")
    # The detached table has joined the publication. A run may end before its rows are sent.
    with attempts.start(database) as process:
        assert process.stdout is not None
        status = next(line for line in map(json.loads, process.stdout) if has_joined(line, "public.part1"))
        process.terminate()
        process.communicate(timeout=60)
    sent = {name: (one["inserts"], one["updates"], one["deletes"]) for name, one in status["tables"].items()}
    assert sent == {"public.part": (2, 1, 1), "public.single": (1, 0, 0), "public.part1": (1, 1, 0)}
    assert names(read(attempts, "part")) == {101: "b", 102: "a", 201: "after", 203: "after"}
    assert of_key(read(attempts, "part"), 1)[-1] is None
    # Rows sent for the separate table stay in its topic, and are not sent again for the root.
    assert names(read(attempts, "single")) == {201: "before", 202: "before"}
    assert names(read(attempts, "part1")) == {101: "alone", 102: "a", 103: "alone"}


def has_joined(status: dict[str, Any], table: str) -> bool:
    """Return whether all rows of a table that joined were backfilled, and those of no other table."""
    backfills = [(one["table"], one["reason"], one["state"]) for one in status["backfills"]]
    return backfills == [(table, "joined", "done")]


def names(messages: list[Decoded]) -> dict[int, str]:
    """Return column n of each key's newest row."""
    return {row["id"]: row["n"] for row in latest(messages).values()}


def test_inheritance(attempts: Attempts, source: Session, database: str) -> None:
    """Parent and child are two tables: no row is sent twice."""
    source.run("create table parent (id int primary key, n text)")
    source.run("create table child (extra int, primary key (id)) inherits (parent)")
    source.run("insert into parent values (1, 'p'); insert into child values (2, 'c', 5)")
    attempts.succeed(database)
    source.run("update parent set n = n || '!'")
    source.run("insert into child values (3, 'd', 6)")
    attempts.succeed(database)
    assert latest(read(attempts, "parent")) == {(1,): {"id": 1, "n": "p!"}}
    assert latest(read(attempts, "child")) == {
        (2,): {"id": 2, "n": "c!", "extra": 5},
        (3,): {"id": 3, "n": "d", "extra": 6},
    }


def test_unlogged_tables(attempts: Attempts, source: Session, database: str) -> None:
    """An unlogged table writes no WAL, so nothing is sent until it becomes a logged one."""
    source.publish_all(attempts.name)
    source.run("create table logged (id int primary key); create unlogged table fast (id int primary key)")
    source.run("create temporary table passing (id int primary key)")
    source.run("insert into fast values (1); insert into logged values (1); insert into passing values (1)")
    status = attempts.succeed(database).status
    assert list(status["tables"]) == ["public.logged"]
    source.run("alter table fast set logged")
    source.run("insert into fast values (2)")
    attempts.succeed(database)
    # Including the row from before, which is in no stream.
    assert latest(read(attempts, "fast")) == {(1,): {"id": 1}, (2,): {"id": 2}}


def test_truncate(attempts: Attempts, source: Session, database: str) -> None:
    """Truncated rows leave the topic; --truncate-topic sends a message in the order of the stream."""
    source.run("create table top (id serial primary key); create table low (id int references top)")
    source.run("alter table low replica identity full")
    source.run("insert into top values (1); insert into low values (1)")
    told = f"{attempts.name}.truncates"
    attempts.succeed(database, "-u", "--on-gap", "close", "--truncate-topic", told)
    source.run("truncate top restart identity cascade")
    source.run("insert into top values (2)")
    source.run("truncate low")
    tables = attempts.succeed(database, "-u", "--on-gap", "close", "--truncate-topic", told).status["tables"]
    assert [tables[name]["truncates"] for name in ("public.top", "public.low")] == [1, 2]
    assert latest(read(attempts, "top")) == {(2,): {"id": 2}}
    messages: list[dict[str, Any]] = [
        json.loads(value) | {"key": key.decode()}
        for key, value in raw_messages(attempts.services, told)
        if key and value
    ]
    assert sorted((m["table"], m["key"], m["cascade"], m["restart_identity"]) for m in messages) == [
        ("public.low", "public.low", False, False),
        ("public.low", "public.low", True, True),
        ("public.top", "public.top", True, True),
    ]
