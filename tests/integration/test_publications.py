"""The relay's publications: what they publish, what they leave out, and that no application breaks."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from bwtui.errors import RefusedError
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.settings import RelaySettings
from bwtui.source import publication, publication_coverage, slot
from bwtui.source.connection import connect, execute
from bwtui.source.preflight import selected_tables
from bwtui.source.slot import TemporarySlot
from tests.attempts import Attempts
from tests.database import Session, session
from tests.decoded_topic import decoded_avro, latest
from tests.faults.relays import Relay, new_name
from tests.integration.test_verify_database import arguments, relaying
from tests.raw_topic import raw_records
from tests.waiting import eventually


@pytest.fixture
def relay(
    services: ServiceAddresses, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Relay]:
    """A relay that captures tables without a key."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    made = Relay(services, database, tmp_path, new_name("published"), "-u")
    yield made
    made.close()


def warnings(attempts: Attempts, database: str, *args: str) -> dict[str, dict[str, Any]]:
    """Return doctor's warnings, by name."""
    services = attempts.services
    ends = ["-d", database, "-b", services.broker, "-r", services.schema_registry, "-s", attempts.name]
    ended = attempts.command_here("doctor", *ends, "--json", *args)
    assert ended.stdout, ended.stderr
    return {found["name"]: found for found in json.loads(ended.stdout)["warnings"]}


def told(database: str, name: str, *, allow_unkeyed: bool = True) -> dict[str, str]:
    """Return the shortcomings of the publications of ``name``, as sentences with their hints."""
    settings = RelaySettings(
        postgres=database, publication=name, slot=name.removeprefix("bwtui_"), allow_unkeyed=allow_unkeyed
    )
    with connect(database) as connection:
        found = {
            f"{one.subject} {one.says}": one.hint
            for one in publication_coverage.shortfalls(connection, settings)
        }
    connection.close()
    return found


def statement(hint: str) -> str:
    """Return the SQL of a hint."""
    found = re.search(r"(BEGIN; .*; COMMIT|ALTER [^;]*|create [^;]*)", hint)
    assert found, hint
    return found[1]


# -- an application never breaks -----------------------------------------------------------------------------


def test_tables_made_later_can_be_written_and_are_told_of(relay: Relay, source: Session) -> None:
    """In an empty database, with -u: nothing is published for which PostgreSQL would refuse an UPDATE."""
    relay.start("--new-tables", "announce")
    relay.wait_streaming()
    source.run("create table bare (i int); create table keyed (id int primary key, n int)")
    source.run("create table loses (id int primary key, n int); create unlogged table quick (i int)")
    for table in ("bare", "quick"):
        source.run(f"insert into {table} values (1); update {table} set i = 2; delete from {table}")
    source.run("insert into keyed values (1, 1); update keyed set n = 2; insert into loses values (1, 1)")
    source.run("alter table loses drop constraint loses_pkey; update loses set n = 2; delete from loses")
    # The notices may have been read while there was only one of them.
    source.run("create table last (id int primary key)")
    status = relay.wait("notices", lambda status: any(e.table == "public.last" for e in status.errors))
    hints = {entry.table: str(entry.hint) for entry in status.errors if entry.kind == "notice"}
    assert set(hints) == {"public.bare", "public.keyed", "public.loses", "public.last"}
    for table in ("bare", "keyed"):
        source.run(statement(hints[f"public.{table}"]))
    source.run("insert into bare values (3); update bare set i = 4")
    source.run("insert into keyed values (2, 1); update keyed set n = 3")
    relay.wait_caught_up()
    relay.stop()
    sent = [value["i"] for _, value in decoded_avro(relay.services, f"{relay.name}.bare") if value]
    assert sorted(sent) == [3]
    keyed = {
        row["id"]: row["n"] for row in latest(decoded_avro(relay.services, f"{relay.name}.keyed")).values()
    }
    assert keyed == {1: 3, 2: 3}


def test_a_publication_for_all_tables_is_told_of(
    attempts: Attempts, database: str, source: Session, relay: Relay
) -> None:
    """A publication of an earlier version; the hints' statements fix it while a relay runs."""
    source.run("create table keyed (id int primary key, n int)")
    source.publish_all(relay.name)
    name = f"bwtui_{relay.name}"
    found = warnings(attempts, database, "--publication", name)[f"publication {name}"]
    assert "rejects an application's UPDATE and DELETE" in found["message"]
    relay.start()
    relay.wait_streaming()
    source.run("create table bare (i int); insert into bare values (1)")
    with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState):
        source.run("update bare set i = 2")
    says = told(database, name)
    (blocked,) = [sentence for sentence in says if sentence.startswith("table public.bare")]
    assert "rejects an application's UPDATE and DELETE on it" in blocked
    (first,) = [hint for sentence, hint in says.items() if sentence.startswith("publication")]
    source.run(statement(first))
    relay.wait_caught_up()
    relay.stop()
    source.run("insert into keyed values (1, 1); insert into bare values (2)")
    (then,) = [hint for sentence, hint in told(database, name).items() if sentence.startswith("publication")]
    # The publications of these names may be replaced at any time, also while no relay runs.
    source.run(statement(then))
    source.run("update bare set i = 2; insert into bare values (3); update keyed set n = 2")
    assert not told(database, name)
    relay.run()
    sent = [value["i"] for _, value in decoded_avro(relay.services, f"{relay.name}.bare") if value]
    # Created and listed between two polls: its rows may be sent again, as no key shows that they were sent.
    assert set(sent) == {1, 2, 3}
    (row,) = latest(decoded_avro(relay.services, f"{relay.name}.keyed")).values()
    assert row == {"id": 1, "n": 2}


def test_a_table_without_a_key_that_the_relay_leaves_out_is_told_of(database: str, source: Session) -> None:
    source.run("create table bare (i int); create publication p for all tables")
    settings = RelaySettings(postgres=database, publication="p", exclude_tables=("bare",))
    connection = connect(database)
    found = [one.table for one in publication_coverage.shortfalls(connection, settings)]
    connection.close()
    assert found == [None, "public.bare"]
    (hint,) = [hint for says, hint in told(database, "p").items() if "public.bare" in says]
    source.run(statement(hint.partition("run: ")[2]))
    source.run("update bare set i = 2")
    assert list(told(database, "p")) == [says for says in told(database, "p") if says.startswith("publ")]


@pytest.mark.since(15, "publications have schemas")
def test_a_publication_of_a_schema_includes_only_its_future_tables(database: str, source: Session) -> None:
    source.run("create schema s; create table s.t (id int primary key); create publication p for table s.t")
    assert not told(database, "p")
    source.run("alter publication p add tables in schema s")
    (says,) = told(database, "p")
    assert says.startswith("publication p includes all future tables of its schemas, and publishes")
    source.run("drop publication p; create publication p for all tables")
    (says,) = told(database, "p")
    assert says.startswith("publication p includes all future tables, and publishes")


@pytest.mark.since(15, "publications have column lists and row filters")
def test_rows_and_columns_that_are_left_out_are_told_of(
    attempts: Attempts, database: str, source: Session
) -> None:
    source.run("create table t (id int primary key, a text, b text, g int generated always as (id) stored)")
    source.run("create table whole (id int primary key); create table bare (i int, j int)")
    source.run("create table root (id int primary key, a text) partition by range (id)")
    main = f"bwtui_{attempts.name}"
    source.run(
        f"create publication {main} for table t (id) where (id > 5), whole, root (id)"
        " with (publish_via_partition_root = true)"
    )
    source.run(f"create publication {main}_unkeyed for table bare (j) with (publish = 'insert')")
    found = {name: hint for name, hint in told(database, main).items() if "published " in name}
    assert list(found) == [
        "table public.bare is published without its column i",
        "table public.root is published without its column a",
        "table public.t is published only where (id > 5): other rows are not captured",
        "table public.t is published without its columns a, b",
    ]
    shown = warnings(attempts, database, "-u")
    assert shown["table public.bare"]["message"] == "is published without its column i"
    for hint in dict.fromkeys(found.values()):
        assert hint.startswith("if that is unintended, run: BEGIN; ALTER PUBLICATION")
        source.run(statement(hint))
    assert told(database, main) == {}


@pytest.mark.since(15, "publications have row filters")
def test_a_table_of_1600_columns_costs_no_minutes(database: str, source: Session) -> None:
    """A relay repeats this query in the session that also queries its slot."""
    source.run(f"create table wide ({', '.join(f'c{number} int' for number in range(1600))})")
    source.run("create publication everything for table wide")
    with closing(connect(database)) as connection:
        # On an idle machine it takes 0.1 s; when the list was computed again for each column, 38 s.
        execute(connection, "set statement_timeout = '10s'")
        assert publication_coverage.narrowed(connection, ["everything"], []) == {}
        source.run("alter publication everything set table wide (c0)")
        [says] = publication_coverage.narrowed(connection, ["everything"], [])["public", "wide"]
        assert says.startswith("is published without its columns c1, c10, c100, ")


def test_a_filter_of_some_operations_is_told_of(database: str, source: Session) -> None:
    source.run("create table t (id int primary key); create publication p for table t where (id > 5)")
    source.run("create publication p_unkeyed for table t with (publish = 'insert, truncate')")
    says = "has updates and deletes published only where (id > 5): others are not captured"
    assert f"table public.t {says}" in told(database, "p")


@pytest.mark.since(15, "publications have column lists and row filters")
def test_an_audit_notes_rows_and_columns_that_are_left_out(
    attempts: Attempts, database: str, source: Session
) -> None:
    source.run("create table t (id int primary key, a text); insert into t values (1, 'x'), (9, 'y')")
    source.run(f"create publication bwtui_{attempts.name} for table t (id) where (id > 5)")
    with relaying(attempts, database, source):
        ended = attempts.command_here(*arguments(attempts, database), "--json")
        notices = json.loads(attempts.command_here("status", attempts.name, "--json").stdout)["errors"]
    report = json.loads(ended.stdout)
    assert (ended.code, report["verdict"], report["expected"]) == (0, "clean", 1)
    left_out = ["only where (id > 5): other rows are not captured", "without its column a"]
    assert report["notes"] == [f"public.t is published {one}" for one in left_out]
    assert [one["message"] for one in notices] == [f"table {one}" for one in report["notes"]]


@pytest.mark.parametrize("via_root", [True, False])
def test_a_partition_without_a_key_is_told_of(database: str, source: Session, via_root: bool) -> None:
    source.run("create table t (id int primary key) partition by range (id)")
    source.run("create table low partition of t for values from (0) to (10)")
    source.run("alter table low replica identity nothing; insert into t values (1)")
    source.run(f"create publication p for table t with (publish_via_partition_root = {via_root})")
    with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState):
        source.run("delete from t")
    ((says, hint),) = told(database, "p").items()
    assert says.startswith(f"table public.{'t' if via_root else 'low'} has no replica identity")
    assert ("each of its partitions" if via_root else 'ALTER TABLE "public"."low"') in hint
    source.run("alter table low replica identity full; delete from t")
    assert not told(database, "p")


def test_a_table_that_got_its_key_later_is_told_of(
    attempts: Attempts, database: str, source: Session
) -> None:
    """Only its inserts are published, so its topic would be wrong silently."""
    source.run("create table bare (i int, n int)")
    attempts.succeed(database, "-u")
    source.run("alter table bare add primary key (i)")
    ((says, hint),) = told(database, f"bwtui_{attempts.name}").items()
    assert says == (
        "table public.bare has a replica identity, but its updates and deletes are not published:"
        " its topic does not follow it"
    )
    assert hint.startswith("the relay compares the table after this step, and sends what differs; run: ")
    source.run(statement(hint))
    source.run("insert into bare values (1, 1); update bare set n = 2")
    assert not told(database, f"bwtui_{attempts.name}")
    # A topic of rows without a key is not compacted, so it accepts keys too.
    attempts.succeed(database, "-u")
    (row,) = latest(decoded_avro(attempts.services, f"{attempts.name}.bare")).values()
    assert row == {"i": 1, "n": 2}


def test_a_publication_of_inserts_alone_is_told_of(database: str, source: Session) -> None:
    source.run("create table t (id int primary key)")
    source.run("create publication p for table t with (publish = 'insert')")
    ((says, hint),) = told(database, "p").items()
    assert "its updates and deletes are not published" in says
    source.run(statement(hint))
    assert not told(database, "p")


@pytest.mark.parametrize("target", ["for table t, bare", "for all tables"])
def test_what_is_advised_for_a_publication_of_inserts_blocks_no_table(
    database: str, source: Session, target: str
) -> None:
    """If it published updates too, PostgreSQL would refuse the updates of each table in it without a key."""
    source.run("create table t (id int primary key); create table bare (i int); insert into bare values (1)")
    source.run(f"create publication p {target} with (publish = 'insert, truncate')")
    for _ in range(3):
        for hint in [
            hint for says, hint in told(database, "p").items() if says.startswith("table public.t ")
        ]:
            source.run(statement(hint))
        source.run("update bare set i = i + 1")
    assert not told(database, "p")


@pytest.mark.parametrize("allow_unkeyed", [True, False])
def test_what_an_unkeyed_table_needs_that_came_later(
    database: str, source: Session, allow_unkeyed: bool
) -> None:
    """The publication of inserts may be missing, and without -u it would stop the relay."""
    source.run("create publication p; create table bare (i int)")
    ((says, hint),) = told(database, "p", allow_unkeyed=allow_unkeyed).items()
    assert says == "table public.bare is not in the publication"
    if allow_unkeyed:
        source.run(statement(hint))
        source.run("insert into bare values (1); update bare set i = 2")
        assert not told(database, "p")
    else:
        assert hint.endswith("or start with -u")
        assert "publication" not in hint.lower()


@pytest.mark.parametrize("allow_unkeyed", [True, False])
@pytest.mark.parametrize(
    ("alter", "says"),
    [
        ("alter table late replica identity nothing", "it has REPLICA IDENTITY NOTHING"),
        (
            "alter table late drop constraint late_pkey, add primary key (id) deferrable",
            "it has a deferrable primary key",
        ),
    ],
)
def test_a_table_whose_primary_key_is_unused_gets_the_statement_that_changes_that(
    database: str, source: Session, alter: str, says: str, allow_unkeyed: bool
) -> None:
    source.run("create publication p; create table late (id int primary key)")
    source.run(alter)
    ((_, hint),) = told(database, "p", allow_unkeyed=allow_unkeyed).items()
    assert hint.startswith(says)
    assert "add a primary key" not in hint
    source.run(statement(hint))
    ((_, hint),) = told(database, "p", allow_unkeyed=allow_unkeyed).items()
    source.run(statement(hint))
    assert not told(database, "p", allow_unkeyed=allow_unkeyed)


def test_a_partitioned_table_with_a_deferrable_key_gets_the_statement_that_changes_it(
    database: str, source: Session
) -> None:
    """An index of the root is no replica identity of its partitions."""
    source.run("create publication p; create table late (id int) partition by range (id)")
    source.run("create table late_low partition of late for values from (0) to (10)")
    source.run("alter table late add primary key (id) deferrable")
    ((_, hint),) = told(database, "p").items()
    assert hint.startswith("it has a deferrable primary key")
    source.run(statement(hint))
    ((_, hint),) = told(database, "p").items()
    source.run(statement(hint))
    assert not told(database, "p")


def test_a_published_table_with_replica_identity_nothing_gets_its_statement(
    database: str, source: Session
) -> None:
    source.run("create table t (id int primary key); create publication p for table t")
    source.run("alter table t replica identity nothing")
    ((says, hint),) = told(database, "p").items()
    assert "PostgreSQL rejects an application's UPDATE and DELETE on it" in says
    assert hint == (
        "it has REPLICA IDENTITY NOTHING, so its primary key does not identify rows: "
        'run: ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT;'
    )
    source.run(statement(hint))
    assert not told(database, "p")


def test_a_short_run_tells_of_a_table_too(attempts: Attempts, database: str, source: Session) -> None:
    source.run("create table t (id int primary key)")
    attempts.succeed(database)
    source.run("create table late (id int primary key)")
    errors = attempts.succeed(database).status["errors"]
    assert [entry["table"] for entry in errors] == ["public.late"]
    source.run("create table later (id int primary key)")
    errors = attempts.succeed(database, "--new-tables", "announce").status["errors"]
    said = "table public.later is not in the publication"
    assert [entry["message"] for entry in errors if entry["kind"] == "notice"] == [said]


def test_a_table_made_between_two_looks_is_not_called_left_out(
    database: str, source: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lists of tables and of published ones are from two moments, whatever the session's snapshot is."""
    source.run("create table stays (id int primary key); create publication p for all tables")
    source.run("alter publication p set (publish = 'insert')")
    read = publication.published_tables

    def meanwhile(*args: Any) -> Any:
        before = read(*args)
        source.run("create table if not exists new (id int primary key); drop table if exists gone")
        source.run("alter table if exists old rename to renamed")
        return before

    def meanwhile_after(*args: Any) -> Any:
        meanwhile(*args)
        return read(*args)

    for look in (meanwhile, meanwhile_after):
        source.run("drop table if exists new, gone, old, renamed")
        source.run("create table gone (id int primary key); create table old (id int primary key)")
        monkeypatch.setattr(publication, "published_tables", look)
        assert not [says for says in told(database, "p") if "is not in the publication" in says]


# -- both publications, or none ------------------------------------------------------------------------------


def test_a_kill_while_they_are_made_leaves_none(attempts: Attempts, database: str, source: Session) -> None:
    source.run("create table bare (i int); create table keyed (id int primary key)")
    source.run("insert into bare values (1)")
    waits = "select count(*) from pg_locks where relation = 'bare'::regclass and not granted"
    with session(database) as other:
        other.run("begin; lock table bare in share update exclusive mode")
        with attempts.start(database, "-u") as process:
            eventually("it waits for the second table", lambda: source.value(waits))
            assert not source.publications()
            process.kill()
            process.communicate()
    eventually("its session is gone", lambda: source.value(f"select ({waits}) = 0"))
    assert not source.publications()
    attempts.succeed(database, "-u")
    assert [value for _, value in decoded_avro(attempts.services, f"{attempts.name}.bare")] == [{"i": 1}]


def test_a_table_that_is_locked_is_waited_for_a_while(
    database: str, source: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.run("create table keyed (id int primary key)")
    monkeypatch.setattr(publication, "_LOCK_TIMEOUT", "50ms")
    settings = RelaySettings(postgres=database, publication="p")
    connection = connect(database)
    tables = selected_tables(connection, settings)
    with session(database) as other, pytest.raises(RefusedError) as caught:
        other.run("begin; alter table keyed add n int")
        publication.create(connection, "p", tables)
    assert "start again once the ALTER or VACUUM" in str(caught.value.hint)
    # The session continues.
    assert publication.create(connection, "p", tables) == ("p", "p_unkeyed")
    connection.close()


def test_an_unkeyed_publication_alone_is_no_publication(
    attempts: Attempts, database: str, source: Session
) -> None:
    """An earlier version dropped them one by one, and a kill in between left this state."""
    source.run("create table bare (i int); create table keyed (id int primary key)")
    source.run(f"create publication bwtui_{attempts.name}_unkeyed for table bare")
    error, hint = attempts.fail(database, 2, "-u")
    assert error == f"publication bwtui_{attempts.name}_unkeyed exists, but bwtui_{attempts.name} does not"
    source.run(hint.partition("run: ")[2])
    attempts.succeed(database, "-u")
    assert source.publications() == [f"bwtui_{attempts.name}", f"bwtui_{attempts.name}_unkeyed"]


def test_long_names(database: str, source: Session) -> None:
    """PostgreSQL truncates a name that is too long, and bwtui still finds what it created."""
    source.run("create table bare (i int); create table keyed (id int primary key)")
    connection = connect(database)
    for name in ("x" * 63, "x" * 62 + "y", "x" * 55, "ä" * 31):
        tables = selected_tables(connection, RelaySettings(postgres=database, publication=name))
        made = publication.create(connection, name, tables)
        assert publication.existing(connection, name) == made
    connection.close()
    assert f"{'x' * 55}_unkeyed" in source.publications()
    assert len(set(source.publications())) == 8


# -- a publication that changes while a snapshot begins ------------------------------------------------------


@pytest.fixture
def after_export(monkeypatch: pytest.MonkeyPatch, source: Session) -> Callable[[str], None]:
    """Run a statement right after the first snapshot is exported."""

    def arrange(sql: str) -> None:
        make = slot.create_temporary
        statements = [sql]

        def and_then(*args: Any) -> TemporarySlot:
            made = make(*args)
            while statements:
                source.run(statements.pop())
            return made

        monkeypatch.setattr(slot, "create_temporary", and_then)

    return arrange


@pytest.mark.parametrize(
    ("publication_of", "change", "expected"),
    [
        (
            "table t",
            "insert into u values (2, 'n'); alter publication p add table u",
            {"t": {1}, "u": {1, 2}},
        ),
        (
            "table t where (id > 10), u",
            "insert into t values (2, 'n'); alter publication p set table t, u",
            {"t": {1, 2}, "u": {1}},
        ),
        (
            "table t, u (id)",
            "insert into u values (2, 'n'); alter publication p set table t, u (id, note)",
            {"t": {1}, "u": {1, 2}},
        ),
        (
            "tables in schema s",
            "insert into u values (2, 'n'); alter publication p add tables in schema public",
            {"t": {1}, "u": {1, 2}, "root": {11}},
        ),
        ("all tables", "insert into u values (2, 'n'); alter table u set unlogged", {"t": {1}}),
        (
            "all tables",
            "insert into quick values (2, 'n'); alter table quick set logged",
            {"t": {1}, "u": {1}, "quick": {1, 2}},
        ),
        ("all tables", "insert into u values (2, 'n'); drop table u", {"t": {1}}),
        (
            "all tables",
            "insert into u values (2, 'n'); alter table root attach partition u for values from (0) to (9)",
            {"t": {1}, "root": {1, 2}},
        ),
        (
            "table root",
            "insert into leaf values (12, 'n'); alter table root detach partition leaf",
            {"root": set()},
        ),
        (
            "table t, u",
            "alter table u rename note to text; insert into u values (2, 'n')",
            {"t": {1}, "u": {1, 2}},
        ),
        (
            "table t, u",
            "alter publication p drop table u; insert into u values (2, 'n');"
            " alter publication p add table u",
            {"t": {1}, "u": {1, 2}},
        ),
    ],
)
@pytest.mark.since(15, "publications have column lists, row filters and schemas")
@pytest.mark.variants(4)
def test_a_change_after_the_export_makes_another(
    attempts: Attempts,
    database: str,
    source: Session,
    after_export: Callable[[str], None],
    publication_of: str,
    change: str,
    expected: dict[str, set[int]],
) -> None:
    """pg_publication_tables has the latest catalog, and the stream continues from the exported one."""
    source.run("create table t (id int primary key, note text); create schema s")
    source.run("create table u (id int primary key, note text)")
    source.run("create unlogged table quick (id int primary key, note text)")
    source.run("create table root (id int primary key, note text) partition by range (id)")
    source.run("create table leaf partition of root for values from (10) to (20)")
    source.run("insert into quick values (1, 'n')")
    source.run(
        "insert into t values (1, 'n'); insert into u values (1, 'n'); insert into root values (11, 'n')"
    )
    source.run(f"create publication p for {publication_of} with (publish_via_partition_root = true)")
    after_export(change)
    services = attempts.services
    ends = ["-d", database, "-b", services.broker, "-r", services.schema_registry]
    words = ["connect", "--headless", "--json", "--until-caught-up", "-s", attempts.name, "-p", attempts.name]
    ended = attempts.command_here(*words, *ends, "--publication", "p")
    assert ended.code == 0, ended.stderr
    # The first run ends with the changes committed before it began.
    runs = json.loads(ended.stdout.splitlines()[-1]), attempts.succeed(database, "--publication", "p").status
    found = {name for run in runs for name, table in run["tables"].items() if table["messages"]}
    sent = {
        name: {
            row["id"]
            for row in latest(decoded_avro(services, f"{attempts.name}.{name}")).values()
            if "n" in row.values()
        }
        for name in ("t", "u", "quick", "root", "leaf")
        if f"public.{name}" in found
    }
    expected = {name: ids for name, ids in expected.items() if ids}
    if publication_of == "all tables":
        expected.setdefault("root", set()).add(11)
    assert sent == expected


@pytest.mark.parametrize("workers", ["1", "2"])
def test_rows_of_a_snapshot_are_no_younger_than_the_changes_after_it(
    attempts: Attempts, database: str, source: Session, after_export: Callable[[str], None], workers: str
) -> None:
    """Readers that order a key's records by their timestamps must end with the change."""
    source.run("create table t (id int primary key, note text); create table u (id int primary key)")
    source.run("insert into t values (1, 'before'); insert into u values (1)")
    after_export("update t set note = 'after'")
    services = attempts.services
    ends = ["-d", database, "-b", services.broker, "-r", services.schema_registry]
    words = ["connect", "--headless", "--json", "--until-caught-up", "-s", attempts.name, "-p", attempts.name]
    ended = attempts.command_here(*words, *ends, "--snapshot-workers", workers)
    assert ended.code == 0, ended.stderr
    attempts.succeed(database)
    topic = f"{attempts.name}.t"
    records = [one for found in raw_records(services, [topic]).values() for one in found]
    assert len(records) == 2
    assert records[0].timestamp()[1] <= records[1].timestamp()[1]
