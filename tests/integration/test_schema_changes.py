"""Schema changes in the stream, most of them while the relay is away and the catalog has changed since."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.state_folder import state_folder
from tests.attempts import Attempts
from tests.database import Session
from tests.decoded_topic import Decoded, decoded_avro, latest
from tests.integration.test_toast_values import large

pytestmark = pytest.mark.services


@pytest.fixture
def source(database: str) -> Iterator[Session]:
    """A session on a database with one table of two rows."""
    with closing(Session(database)) as opened:
        opened.run("create table t (id int primary key, a int, b text)")
        opened.run("insert into t values (1, 1, 'one'), (2, 2, 'two')")
        yield opened


def read(attempts: Attempts, table: str = "t") -> list[Decoded]:
    """Return the messages for a table of public."""
    return decoded_avro(attempts.services, f"{attempts.name}.{table}")


def set_rule(services: ServiceAddresses, subject: str | None, level: str) -> None:
    """Hold a subject to a compatibility rule."""
    with closing(SchemaRegistryClient({"url": services.schema_registry})) as registry:
        registry.set_compatibility(subject, level)


def versions(services: ServiceAddresses, subject: str) -> int:
    """Return the number of versions of a subject."""
    with closing(SchemaRegistryClient({"url": services.schema_registry})) as registry:
        return len(registry.get_versions(subject))


@pytest.mark.parametrize("rule", ["BACKWARD", "FULL", "FULL_TRANSITIVE"])
@pytest.mark.variants(1)
def test_columns(attempts: Attempts, source: Session, database: str, rule: str) -> None:
    """One transaction alters the table between its rows; every row is sent with the columns of its time."""
    attempts.succeed(database)
    for part in ("key", "value"):
        set_rule(attempts.services, f"{attempts.name}.t-{part}", rule)
    source.run(
        """begin;
        insert into t values (3, 3, 'before');
        alter table t add column c int default 7;
        insert into t (id) values (4);
        alter table t drop column b;
        update t set a = 50 where id = 1;
        alter table t rename column c to d;
        insert into t values (5, 5, 70);
        alter table t add column b bytea;
        insert into t values (6, 6, 80, null);
        alter table t drop column b;
        insert into t values (7, 7, 90);
        commit"""
    )
    attempts.succeed(database)
    assert latest(read(attempts)) == {
        (1,): {"id": 1, "a": 50, "c": 7},
        (2,): {"id": 2, "a": 2, "b": "two"},
        (3,): {"id": 3, "a": 3, "b": "before"},
        (4,): {"id": 4, "a": None, "b": None, "c": 7},
        (5,): {"id": 5, "a": 5, "d": 70},
        (6,): {"id": 6, "a": 6, "d": 80, "b": None},
        (7,): {"id": 7, "a": 7, "d": 90},
    }


def test_types(attempts: Attempts, source: Session, database: str) -> None:
    """Changes that are compatible for readers of the old rows; a new enum value; a renamed type."""
    source.run("create type mood as enum ('glad'); create domain price as numeric(10,2)")
    source.run("alter table t add m mood default 'glad', add p price default 1, add v varchar(5) default 'v'")
    attempts.succeed(database)
    set_rule(attempts.services, f"{attempts.name}.t-value", "BACKWARD")
    source.run("alter type mood add value 'sad' before 'glad'")
    source.run("update t set m = 'sad' where id = 1")
    source.run("alter type mood rename value 'sad' to 'blue'")
    source.run("begin; alter table t alter a type bigint; insert into t values (3, 1099511627776); commit")
    source.run("alter table t alter v type text; update t set v = 'longer than five' where id = 2")
    source.run("alter type mood rename to humour; alter table t alter a type float8")
    source.run("update t set a = 0.5, m = 'blue' where id = 2")
    attempts.succeed(database)
    found = latest(read(attempts))
    assert [found[1,]["m"], found[2,]["m"], found[3,]["m"]] == ["sad", "blue", "glad"]
    assert [found[1,]["a"], found[2,]["a"], found[3,]["a"]] == [1, 0.5, 1099511627776]
    assert found[2,]["v"] == "longer than five"
    assert all(str(row["p"]) == "1.00" for row in found.values())


def test_tables(attempts: Attempts, source: Session, database: str) -> None:
    """Created, filled, renamed and dropped, in one transaction with the rows and while no relay runs."""
    source.publish_all(attempts.name)
    attempts.succeed(database)
    source.run("create table made (id int primary key); insert into made values (1)")
    source.run(
        "begin; create table gone (id int primary key, e text); insert into gone values (1, 'x'); commit"
    )
    source.run("begin; update gone set e = 'y'; drop table gone; commit")
    source.run(
        "begin; update t set a = 10 where id = 1; alter table t rename to u;"
        " update u set a = 20 where id = 2; commit"
    )
    source.run("delete from u where id = 1")
    source.run("create schema s; alter table made set schema s; insert into s.made values (2)")
    # The old name is free for a table of a different shape.
    source.run("create table t (id int primary key, other text)")
    source.run("insert into t values (3, 'new')")
    attempts.succeed(database)
    assert latest(read(attempts, "made")) == {(1,): {"id": 1}}
    # Its topic has a different name, and gets the row from before.
    assert latest(read(attempts, "s.made")) == {(1,): {"id": 1}, (2,): {"id": 2}}
    assert latest(read(attempts, "gone")) == {(1,): {"id": 1, "e": "y"}}
    assert latest(read(attempts, "t")) == {
        (1,): {"id": 1, "a": 10, "b": "one"},
        (2,): {"id": 2, "a": 2, "b": "two"},
        (3,): {"id": 3, "other": "new"},
    }
    assert latest(read(attempts, "u")) == {(2,): {"id": 2, "a": 20, "b": "two"}}


def test_primary_keys(attempts: Attempts, source: Session, database: str) -> None:
    """Dropped and recreated over the same column; over a different column rows get new keys."""
    attempts.succeed(database)
    source.run(
        "begin; alter table t drop constraint t_pkey; insert into t values (3, 3, 'x');"
        " alter table t add primary key (id); update t set a = 30 where id = 3; commit"
    )
    # The row that was written without the key is sent under the table's current key.
    attempts.succeed(database)
    assert latest(read(attempts))[3,] == {"id": 3, "a": 30, "b": "x"}
    source.run("alter table t drop constraint t_pkey; alter table t add primary key (id, a)")
    source.run("update t set b = 'new key' where id = 1")
    attempts.succeed(database)
    assert latest(read(attempts))[1, 1] == {"id": 1, "a": 1, "b": "new key"}
    assert latest(read(attempts))[1,]["b"] == "one"


def test_keys_under_full(attempts: Attempts, source: Session, database: str) -> None:
    """Only the catalog has them, and it has changed since when the rows are read."""
    source.publish_all(attempts.name)
    for name in ("renamed", "dropped", "mixed"):
        source.run(f"create table {name} (x int, id int primary key, n text)")
        source.run(f"alter table {name} replica identity full; insert into {name} values (0, 1, 'one')")
    source.run("alter table mixed drop column x")
    attempts.succeed(database)
    for name in ("renamed", "dropped", "mixed"):
        source.run(f"update {name} set n = 'two'")
    source.run("alter table renamed rename id to number; update renamed set n = 'three'")
    source.run("alter table mixed rename id to number; update mixed set n = 'three'")
    source.run("drop table dropped")
    # One was recorded before it was under FULL, one was never recorded.
    for name in ("switched", "unseen"):
        source.run(f"create table {name} (id int primary key, n text)")
        if name == "switched":
            source.run("insert into switched values (1, 'one')")
        source.run(f"alter table {name} replica identity full")
        source.run(f"insert into {name} values (2, 'two'); drop table {name}")
    status = attempts.succeed(database).status
    assert latest(read(attempts, "switched")) == {(1,): {"id": 1, "n": "one"}, (2,): {"id": 2, "n": "two"}}
    assert read(attempts, "unseen") == [(None, {"id": 2, "n": "two"})]
    assert any("the table was dropped" in note for note in status["tables"]["public.unseen"]["notes"])
    # Another key schema gives other bytes: the row from before is still under its old key.
    by_key = {json.dumps(key): value for key, value in read(attempts, "renamed")}
    assert by_key == {
        '{"id": 1}': {"x": 0, "id": 1, "n": "two"},
        '{"number": 1}': {"x": 0, "number": 1, "n": "three"},
    }
    assert latest(read(attempts, "dropped")) == {(1,): {"x": 0, "id": 1, "n": "two"}}
    keys = [list(key or {}) for key, _ in read(attempts, "mixed")]
    assert sorted(keys) == [["id"], ["id"], ["number"]]


def test_key_made_under_full_while_the_relay_runs(attempts: Attempts, source: Session, database: str) -> None:
    """PostgreSQL announces the same relation as before: only the catalog shows the change."""
    source.publish_all(attempts.name)
    attempts.succeed(database, "-u")
    source.run("create table f2 (id int not null, n text); alter table f2 replica identity full")
    source.run(
        "begin; insert into f2 values (1, 'x'); alter table f2 add primary key (id);"
        " update f2 set n = 'y'; commit"
    )
    attempts.succeed(database, "-u")
    assert [key for key, _ in read(attempts, "f2")] == [{"id": 1}, {"id": 1}]


def test_types_that_are_gone(attempts: Attempts, source: Session, database: str) -> None:
    """A domain or an enum that was dropped meanwhile is remembered.

    One that was never seen is sent as text.
    """
    source.run("create domain price as numeric(6,1); create type mood as enum ('glad')")
    source.run("alter table t add p price, add m mood[]")
    source.run("update t set p = 1.5, m = '{glad}'")
    attempts.succeed(database)
    set_rule(attempts.services, f"{attempts.name}.t-value", "BACKWARD")
    source.run("update t set p = 2.5, m = '{glad,null}' where id = 1")
    source.run("alter table t alter p type numeric(6,1), drop column m; drop domain price; drop type mood")
    source.run("update t set p = 3.5 where id = 2")
    source.run("create domain brief as int; alter table t add z brief; update t set z = 4 where id = 2")
    source.run("alter table t drop column z; drop domain brief")
    attempts.succeed(database)
    found = latest(read(attempts))
    assert (str(found[1,]["p"]), found[1,]["m"]) == ("2.5", ["glad", None])
    assert (str(found[2,]["p"]), found[2,]["z"]) == ("3.5", "4")
    assert "m" not in found[2,]


def test_unchanged_values_of_columns_that_are_gone(
    attempts: Attempts, source: Session, database: str
) -> None:
    value = {name: large() for name in ("renamed", "dropped", "twice", "moved", "replaced", "typed")}
    for name in value:
        source.run(f"create table {name} (id int primary key, n int, big text)")
        source.run(f"alter table {name} alter big set storage external")
        source.run(f"insert into {name} values (1, 0, %s)", value[name])
    source.run("alter table twice add more text; alter table twice alter more set storage external")
    source.run("update twice set more = %s", value["twice"])
    source.run("alter table replaced add fresh text; alter table replaced alter fresh set storage external")
    source.run("update replaced set fresh = %s", fresh := large())
    source.run("alter table typed add raw bytea; alter table typed alter raw set storage external")
    source.run("update typed set raw = decode(%s, 'hex')", large())
    attempts.succeed(database)
    for name in value:
        source.run(f"update {name} set n = 1")
    # The new column replaces the old one, under its name.
    source.run("alter table replaced rename big to old; alter table replaced rename fresh to big")
    source.run("alter table replaced drop old")
    source.run("alter table typed alter raw type text using 'no bytes', alter big type varchar(9000)")
    source.run("alter table renamed rename big to large; alter table renamed rename id to number")
    source.run("alter table dropped drop big; alter table twice drop big")
    source.run("alter table moved rename to elsewhere; create schema s; alter table elsewhere set schema s")
    # A new column with the old name is not the one whose value is missing.
    source.run("alter table renamed add big text default 'another'")
    status = attempts.succeed(database).status
    mark = {"__escaped": {"unchanged TOAST": "big"}}
    assert latest(read(attempts, "renamed")) == {(1,): {"id": 1, "n": 1, "big": value["renamed"]}}
    assert latest(read(attempts, "moved")) == {(1,): {"id": 1, "n": 1, "big": value["moved"]}}
    replaced = latest(read(attempts, "replaced"))[1,]
    assert replaced == {"id": 1, "n": 1, "big": None, "fresh": fresh} | mark
    raw = {"__escaped": {"unchanged TOAST": "raw"}}
    assert latest(read(attempts, "typed"))[1,] == {"id": 1, "n": 1, "big": value["typed"], "raw": None} | raw
    assert latest(read(attempts, "dropped")) == {(1,): {"id": 1, "n": 1, "big": None} | mark}
    assert (
        latest(read(attempts, "twice"))[1,] == {"id": 1, "n": 1, "big": None, "more": value["twice"]} | mark
    )
    assert status["tables"]["public.dropped"]["toast_placeholders"] == 1


def test_publication(attempts: Attempts, source: Session, database: str) -> None:
    """A table that is added, or returns, has its existing rows sent."""
    source.run("create table later (id int primary key)")
    source.run("create publication p for table t")
    attempts.succeed(database, "--publication", "p")
    source.run("insert into later values (1); update t set a = 10 where id = 1")
    source.run("alter publication p add table later; insert into later values (2)")
    source.run("alter publication p drop table t; update t set a = 20 where id = 1")
    source.run("begin; alter publication p add table t; update t set a = 30 where id = 2; commit")
    attempts.succeed(database, "--publication", "p")
    assert latest(read(attempts, "later")) == {(1,): {"id": 1}, (2,): {"id": 2}}
    found = {row["id"]: row["a"] for row in latest(read(attempts)).values()}
    assert found == {1: 20, 2: 30}


@pytest.mark.parametrize("policy", ["exit", "log"])
def test_incompatible(
    attempts: Attempts, source: Session, database: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 409 follows --on-error, names field and rule, and every record of the topic is readable."""
    attempts.succeed(database)
    subject = f"{attempts.name}.t-value"
    set_rule(attempts.services, subject, "BACKWARD")
    source.run("update t set a = 10 where id = 1")
    source.run(
        "begin; update t set a = 20 where id = 2;"
        " alter table t alter a type text using 'word'; insert into t values (3, 'word', 'x'); commit"
    )
    if policy == "exit":
        error, hint = attempts.fail(database, 2)
        assert 'field "a" changed from int to string' in error
        assert "rule BACKWARD" in error
        assert f"config/{subject}" in hint
        found = {row["id"]: row["a"] for row in latest(read(attempts)).values()}
        assert found[1] == 10
        set_rule(attempts.services, subject, "NONE")
        attempts.succeed(database)
    else:
        source.run("alter table t alter a type int using 5; update t set a = 6 where id = 2")
        status: dict[str, Any] = attempts.run(database, "--on-error", "log").status
        assert status["tables"]["public.t"]["dead_letters"] == 1
        monkeypatch.setenv("BWTUI_STATE_HOME", str(attempts.state))
        (line,) = (state_folder(attempts.name) / "dead-letters.jsonl").read_text().splitlines()
        assert 'field "a" changed from int to string' in json.loads(line)["error"]
    found = {row["id"]: row["a"] for row in latest(read(attempts)).values()}
    assert found == ({1: 10, 2: 20, 3: "word"} if policy == "exit" else {1: 10, 2: 6})
