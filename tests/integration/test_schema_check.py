"""``bwtui schema check``: the registry's answer in advance, without side effects."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts, Ended
from tests.database import Session
from tests.decoded_topic import decoded_avro, latest
from tests.integration.test_bad_input import free_port
from tests.integration.test_names_end_to_end import subjects, topics
from tests.integration.test_schema_changes import set_rule

pytestmark = pytest.mark.services


class Checks:
    """Runs of ``bwtui schema check`` with the topics of one relay."""

    def __init__(self, attempts: Attempts, database: str, folder: Path) -> None:
        self.attempts = attempts
        self.database = database
        self._folder = folder

    def run(self, *args: str, script: str | None = None, registry: str | None = None) -> Ended:
        name, services = self.attempts.name, self.attempts.services
        command = ["schema", "check", "-s", name, "-p", name, "-d", self.database]
        command += ["-r", registry or services.schema_registry]
        if script is not None:
            path = self._folder / "migration.sql"
            path.write_text(script)
            command += ["--ddl", str(path)]
        return self.attempts.command(*command, *args)

    def found(self, code: int, *args: str, script: str | None = None) -> dict[str, Any]:
        ended = self.run("--json", *args, script=script)
        assert ended.code == code, ended.stderr
        answer: dict[str, Any] = json.loads(ended.stdout)
        assert answer["ok"] == (code == 0)
        return dict(answer["tables"])

    def refusal(self, script: str) -> str:
        """Return the one-line error for a script that is refused."""
        ended = self.run(script=script)
        assert ended.code == 2, ended.stderr
        assert "Traceback" not in ended.stderr
        return ended.stderr


@pytest.fixture
def checks(services: ServiceAddresses, database: str, tmp_path: Path) -> Checks:
    """Checks with a separate state folder."""
    return Checks(Attempts(services, tmp_path), database, tmp_path)


@pytest.fixture
def source(database: str) -> Iterator[Session]:
    """A session on a database with two tables."""
    with closing(Session(database)) as opened:
        opened.run("create table t (id int primary key, a int, b text); create table u (id int primary key)")
        yield opened


def results(tables: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the result of each table's key and value."""
    return {name: (table["key"]["result"], table["value"]["result"]) for name, table in tables.items()}


def test_before_and_after(checks: Checks, source: Session, database: str) -> None:
    services, prefix = checks.attempts.services, checks.attempts.name
    assert results(checks.found(0)) == dict.fromkeys(("public.t", "public.u"), ("new", "new"))
    assert not subjects(services, prefix)
    assert not topics(services, prefix)
    checks.attempts.succeed(database)
    for table in "tu":
        set_rule(services, f"{prefix}.{table}-value", "BACKWARD")
    assert results(checks.found(0)) == dict.fromkeys(("public.t", "public.u"), ("unchanged", "unchanged"))
    # A table that the script creates is not published yet, and checked all the same.
    script = """alter table t add c int default 7, alter a type bigint;
        create table v (id int primary key); drop table u; comment on table t is 'commit; rollback';"""
    assert results(checks.found(0, script=script)) == {
        "public.t": ("unchanged", "compatible"),
        "public.v": ("new", "new"),
    }
    found = checks.found(1, script="alter table t alter a type text; alter table u rename id to number")
    assert found["public.t"]["value"] == {
        "subject": f"{prefix}.t-value",
        "result": "incompatible",
        "rule": "BACKWARD",
        "reasons": ['field "a" changed from int to string'],
    }
    assert source.value("select format_type(atttypid, -1) from pg_attribute where attname = 'a'") == "integer"
    assert source.value("select to_regclass('u') is not null and to_regclass('v') is null")
    assert len(subjects(services, prefix)) == 4


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("numeric(10,2)", "numeric(10,4)", "changed from decimal(10,2) to decimal(10,4)"),
        ("timestamp", "timestamptz", "changed from local-timestamp-micros to timestamp-micros"),
        ("int", "date using date '1970-01-01' + c", "changed from int to date"),
    ],
)
@pytest.mark.variants(1)
def test_a_type_under_which_older_rows_are_misread(
    checks: Checks, source: Session, database: str, before: str, after: str, reason: str
) -> None:
    """Any registry accepts it: only the type under the logical one counts there. NONE lets it pass."""
    source.run(f"alter table t add c {before}")
    checks.attempts.succeed(database)
    subject = f"{checks.attempts.name}.t-value"
    set_rule(checks.attempts.services, subject, "BACKWARD")
    script = f"alter table t alter c type {after}"
    assert checks.found(1, script=script)["public.t"]["value"] == {
        "subject": subject,
        "result": "incompatible",
        "rule": "BACKWARD",
        "reasons": [f'field "c" {reason}'],
    }
    source.run(f"{script}; insert into t values (1)")
    error, hint = checks.attempts.fail(database, 2)
    assert f'field "c" {reason}' in error and "rule BACKWARD" in error
    assert f"config/{subject}" in hint
    set_rule(checks.attempts.services, subject, "NONE")
    assert checks.found(0)["public.t"]["value"]["result"] == "compatible"
    checks.attempts.succeed(database)
    found = latest(decoded_avro(checks.attempts.services, f"{checks.attempts.name}.t"))
    assert [row["id"] for row in found.values()] == [1]


def test_for_people(checks: Checks, source: Session, database: str) -> None:
    checks.attempts.succeed(database)
    set_rule(checks.attempts.services, f"{checks.attempts.name}.t-value", "FULL")
    ended = checks.run(script="alter table t alter a type bigint")
    assert ended.code == 1
    assert 'field "a" changed from int to long' in ended.stdout
    assert "FULL" in ended.stdout
    error, hint = ended.stderr.splitlines()
    assert error == "bwtui: error: 1 of 2 tables would stop the relay"
    assert hint.startswith("hint: the lines above")
    assert checks.run().code == 0


def test_tables_that_the_relay_would_refuse(checks: Checks, source: Session, database: str) -> None:
    checks.attempts.succeed(database)
    found = checks.found(1, script="alter table t drop constraint t_pkey")
    assert "no primary key" in found["public.t"]["error"]
    prefix = checks.attempts.name
    found = checks.found(
        1,
        script="create schema a; create table a.b (id int primary key);create table a_b (id int primary key)",
    )
    assert f"{prefix}.a.b and {prefix}.a_b" in found["a.b"]["error"]
    assert found["public.t"]["ok"]


def test_scripts_that_can_not_be_tried(checks: Checks, source: Session) -> None:
    assert "contains transaction control: commit (line 2)" in checks.refusal("drop table u;\ncommit;")
    assert "contains transaction control: rollback" in checks.refusal("drop table u; rollback")
    told = checks.refusal("create index concurrently i on t (a)")
    assert "create index concurrently (line 1) can't run in a trial" in told
    assert "hint: remove it" in told
    assert 'relation "nothing" does not exist' in checks.refusal("\n\nalter table nothing add a int")
    told = checks.refusal("alter tabel t")
    assert "alter tabel t (line 1) failed: syntax error" in told
    assert "hint: fix the statement" in told
    # Even with a hidden COMMIT, the check does not commit.
    hidden = "drop table u; set standard_conforming_strings = off; select 'a\\''; commit; --'"
    assert "failed" in checks.refusal(hidden)
    hidden = "drop table u; do $$ begin commit; end $$"
    assert "invalid transaction termination" in checks.refusal(hidden)
    assert source.value("select to_regclass('u') is not null")


def test_a_lock_is_not_waited_for_long(checks: Checks, source: Session) -> None:
    source.run("begin; lock table t in share mode")
    assert "did not get its lock" in checks.refusal("alter table t add c int")
    source.run("rollback")


def test_unreachable(checks: Checks, source: Session) -> None:
    registry = f"http://127.0.0.1:{free_port()}"
    ended = checks.run(registry=registry)
    assert (ended.code, "can't reach the schema registry" in ended.stderr) == (4, True)
    checks.database = f"postgresql://postgres@127.0.0.1:{free_port()}/x"
    ended = checks.run()
    assert (ended.code, "can't connect to PostgreSQL" in ended.stderr) == (4, True)
    assert checks.run("-f", "json").code == 2


def test_it_sees_types_as_the_relay_does(checks: Checks, source: Session, database: str) -> None:
    """Domains of information_schema are neither user-defined types nor built-in ones."""
    source.run("create domain amount as numeric(8,2); create type range as range (subtype = amount)")
    source.run(
        """create table odd (id int primary key, a information_schema.cardinal_number, c pg_class,
           b information_schema.yes_or_no, n pg_node_tree, d amount[], r range)"""
    )
    source.run("insert into odd (id, a, b) values (1, 7, 'NO')")
    checks.attempts.succeed(database)
    assert results(checks.found(0))["public.odd"] == ("unchanged", "unchanged")
    (row,) = latest(decoded_avro(checks.attempts.services, f"{checks.attempts.name}.odd")).values()
    assert (row["a"], row["b"]) == (7, "NO")
