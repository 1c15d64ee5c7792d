"""A partly published key would be the key of many rows: it is refused, with the statement that fixes it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bwtui.errors import RefusedError
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.settings import RelaySettings
from bwtui.source.connection import connect
from bwtui.source.preflight import server_checks
from tests.attempts import Attempts
from tests.database import Session
from tests.decoded_topic import decoded_avro
from tests.faults.relays import Relay, new_name
from tests.waiting import eventually

pytestmark = pytest.mark.since(15, "publications have column lists")
TABLE = "create table t (tenant int, id int, note text, last int default 0, primary key (tenant, id))"


def check(database: str, *, allow_unkeyed: bool = False) -> str:
    """Run doctor's check of the keys."""
    settings = RelaySettings(postgres=database, publication="p", allow_unkeyed=allow_unkeyed)
    connection = connect(database)
    try:
        (found,) = [one for one in server_checks(connection, settings) if one.name == "keys are published"]
        return found.run()
    finally:
        connection.close()


def refused(database: str, *, allow_unkeyed: bool = False) -> RefusedError:
    """Return the error of the check."""
    with pytest.raises(RefusedError) as caught:
        check(database, allow_unkeyed=allow_unkeyed)
    return caught.value


def run_hint(source: Session, hint: str | None) -> None:
    """Run the statement of a hint."""
    found = re.search(r"run: ((?:BEGIN; .*; COMMIT)|[^;]*)", hint or "")
    assert found, hint
    source.run(found[1])


# -- before the relay starts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alter", "listed", "missing"),
    [
        ("", "tenant, note", "column id is missing"),
        ("", "id", "column tenant is missing"),
        ("", "note", "columns tenant, id are missing"),
        ("alter table t replica identity full", "tenant, note", "column id is missing"),
        pytest.param(
            "alter table t alter last set not null; create unique index by_last on t (id, last);"
            " alter table t replica identity using index by_last",
            "tenant, id, note",
            "column last is missing",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_column_list_without_some_of_the_key(
    database: str, source: Session, alter: str, listed: str, missing: str
) -> None:
    source.run("create table other (id int primary key, n int)")
    source.run(TABLE)
    if alter:
        source.run(alter)
    where = "" if "full" in alter else "where (note <> 'x')"
    source.run(f"create publication p for table other (id), t ({listed}) {where} with (publish = 'insert')")
    error = refused(database)
    assert error.message == (
        f"the key of table public.t is not published completely, so rows would share a key: {missing}"
    )
    run_hint(source, error.hint)
    assert check(database) == "every key column"
    sql = "select tablename::text, attnames::text[], rowfilter is not null from pg_publication_tables"
    rows = {name: (set(columns), filtered) for name, columns, filtered in source.rows(sql)}
    assert rows["other"] == ({"id"}, False)
    assert rows["t"][0] >= {part.strip() for part in listed.split(",")}
    assert rows["t"][1] == bool(where)


def test_no_key_at_all_merges_nothing_with_u(database: str, source: Session) -> None:
    source.run(TABLE)
    source.run("create publication p for table t (note) with (publish = 'insert')")
    assert check(database, allow_unkeyed=True) == "every key column"
    source.run("alter publication p set table t (note, id)")
    assert "column tenant is missing" in refused(database, allow_unkeyed=True).message


@pytest.mark.parametrize("made", [True, False])
def test_a_generated_column_in_the_key(database: str, source: Session, made: bool) -> None:
    source.run("create table t (a int, b int generated always as (a * 2) stored, primary key (a, b))")
    if made:
        source.run("create publication p for all tables with (publish = 'insert')")
    error = refused(database)
    assert "column b is missing" in error.message
    if source.connection.server_version < 180000:
        assert "PostgreSQL publishes generated columns from version 18 on" in str(error.hint)
    elif made:
        run_hint(source, error.hint)
        assert check(database) == "every key column"
    else:
        assert "publish_generated_columns = stored" in str(error.hint)


def test_what_is_whole(database: str, source: Session) -> None:
    source.run(TABLE)
    source.run("create table included (id int primary key, n int not null, m int, gen int generated always"
               " as (m) stored); create unique index i on included (n) include (m);"
               " alter table included replica identity using index i")  # fmt: skip
    source.run("create table nothing (id int, n int, primary key (id, n))")
    source.run("alter table nothing replica identity nothing")
    assert check(database, allow_unkeyed=True) == "every key column"
    source.run("create publication p for table t (note, id, tenant), included (n), nothing (n)")
    assert check(database, allow_unkeyed=True) == "every key column"


def test_connect_is_refused(attempts: Attempts, database: str, source: Session) -> None:
    source.run(TABLE)
    name = f"bwtui_{attempts.name}"
    source.run(f"create publication {name} for table t (tenant, note) with (publish = 'insert')")
    source.run("insert into t values (1, 1, 'a'), (1, 2, 'b')")
    error, hint = attempts.fail(database, 2)
    assert "column id is missing" in error
    run_hint(source, hint)
    attempts.succeed(database)
    keys = [key for key, _ in decoded_avro(attempts.services, f"{attempts.name}.t")]
    assert sorted(key["id"] for key in keys if key) == [1, 2]


# -- while it streams ----------------------------------------------------------------------------------------


@pytest.fixture
def relay(
    services: ServiceAddresses, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Relay]:
    """A relay of a publication of inserts, because PostgreSQL itself refuses the other operations."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    made = Relay(services, database, tmp_path, new_name("keys"), "--publication", "p", "--on-gap", "report")
    yield made
    made.close()


LIST = "alter publication p set table t ({})"


@pytest.mark.parametrize(
    ("before", "change", "missing"),
    [
        ("", LIST.format("tenant, note"), "column id is missing"),
        ("", LIST.format("tenant, note") + "; alter table t replica identity full", "column id is missing"),
        pytest.param(
            "alter table t alter last set not null; create unique index by_last on t (id, last);"
            + LIST.format("tenant, id, note"),
            "alter table t replica identity using index by_last",
            "column last is missing",
            marks=pytest.mark.long,
        ),
        pytest.param(
            LIST.format("tenant, id, note"),
            "alter table t drop constraint t_pkey; alter table t add primary key (tenant, id, last)",
            "column last is missing",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "",
            "alter table t drop last; alter table t add last int not null generated always as (id) stored;"
            " alter table t drop constraint t_pkey; alter table t add primary key (tenant, last)",
            "column last is missing",
            marks=pytest.mark.long,
        ),
    ],
    ids=["list", "full", "index", "wider key", "generated"],
)
def test_it_comes_about_while_streaming(
    relay: Relay, source: Session, before: str, change: str, missing: str
) -> None:
    """The rows from before are sent, those after are not; the hint's statement lets the relay continue."""
    source.run(TABLE)
    source.run("create publication p for table t with (publish = 'insert')")
    if before:
        source.run(before)
    relay.start()
    relay.wait_streaming()
    source.run("insert into t (tenant, id, note) values (1, 1, 'a')")
    relay.wait_caught_up()
    source.run(change)
    source.run("insert into t (tenant, id, note) values (1, 2, 'b'), (1, 3, 'c')")
    assert relay.join() == 2
    words = relay.last_words()
    assert missing in words
    source.run("insert into t (tenant, id, note) values (1, 4, 'd')")
    relay.start()
    assert relay.join() == 2
    if source.connection.server_version < 180000 and "generated" in change:
        return
    run_hint(source, relay.last_words().partition("hint: ")[2].strip())
    source.run("insert into t (tenant, id, note) values (1, 5, 'e')")
    # The rows from in between have no key that distinguishes them, not even now.
    relay.start()
    assert relay.join() == 2
    assert "new rows contain it" in relay.last_words()
    relay.run("--on-error", "log")
    assert len(relay.letters()) == 3
    rows = [row for _, row in decoded_avro(relay.services, f"{relay.name}.t") if row]
    # A table that gets its key, or is listed again, has its existing rows sent.
    assert {row["note"] for row in rows} >= {"a", "e"}
    eventually("nothing is left to read", lambda: relay.has_ended)


def test_a_key_that_grew_is_no_partial_one(relay: Relay, source: Session) -> None:
    """Rows from before ADD COLUMN and a wider key are read after it, and lack nothing."""
    source.run("create table t (tenant int primary key, note text)")
    source.run("create publication p for table t")
    relay.run()
    source.run("insert into t values (1, 'a')")
    source.run("alter table t add id int not null default 7; alter table t drop constraint t_pkey")
    source.run("alter table t add primary key (tenant, id); insert into t values (1, 'b', 8)")
    relay.run()
    keys = [key for key, _ in decoded_avro(relay.services, f"{relay.name}.t")]
    assert sorted(keys, key=str) == [{"tenant": 1, "id": 8}, {"tenant": 1}]
