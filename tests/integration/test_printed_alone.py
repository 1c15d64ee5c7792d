"""From a blank database to a relay of every table, by following only the printed statements.

The test runs a command, pastes the statements that it prints into a superuser's session, and repeats.
"""

import json
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from bwtui.errors import ConnectionFailed
from bwtui.settings import RelaySettings
from bwtui.source.connection import connect
from bwtui.source.publication_coverage import shortfalls
from tests.attempts import Attempts, Ended
from tests.database import Session
from tests.integration.test_verify_database import arguments, relaying, verify

pytestmark = pytest.mark.services

#: Statements at the end of a hint, after a colon.
_PRINTED = re.compile(r": ((?:ALTER|BEGIN|CREATE|DROP|GRANT)\b.*;)$", re.MULTILINE | re.IGNORECASE)
_STEPS = 8
_KEYED_AND_UNKEYED = "create table keyed (id int primary key); create table bare (i int)"
_EVERYTHING = """
create schema "My Shop";
create table keyed (id int primary key);
create table "My Shop"."Order ""1"" ;  [x]" (id int primary key, "A" int);
create table "My Shop"."bare\x1b[2J\u202e" (i int);
create table root (id int primary key) partition by range (id);
create table low partition of root for values from (0) to (10);
create table rootless (i int) partition by range (i);
create table high partition of rootless for values from (0) to (10);
insert into keyed values (1); insert into root values (1); insert into rootless values (1);
insert into "My Shop"."Order ""1"" ;  [x]" values (1, 2);
insert into "My Shop"."bare\x1b[2J\u202e" values (1);
"""


def statements(told: str) -> list[str]:
    """Return the printed statements, each line's once; mere advice is left out."""
    failed = re.split(r"\n(?=(?:FAIL|  ok|  -|  !) )", told)
    kept = "\n".join(one for one in failed if not one.startswith("  !"))
    return list(dict.fromkeys(_PRINTED.findall(kept)))


@dataclass(frozen=True, slots=True)
class Walk:
    """One role's steps in one database."""

    attempts: Attempts
    superuser: Session
    dsn: str
    options: tuple[str, ...]

    def step(self, command: str) -> Ended:
        """Run a command; paste the statements that it prints."""
        services = self.attempts.services
        ends = ["-d", self.dsn, "-b", services.broker, "-r", services.schema_registry]
        named = ["-s", self.attempts.name, "-p", self.attempts.name]
        ended = self.attempts.command_here(*command.split(), *ends, *named, *self.options)
        assert ended.code in (0, 2), ended.stderr
        if ended.code:
            told = f"{ended.stdout}\n{ended.stderr}"
            pasted = statements(told)
            assert all(map(str.isprintable, pasted))
            assert pasted, f"nothing to run is printed: {told}"
            for statement in pasted:
                self.superuser.run(statement)
        return ended

    def to_the_end(self, command: str) -> int:
        """Repeat until the command ends with 0; return the number of steps."""
        for steps in range(_STEPS):
            ended = self.step(command)
            if ended.code == 0:
                return steps
        raise AssertionError(f"{ended.stdout}\n{ended.stderr}")

    def missing(self) -> list[str]:
        """Return the tables that are not captured, according to the catalog alone."""
        leaves = """select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = relnamespace
                     where relkind = 'r' and nspname !~ '^(pg_|information_schema)'
                       and not exists (select from pg_publication p
                              cross join pg_get_publication_tables(p.pubname) t
                              left join pg_partition_tree(t.relid) l on true
                              where p.pubinsert and (l.relid = c.oid or t.relid = c.oid))"""
        return [row[0] for row in self.superuser.rows(leaves)]


@contextmanager
def walking(
    attempts: Attempts, database: str, source: Session, rights: str, options: tuple[str, ...] = ("-u",)
) -> Iterator[Walk]:
    """Create a role with ``rights``, whose name needs quotes, and return its steps."""
    name = f"Walker-{secrets.token_hex(4)}"
    source.run(f"create role \"{name}\" login password 'secret'")
    for right in filter(None, rights.split(";")):
        source.run(right.replace("ROLE", f'"{name}"'))
    url = urlsplit(database)
    dsn = url._replace(netloc=f"{name}:secret@{url.netloc.rpartition('@')[2]}").geturl()
    try:
        yield Walk(attempts, source, dsn, options)
    finally:
        source.run("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", name)
        source.run(f'drop owned by "{name}"; drop role "{name}"')


def publications(attempts: Attempts) -> tuple[str, str]:
    return f"bwtui_{attempts.name}", f"bwtui_{attempts.name}_unkeyed"


@pytest.mark.parametrize("command", ["doctor", "connect --headless --until-caught-up"])
def test_nothing_is_left_out_of_a_blank_database(
    attempts: Attempts, database: str, source: Session, command: str
) -> None:
    """A role without any right, names that need quotes, partitions, a separate schema."""
    source.run(_EVERYTHING)
    with walking(attempts, database, source, "") as walk:
        walk.to_the_end(command)
        assert not walk.missing()
        with relaying(attempts, walk.dsn, source):
            ended, report = verify(attempts, walk.dsn)
            assert (ended.code, report["verdict"], report["expected"]) == (0, "clean", 5), ended.stderr
            shown = attempts.command_here("status", attempts.name)
            assert ": not captured" not in shown.stdout


_SHUT = "revoke usage on schema public from public"
_OWNER = "alter table keyed owner to ROLE; alter table bare owner to ROLE"
_READER = "grant select on keyed, bare to ROLE"


@pytest.mark.parametrize(
    ("rights", "lacks"),
    [
        (f"alter role ROLE replication; {_OWNER}", "lacks the CREATE privilege"),
        (f"alter role ROLE replication; grant create on database DB to ROLE; {_READER}", "does not own"),
        (f"grant create on database DB to ROLE; {_OWNER}", "lacks the REPLICATION privilege"),
        ("alter role ROLE superuser; alter role ROLE nosuperuser replication", "can't read"),
        ("alter role ROLE replication; grant select (id) on keyed to ROLE; grant select on bare to ROLE;"
         " alter table keyed add n int", "can't read"),
        (f"alter role ROLE replication; {_READER}; alter table keyed enable row level security", "row-level"),
        (f"alter role ROLE replication; {_READER}; {_SHUT}", "can't read"),
    ],
    ids=["create", "owner", "replication", "select", "column", "row security", "usage"],
)  # fmt: skip
def test_doctor_prints_what_a_role_lacks(
    attempts: Attempts, database: str, source: Session, rights: str, lacks: str
) -> None:
    """connect has nothing to add to it."""
    source.run(_KEYED_AND_UNKEYED)
    rights = rights.replace("DB", f'"{source.value("select current_database()")}"')
    with walking(attempts, database, source, rights) as walk:
        first = walk.step("doctor")
        assert first.code == 2
        assert lacks in first.stdout
        assert "all prerequisites are met" not in first.stdout
        assert walk.to_the_end("doctor") <= 1
        settings = RelaySettings(postgres=walk.dsn, publication=publications(attempts)[0], allow_unkeyed=True)
        with closing(connect(walk.dsn)) as connection:
            assert not list(shortfalls(connection, settings))


def test_who_may_not_log_in_or_not_into_the_database_is_told_what_to_run(
    database: str, source: Session
) -> None:
    name = source.value("select current_database()")
    source.run("drop role if exists \"No One's\"; create role \"No One's\" nologin password 'x'")
    source.run(f'revoke connect on database "{name}" from public')
    where = urlsplit(database)
    dsn = f"host={where.hostname} port={where.port} dbname='{name}' user='No One\\'s' password=x"
    try:
        for _ in range(2):
            with pytest.raises(ConnectionFailed) as refused:
                connect(dsn)
            (statement,) = statements(f"hint: {refused.value.hint}")
            source.run(statement)
        connect(dsn).close()
    finally:
        source.run('drop owned by "No One\'s"; drop role "No One\'s"')


def test_without_u_the_option_that_is_printed_leaves_a_table_out(
    attempts: Attempts, database: str, source: Session
) -> None:
    source.run('create table keyed (id int primary key); create table "it\'s (1)" (i int)')
    with walking(attempts, database, source, "alter role ROLE replication", ()) as walk:
        with pytest.raises(AssertionError, match="nothing to run") as caught:
            walk.step("connect --headless --until-caught-up")
        option = re.search(r"--exclude-table ('.*'), or", str(caught.value))
        assert option and option[1] == r"""'public.it'\''s\ \(1\)'"""
        pattern = option[1][1:-1].replace(r"'\''", "'")
        without = Walk(attempts, source, walk.dsn, ("--exclude-table", pattern))
        assert without.to_the_end("doctor") == 1
        assert source.value("select count(*) from pg_publication_tables") == 1


# -- a table that is in no publication -----------------------------------------------------------------------


def test_a_table_that_is_not_captured_is_told_everywhere(
    attempts: Attempts, database: str, source: Session
) -> None:
    """A publication created by hand, only for the keyed tables, leaves it out."""
    source.run(f"{_KEYED_AND_UNKEYED}; insert into keyed values (1); insert into bare values (1)")
    main, companion = publications(attempts)
    source.run(f"create publication {main} for table keyed with (publish_via_partition_root = true)")
    walk = Walk(attempts, source, database, ("-u",))
    services = attempts.services
    ends = ["-d", database, "-b", services.broker, "-r", services.schema_registry, "-s", attempts.name]
    told = attempts.command_here("doctor", *ends, "-u")
    assert told.code == 2
    assert "FAIL  table public.bare: is not in the publication" in told.stdout
    with relaying(attempts, database, source):
        ended = attempts.command_here(*arguments(attempts, database), "--json")
        report = json.loads(ended.stdout)
        assert (ended.code, report["verdict"], report["classes"]["not_captured"]) == (1, "anomalies", 1)
        (finding,) = report["findings"]
        assert (finding["class"], finding["table"]) == ("not_captured", "public.bare")
        alone = attempts.command_here(*arguments(attempts, database), "--table", "bare")
        assert alone.code == 1
        assert "public.bare · is not in the publication; run 'bwtui doctor'" in alone.stdout
        status = json.loads(attempts.command_here("status", attempts.name, "--json").stdout)
        assert status["not_captured"] == ["public.bare"]
        # On a busy machine there may also be a short outage.
        (entry,) = [one for one in status["errors"] if one["kind"] == "notice"]
        shown = attempts.command_here("status", attempts.name).stdout
        assert "not proven: public.bare is not captured: its changes, deletes included, are not sent" in shown
        assert f"    hint: {entry['hint']}" in shown
        # The hint of the running relay names the missing publication in the statement that creates it.
        (statement,) = statements(f"hint: {entry['hint']}")
        assert statement.startswith(f'create publication "{companion}" for table only "public"."bare"')
        source.run(statement)
    assert walk.to_the_end("doctor") == 0
    attempts.succeed(database, "-u")
    source.run("insert into bare values (2)")
    assert attempts.succeed(database, "-u").status["not_captured"] == []


def test_a_publication_of_the_users_own_is_a_choice_of_tables(
    attempts: Attempts, database: str, source: Session
) -> None:
    """No status and no audit asks for the tables that it leaves out, unless --table requests them."""
    source.run(f"{_KEYED_AND_UNKEYED}; insert into keyed values (1); create publication mine for table keyed")
    with relaying(attempts, database, source, "--publication", "mine"):
        compare = (*arguments(attempts, database), "--publication", "mine", "--json")
        ended = attempts.command_here(*compare)
        assert (ended.code, json.loads(ended.stdout)["verdict"]) == (0, "clean"), ended.stderr
        requested = json.loads(attempts.command_here(*compare, "--table", "bare").stdout)
        assert requested["classes"]["not_captured"] == 1
        status = json.loads(attempts.command_here("status", attempts.name, "--json").stdout)
        assert (status["not_captured"], status["verdict"]) == ([], "streaming")
        source.run("alter publication mine drop table keyed")
        left = json.loads(attempts.command_here(*compare).stdout)
        assert [(one["class"], one["table"]) for one in left["findings"]] == [
            ("not_captured", "public.keyed")
        ]


@pytest.mark.parametrize(
    ("made", "missing"),
    [
        ("for table keyed, bare, only root", []),
        ("for table keyed with (publish = '')", ["public.bare", "public.root", "public.keyed"]),
        ("for table keyed, bare, low", ["public.high"]),
        ("for table keyed, bare, low, high", []),
        ("for table keyed, bare", ["public.root"]),
        ("for all tables with (publish = 'update')", ["public.bare"]),
    ],
)
@pytest.mark.parametrize("via_root", [True, False])
def test_what_is_not_captured(
    database: str, source: Session, made: str, missing: list[str], via_root: bool
) -> None:
    """The printed statements capture it."""
    source.run(f"{_KEYED_AND_UNKEYED}; create table root (id int primary key) partition by range (id)")
    source.run("create table low partition of root for values from (0) to (10)")
    source.run("create table high partition of root for values from (10) to (20)")
    head, with_options, options = made.partition(" with (")
    options = f"publish_via_partition_root = {via_root}, {options}" if with_options else (
        f"publish_via_partition_root = {via_root})")  # fmt: skip
    source.run(f"create publication p {head.replace('only ', '')} with ({options}")
    settings = RelaySettings(postgres=database, publication="p", allow_unkeyed=True)
    with closing(connect(database)) as connection:
        found = [one for one in shortfalls(connection, settings) if not one.captured]
        assert [one.table for one in found] == missing
        for _ in range(3):
            hints = [one.hint for one in shortfalls(connection, settings) if not one.captured]
            for statement in dict.fromkeys(one for hint in hints for one in statements(hint)):
                source.run(statement)
        assert not [one for one in shortfalls(connection, settings) if not one.captured]


def test_thousands_of_tables_are_looked_at_quickly(database: str, source: Session) -> None:
    """A relay polls every ten seconds; the output for each table does not grow with the others."""
    made = (f"create table u{number} (i int)" for number in range(800))
    source.run("; ".join([*made, "create publication p"]))
    settings = RelaySettings(postgres=database, publication="p", allow_unkeyed=True)
    with closing(connect(database)) as connection:
        begin = time.thread_time()
        found = list(shortfalls(connection, settings))
        assert time.thread_time() - begin < 1
    assert len(found) == 800
    assert len({id(one.hint) for one in found}) == 1


def test_statements_of_a_server_that_writes_too_little_wal() -> None:
    """The hint describes the restart in words, before the statement."""
    from bwtui.errors import RefusedError
    from bwtui.source.preflight import enough_wal

    for effective in (None, "replica"):
        with pytest.raises(RefusedError) as caught:
            enough_wal("replica", effective, in_recovery=effective is not None)
        assert statements(str(caught.value.hint)) == ["ALTER SYSTEM SET wal_level = logical;"]


def test_psql_would_take_it() -> None:
    """The printed statements are complete, whatever is in their names."""
    from bwtui.source.sql_hints import format_sql

    told = format_sql('drop publication "a; b"', "select 'x;''\n'")
    assert told == "BEGIN; drop publication \"a; b\"; select U&'x;''\\000A'; COMMIT;"
