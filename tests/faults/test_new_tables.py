"""Tables created later join the publication automatically and completely, and no application breaks."""

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bwtui.demo.shop import DemoTable
from bwtui.model.status import Status
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.state_folder import state_folder
from tests.database import Session, session
from tests.decoded_topic import decoded_avro, latest
from tests.faults.records import assert_equal
from tests.faults.relays import Relay, new_name, wait_for
from tests.server_pair import Pair

NewRelay = Callable[..., Relay]


@pytest.fixture
def source(database: str) -> Iterator[Session]:
    """A session that writes."""
    with session(database) as opened:
        yield opened


@pytest.fixture
def first(source: Session) -> None:
    """One table that exists when the relay starts."""
    source.run("create table first (id int primary key, v int); insert into first values (1, 1)")


def started(new_relay: NewRelay, *args: str) -> Relay:
    relay = new_relay(*args)
    relay.start()
    relay.wait_streaming()
    return relay


def joined(status: Status) -> set[str]:
    """Return the tables whose earlier rows are sent."""
    return {one.table for one in status.backfills if one.reason == "joined" and one.state == "done"}


def wait_joined(relay: Relay, *tables: str) -> Status:
    return relay.wait(f"{tables} to join", lambda status: joined(status) >= set(tables), every=0.05)


def listed(source: Session, relay: Relay) -> dict[str, str]:
    """Return each table with those of the relay's publications that contain it."""
    sql = "select tablename, pubname from pg_publication_tables where pubname like %s"
    name = f"bwtui_{relay.name}"
    return {
        table: "keyed" if publication == name else publication.removeprefix(f"{name}_")
        for table, publication in source.rows(sql, f"{name}%")
    }


def table(name: str, schema: str = "public", key: str = "id") -> DemoTable:
    return DemoTable(schema, name, (key,))


@pytest.mark.usefixtures("first")
def test_a_new_table_joins_whole(
    new_relay: NewRelay, services: ServiceAddresses, database: str, source: Session
) -> None:
    """However it is created: rows in its own transaction, CREATE TABLE AS, a partitioned table, any name."""
    relay = started(new_relay)
    source.run("begin; create table made (id int primary key, v int)")
    source.run("insert into made select n, n from generate_series(1, 1000) n; commit")
    source.run("create table copied as select n as id, n as v from generate_series(1, 25000) n")
    source.run("alter table copied add primary key (id)")
    source.run("create table root (id int primary key, v int) partition by range (id)")
    source.run("create table low partition of root for values from (0) to (10)")
    source.run("create table high partition of root for values from (10) to (100)")
    source.run("insert into root select n, n from generate_series(1, 50) n")
    source.run('create schema "a.b"; create table "a.b"."c ""d"".e" (id int primary key, v int)')
    source.run('insert into "a.b"."c ""d"".e" values (1, 1), (2, 2)')
    names = ("public.made", "public.copied", "public.root", 'a.b.c "d".e')
    wait_joined(relay, *names)
    for name in ("made", "copied", "root", '"a.b"."c ""d"".e"'):
        source.run(f"update {name} set v = v + 1 where id % 2 = 0; delete from {name} where id = 1")
    relay.wait_caught_up()
    topic = relay.wait("a status", lambda _: True).tables[names[-1]].topic
    assert latest(decoded_avro(services, topic)) == {(2,): {"id": 2, "v": 3}}
    rows = latest(decoded_avro(services, f"{relay.name}.copied"))
    assert (len(rows), rows[2,], rows[3,]) == (24_999, {"id": 2, "v": 3}, {"id": 3, "v": 3})
    for name, count in (("made", 999), ("root", 49)):
        assert len(latest(decoded_avro(services, f"{relay.name}.{name}"))) == count
    assert not relay.wait("a status", lambda _: True).not_captured


@pytest.mark.usefixtures("first")
def test_tables_created_while_it_is_stopped_join_at_its_start(
    new_relay: NewRelay, services: ServiceAddresses, database: str, source: Session
) -> None:
    """A run that ends once it has caught up keeps the unsent rows for the next run."""
    relay = started(new_relay)
    relay.stop()
    source.run("create table late (id int primary key, v int); insert into late values (1, 1), (2, 2)")
    relay.run()
    assert listed(source, relay)["late"] == "keyed"
    source.run("update late set v = 3 where id = 1")
    relay.start()
    wait_joined(relay, "public.late")
    relay.wait_caught_up()
    assert_equal(services, database, [table("first"), table("late")], relay.name)


@pytest.mark.usefixtures("first")
def test_a_root_that_is_made_around_a_listed_table_joins(
    new_relay: NewRelay, services: ServiceAddresses, database: str, source: Session
) -> None:
    relay = started(new_relay)
    source.run("create table old (id int primary key, v int); insert into old values (1, 1), (2, 2)")
    wait_joined(relay, "public.old")
    source.run(
        "begin; create table root (id int primary key, v int) partition by range (id);"
        " alter table root attach partition old for values from (minvalue) to (maxvalue); commit"
    )
    source.run("insert into root values (3, 3)")
    wait_joined(relay, "public.root")
    relay.wait_caught_up()
    assert listed(source, relay)["root"] == "keyed"
    rows = latest(decoded_avro(services, f"{relay.name}.root"))
    assert rows == {(number,): {"id": number, "v": number} for number in (1, 2, 3)}


@pytest.mark.usefixtures("first")
def test_a_topic_with_records_from_before_its_table_is_compared(
    new_relay: NewRelay, services: ServiceAddresses, database: str, source: Session
) -> None:
    """The first relay sent them, and no row of the new table replaces those of the former one."""
    former = started(new_relay)
    source.run("create table made (id int primary key, v int); insert into made values (1, 1), (2, 2)")
    wait_joined(former, "public.made")
    former.wait_caught_up()
    former.stop()
    source.run("drop table made")
    relay = started(new_relay, "-p", former.name)
    source.run("create table made (id int primary key, v int); insert into made values (2, 3)")
    wait_joined(relay, "public.made")
    relay.wait("it to be proven", lambda status: not status.not_proven, every=0.05)
    relay.wait_caught_up()
    assert_equal(services, database, [table("first"), table("made")], former.name)
    assert f"it had records in topic {former.name}.made before it joined" in relay.log()


@pytest.mark.usefixtures("first")
def test_a_table_created_during_the_first_snapshot_joins(
    new_relay: NewRelay, services: ServiceAddresses, database: str, source: Session
) -> None:
    relay = new_relay()
    with session(database) as blocker, session(database) as other:
        blocker.run("begin; create table filler (id int); select txid_current()")
        # The slot waits for that transaction; the relay creates the publications first.
        relay.start()
        wait_for("the publications", source.publications)
        wait_for("the slot", source.slots)
        other.run("create table meanwhile (id int primary key, v int); insert into meanwhile values (1, 1)")
        blocker.run("rollback")
    wait_joined(relay, "public.meanwhile")
    relay.wait_caught_up()
    assert_equal(services, database, [table("first"), table("meanwhile")], relay.name)


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("count", [30, pytest.param(200, marks=pytest.mark.long)])
def test_many_tables_at_once_join(
    new_relay: NewRelay, services: ServiceAddresses, database: str, count: int
) -> None:
    relay = started(new_relay)
    with session(database) as other:
        other.run("begin")
        for number in range(count):
            other.run(f"create table t{number} (id int primary key); insert into t{number} values ({number})")
        other.run("commit")
    relay.wait(
        "their rows",
        lambda status: sum(t.messages for t in status.tables.values()) >= count + 1,
        300,
        every=0.5,
    )
    tables = [table("first"), *(table(f"t{number}") for number in range(count))]
    assert_equal(services, database, tables, relay.name)


# -- no application breaks -----------------------------------------------------------------------------------


def test_no_table_gets_into_a_publication_that_would_block_it(
    new_relay: NewRelay, services: ServiceAddresses, source: Session
) -> None:
    relay = started(new_relay, "-u")
    source.run("create table bare (i int); insert into bare values (1)")
    source.run(
        "create table nothing (id int primary key, v int); alter table nothing replica identity nothing"
    )
    source.run("create table later (id int, v int, primary key (id) deferrable)")
    source.run("create table whole (i int); alter table whole replica identity full")
    source.run("create table root (id int primary key) partition by range (id)")
    source.run("create table low partition of root for values from (0) to (10)")
    source.run("alter table low replica identity nothing")
    source.run("create unlogged table quick (id int primary key); create temp table own (id int primary key)")
    source.run("create table last (id int primary key)")
    places = dict.fromkeys(("bare", "nothing", "later", "root"), "unkeyed")
    places |= {"last": "keyed", "whole": "keyed"}
    wait_for("all to join", lambda: listed(source, relay).keys() == places.keys())
    assert listed(source, relay) == places
    for name in ("bare", "nothing", "later", "whole", "root"):
        column = {"bare": "i", "whole": "i"}.get(name, "id")
        source.run(f"insert into {name} ({column}) values (2); update {name} set {column} = 5")
        source.run(f"delete from {name}")
    source.run("insert into quick values (1); update quick set id = 2; delete from quick")


@pytest.mark.since(18, "a publication leaves generated columns out of a replica identity")
def test_a_table_whose_key_is_generated_is_not_blocked(new_relay: NewRelay, source: Session) -> None:
    """PostgreSQL itself states that it would refuse the UPDATE; the notice quotes it."""
    relay = started(new_relay)
    source.run("create table made (i int, id int generated always as (i + 1) stored primary key)")
    # Until the relay has tried, the notice only names the table.
    relay.wait(
        "the reason",
        lambda status: any(
            one.table == "public.made" and "can't be added" in one.message for one in status.errors
        ),
    )
    source.run("insert into made values (1); update made set i = 2; delete from made")


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("args", [(), ("-u",)], ids=["keyed", "unkeyed"])
def test_a_table_that_loses_its_key_leaves_and_returns_whole(
    new_relay: NewRelay, services: ServiceAddresses, database: str, source: Session, args: tuple[str, ...]
) -> None:
    """Also with -u, since its topic is compacted: the publication of inserts would stop the relay."""
    relay = started(new_relay, *args)
    source.run("create table loses (id int primary key, v int); insert into loses values (1, 1), (2, 2)")
    wait_joined(relay, "public.loses")
    source.run("alter table loses drop constraint loses_pkey")
    wait_for("it to leave", lambda: "loses" not in listed(source, relay))
    source.run("update loses set v = 3 where id = 1; insert into loses values (3, 3)")
    source.run("create table last (id int primary key)")
    wait_joined(relay, "public.last")
    assert "loses" not in listed(source, relay)
    source.run("alter table loses add primary key (id)")
    twice = lambda status: [one.table for one in status.backfills].count("public.loses") == 2  # noqa: E731
    relay.wait("it to return", twice, every=0.05)
    wait_joined(relay, "public.loses")
    relay.wait("its rows", lambda status: all(one.is_over for one in status.backfills), every=0.05)
    assert_equal(services, database, [table("first"), table("loses"), table("last")], relay.name)


@pytest.mark.usefixtures("first")
def test_nobody_waits_behind_a_table_that_is_locked(
    new_relay: NewRelay, database: str, source: Session
) -> None:
    relay = started(new_relay)
    with session(database) as holder:
        source.run("create table locked (id int primary key, v int); insert into locked values (1, 1)")
        holder.run("begin; lock table locked in share update exclusive mode")
        source.run("create table other (id int primary key)")
        wait_joined(relay, "public.other")
        source.run("set lock_timeout = '2s'; update locked set v = 2")
        assert "locked" not in listed(source, relay)
        holder.run("commit")
    wait_joined(relay, "public.locked")


# -- notices that stay
# -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("first")
def test_announced_only(new_relay: NewRelay, source: Session) -> None:
    relay = started(new_relay, "--new-tables", "announce")
    source.run("create table late (id int primary key)")
    said = lambda status: [one for one in status.errors if one.table == "public.late"]  # noqa: E731
    (notice,) = said(relay.wait("a notice", said))
    assert "ALTER PUBLICATION" in str(notice.hint)
    assert "late" not in listed(source, relay)


@pytest.mark.usefixtures("first")
def test_a_table_that_the_role_cannot_add_is_announced(
    new_relay: NewRelay, source: Session, database: str
) -> None:
    """Only a table's owner may add it; the statement that the notice prints adds it."""
    role = f"limited_{new_name()}"
    source.run(f"create role {role} login replication password 'x'; alter table first owner to {role}")
    source.run(f"grant create on database {source.value('select current_database()')} to {role}")
    server = urlsplit(database)
    limited = server._replace(netloc=f"{role}:x@{server.hostname}:{server.port}").geturl()
    relay = started(new_relay, "-d", limited)
    source.run(f"create table late (id int primary key); grant select on late to {role}")
    said = lambda status: [one for one in status.errors if one.table == "public.late"]  # noqa: E731
    notice = said(relay.wait("a notice", said))[-1]
    says = "is not in the publication and can't be added: the relay's role does not own the table"
    assert says in notice.message
    assert "late" not in listed(source, relay)
    source.run("insert into late values (1)")
    [statement] = re.findall(r'ALTER PUBLICATION "[^;]*;', str(notice.hint))
    source.run(statement)
    wait_joined(relay, "public.late")
    relay.wait("its row", lambda status: status.tables["public.late"].messages >= 1)


@pytest.mark.usefixtures("first")
def test_a_publication_of_the_user_is_left_alone(new_relay: NewRelay, source: Session) -> None:
    relay = new_relay("--publication", "mine")
    source.run("create publication mine for table first")
    relay.start()
    relay.wait_streaming()
    source.run("create table late (id int primary key)")
    relay.wait("a notice", lambda status: any(one.table == "public.late" for one in status.errors))
    assert source.rows("select tablename from pg_publication_tables") == [("first",)]


@pytest.mark.usefixtures("first")
def test_a_table_that_somebody_takes_out_stays_out(new_relay: NewRelay, source: Session) -> None:
    relay = started(new_relay)
    source.run("create table late (id int primary key)")
    wait_joined(relay, "public.late")
    source.run(f"alter publication bwtui_{relay.name} drop table late")
    source.run("create table later (id int primary key)")
    wait_joined(relay, "public.later")
    relay.wait("a notice", lambda status: "public.late" in status.not_captured)
    assert "late" not in listed(source, relay)
    relay.stop()
    relay.run()
    assert "late" not in listed(source, relay)


# -- rows from before the publication had the table ----------------------------------------------------------


def test_a_table_that_enters_with_rows_brings_them(
    new_relay: NewRelay, services: ServiceAddresses, database: str, source: Session
) -> None:
    """Between two polls the table is created, filled, and changed so that FOR ALL TABLES includes it."""
    relay = new_relay()
    source.publish_all(relay.name)
    relay.start()
    relay.wait_streaming()
    source.run("create unlogged table quick (id int primary key, v int); insert into quick values (1, 1)")
    source.run("alter table quick set logged")
    source.run("create table whole (id int primary key, v int); insert into whole values (1, 1)")
    relay.wait("it to join", lambda status: "public.quick" in joined(status), every=0.05)
    relay.wait_caught_up()
    assert_equal(services, database, [table("quick"), table("whole")], relay.name)
    # The stream has all of its history.
    assert joined(relay.wait("a status", lambda _: True)) == {"public.quick"}


def test_a_table_that_one_transaction_makes_and_alters_is_whole(
    new_relay: NewRelay, services: ServiceAddresses, database: str, source: Session
) -> None:
    """The stream has either all of its rows, with the table's definition of that time, or none."""
    relay = new_relay()
    source.publish_all(relay.name)
    relay.start()
    relay.wait_streaming()
    relay.stop()
    start = "create table {t} (id int primary key, v int default 2); insert into {t} values (1)"
    changes = {
        "logged": f"{start.replace('table', 'unlogged table')}; alter table {{t}} set logged",
        "renamed": f"{start.replace('{t}', 'others')}; alter table others rename to {{t}}",
        "rewritten": f"{start}; alter table {{t}} alter v type text using v || ' rewritten'",
        "added": f"{start}; alter table {{t}} add w int not null default 3",
        "columns": f"{start}; alter table {{t}} rename v to w",
        "nullable": f"{start.replace('primary key', '')}; alter table {{t}} add primary key (id)",
    }
    for name, change in changes.items():
        source.run(f"begin; {change.format(t=name)}; commit")
    columns = "id serial primary key, v text default 'x', w int generated always as identity"
    source.run(f"create table whole ({columns}); insert into whole default values")
    # The stream has its rows, without the key.
    source.run("begin; create table late (id int not null, v int); insert into late values (1, 1)")
    source.run("alter table late add primary key (id); commit; update late set v = 2")
    source.run("create table rekeyed (id int primary key, v int not null); insert into rekeyed values (1, 2)")
    source.run(
        "begin; alter table rekeyed drop constraint rekeyed_pkey; alter table rekeyed add primary key (v)"
    )
    source.run("commit; update rekeyed set id = 3")
    relay.start()
    wait_joined(relay, *(f"public.{name}" for name in changes))
    relay.wait("all to be proven", lambda status: not status.not_proven, every=0.2)
    relay.wait_caught_up()
    # Only these rows: the stream has all of its history.
    assert joined(relay.wait("a status", lambda _: True)) == {f"public.{name}" for name in changes}
    for name in (*changes, "late", "whole", "rekeyed"):
        key = "v" if name == "rekeyed" else "id"
        rows = {(key,): row for key, row in source.rows(f"select {key}, to_jsonb({name}) from {name}")}
        assert latest(decoded_avro(services, f"{relay.name}.{name}")) == rows, name


@pytest.mark.since(15, "publications have whole schemas")
def test_a_table_that_enters_a_schema_with_rows_brings_them(
    new_relay: NewRelay, services: ServiceAddresses, database: str, source: Session
) -> None:
    relay = new_relay()
    source.run("create schema hidden; create schema shown")
    source.run(f"create publication bwtui_{relay.name} for tables in schema shown")
    relay.start()
    relay.wait_streaming()
    source.run("create table hidden.t (id int primary key, v int); insert into hidden.t values (1, 1)")
    source.run("alter table hidden.t set schema shown")
    source.run("begin; create table hidden.u (id int primary key, v int); insert into hidden.u values (1, 1)")
    source.run("alter table hidden.u set schema shown; commit")
    wait_joined(relay, "shown.t", "shown.u")
    assert_equal(services, database, [table("t", "shown"), table("u", "shown")], relay.name)


@pytest.mark.usefixtures("first")
def test_a_table_that_joined_without_a_key_brings_its_rows_with_its_key(
    new_relay: NewRelay, services: ServiceAddresses, database: str, source: Session
) -> None:
    """Its rows could not be sent before; the relay's own hint suggests adding the key."""
    relay = new_relay("--publication", "mine")
    source.run("create publication mine for table first")
    relay.start()
    relay.wait_streaming()
    source.run("create table bare (id int not null, v int); insert into bare values (1, 1), (2, 2)")
    source.run("alter publication mine add table bare")
    path = state_folder(relay.name) / "joined.json"
    wait_for("a look", lambda: "public.bare" in path.read_text())
    source.run("alter table bare add primary key (id)")
    wait_joined(relay, "public.bare")
    assert_equal(services, database, [table("first"), table("bare")], relay.name)


def test_a_table_created_during_the_snapshot_is_sent_once(
    new_relay: NewRelay, services: ServiceAddresses, source: Session
) -> None:
    """FOR ALL TABLES puts all of it into the stream; without a key a second row would stay for good."""
    relay = new_relay("-u", "--snapshot-workers", "1")
    source.publish_all(relay.name)
    source.run("create table large (id int primary key, v text)")
    source.run("insert into large select n, repeat('x', 100) from generate_series(1, 20000) n")
    # The snapshot has sent rows, and has more to send.
    relay.start(failpoint="before-copy:3:stop")
    relay.wait_frozen()
    source.run("create table meanwhile (v int); insert into meanwhile values (1)")
    relay.signal(signal.SIGCONT)
    relay.wait_streaming()
    relay.wait_caught_up()
    source.run("create table last (id int primary key)")
    path = state_folder(relay.name) / "joined.json"
    wait_for("a look", lambda: "public.last" in path.read_text())
    idle = lambda status: all(one.is_over for one in status.backfills)  # noqa: E731
    assert not relay.wait("no request", idle).backfills
    assert [value for _, value in decoded_avro(services, f"{relay.name}.meanwhile")] == [{"v": 1}]


# -- a standby's slot ----------------------------------------------------------------------------------------


@pytest.mark.since(16, "standbys have logical slots")
def test_on_a_standby_the_primarys_writers_are_waited_for(
    services: ServiceAddresses,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """They wrote before the table joined, so their rows are in no stream."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    pair = Pair()
    request.addfinalizer(pair.remove)
    with session(pair.primary.dsn) as source, session(pair.primary.dsn) as writer:
        source.run("create table first (id int primary key, v int); create publication mine for table first")
        source.run("create table late (id int primary key, v int); insert into late values (1, 1)")
        pair.follow()
        relay = Relay(services, pair.standby.dsn, tmp_path, new_name(), "--publication", "mine")
        request.addfinalizer(relay.close)
        # The slot is not created before the transaction ends, whatever the primary logs on its own.
        writer.run("begin; insert into first values (1, 1)")
        relay.start()
        stalled = relay.wait("the stall", lambda status: status.verdict.condition == "stalled").verdict
        assert "is a standby, which creates the slot once its primary logs the running tr" in stalled.sentence
        assert "SELECT pg_log_standby_snapshot(); on the primary" in stalled.hint
        writer.run("commit")

        def streams() -> bool:
            source.run("select pg_log_standby_snapshot()")
            status = relay.status()
            return status is not None and status.state == "streaming"

        wait_for("streaming", streams, every=0.2)
        # Its transaction id is the newest one, and no transaction has ended since.
        source.run("begin; alter publication mine add table late")
        writer.run("begin; insert into late values (2, 2)")
        source.run("commit")
        begun = lambda status: any(one.detail or one.is_over for one in status.backfills)  # noqa: E731
        relay.wait("the request", begun, every=0.02)
        writer.run("commit")
        wait_joined(relay, "public.late")
        relay.wait("all", lambda status: status.tables["public.late"].messages >= 2, 20, every=0.05)
        assert_equal(services, pair.primary.dsn, [table("first"), table("late")], relay.name)
