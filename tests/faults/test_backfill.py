"""Backfills of table rows: no row is lost, and no row follows a newer state of itself."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg2
import pytest
from click.testing import CliRunner

from bwtui.cli.main import cli
from bwtui.demo.shop import DemoTable
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.database import session, with_options
from tests.faults.backfills import ask, assert_never_older, state_of, wait_begun, wait_done
from tests.faults.records import assert_equal, read_table
from tests.faults.relays import Relay, execute, wait_for

NewRelay = Callable[..., Relay]
ITEMS = DemoTable("public", "items", ("id",))
ROWS = 25_000


def filled(rows: int) -> tuple[str, ...]:
    """Return the statements that create `ITEMS` with ``rows`` rows."""
    return (
        "create sequence s",
        "create table items (id bigint primary key, v bigint not null default nextval('s'), name text)",
        f"insert into items (id, name) select n, 'item ' || n from generate_series(1, {rows}) n",
    )


MADE = filled(ROWS)


@pytest.fixture
def relay(database: str, new_relay: NewRelay) -> Relay:
    """Return a relay that streams `ITEMS`."""
    execute(database, *MADE)
    relay = new_relay()
    relay.start()
    relay.wait_streaming()
    return relay


def test_a_table_is_sent_again(relay: Relay, services: ServiceAddresses, database: str) -> None:
    status = wait_done(relay, ask(relay, table="public.items"))
    assert (status.rows, status.chunks, status.left_out) == (ROWS, 3, 0)
    records = read_table(services, ITEMS, relay.name)
    assert [record.operation for record in records].count("backfill") == ROWS
    assert_never_older(records)
    part = wait_done(relay, ask(relay, table="public.items", where="id % 5 = 0 -- a comment"))
    assert (part.rows, part.estimate) == (ROWS // 5, None)
    assert_equal(services, database, [ITEMS], relay.name)


def test_a_commit_that_is_streamed_and_not_visible_is_waited_for(
    relay: Relay, services: ServiceAddresses, database: str
) -> None:
    """Other sessions see a commit only after its standby has it, but the stream has it at once."""
    with session(database) as writer:
        writer.run("set synchronous_commit = local")
        writer.run("alter system set synchronous_standby_names = 'nobody'")
        writer.run("select pg_reload_conf()")
    try:
        waiting = threading.Thread(
            target=execute,
            args=(database, "set synchronous_commit = on; update items set v = nextval('s') where id = 7"),
        )
        waiting.start()
        relay.wait("the update", lambda status: status.tables["public.items"].updates == 1)
        id = ask(relay, table="public.items")
        wait_for(
            "that the row is waited for",
            lambda: any(
                "that writes to the table" in one.detail
                for one in relay.wait("a status", lambda _: True).backfills
            ),
        )
        assert state_of(relay, id).chunks == 0
    finally:
        with session(database) as writer:
            writer.run("set synchronous_commit = local")
            writer.run("alter system reset synchronous_standby_names")
            writer.run("select pg_reload_conf()")
    waiting.join()
    wait_done(relay, id)
    assert_never_older(read_table(services, ITEMS, relay.name))
    assert_equal(services, database, [ITEMS], relay.name)


def test_a_table_that_joins_brings_its_rows(
    database: str, new_relay: NewRelay, services: ServiceAddresses
) -> None:
    """A table created while the relay runs is entirely in the stream under FOR ALL TABLES."""
    execute(database, *MADE, "create table first (id int primary key)")
    listed, every = new_relay(), new_relay()
    with session(database) as source, session(database) as writer:
        source.run(f"create publication bwtui_{listed.name} for table first")
        source.publish_all(every.name)
        for relay in (listed, every):
            relay.start()
            relay.wait_streaming()
        # The writer has written before the table joins, and commits after that.
        writer.run("begin")
        writer.run("update items set v = nextval('s') where id = 7")
        source.run(f"alter publication bwtui_{listed.name} add table only items")
        source.run("create table made (id int primary key, v int)")
        source.run("insert into made values (1, 1)")
        waits = "waiting for an open transaction that writes to the table"
        listed.wait("the writer", lambda status: any(waits in one.detail for one in status.backfills))
        writer.run("commit")
        done = lambda status: any(one.state == "done" for one in status.backfills)  # noqa: E731
        (task,) = listed.wait("its rows", done).backfills
        assert (task.table, task.reason, task.rows) == ("public.items", "joined", ROWS)
        assert_equal(services, database, [ITEMS, DemoTable("public", "first", ("id",))], listed.name)
        # A table that leaves the publication and joins it again has its rows sent again.
        listed.stop()
        source.run(f"alter publication bwtui_{listed.name} drop table only items")
        source.run(f"alter publication bwtui_{listed.name} add table only items")
        listed.start()
        again = lambda status: [one.state for one in status.backfills] == ["done", "done"]  # noqa: E731
        listed.wait("its rows again", again)
        assert not every.wait("a status", lambda status: True).backfills
        assert len(read_table(services, DemoTable("public", "made", ("id",)), every.name)) == 1


class Writers:
    """Sessions that each change their own rows: updates, new keys, deletes and rows inserted again."""

    def __init__(self, database: str, number: int = 3, rows: int = ROWS, rate: float | None = None) -> None:
        """``rate`` is the maximum number of transactions per second of all sessions together.

        None means no maximum.
        """
        self._database = database
        self._number = number
        self._rows = rows
        self._pause = None if rate is None else number / rate
        self._over = threading.Event()
        self.transactions = 0
        self.failures: list[BaseException] = []

    @contextmanager
    def going_on(self) -> Iterator["Writers"]:
        """Write during the block."""
        threads = [threading.Thread(target=self._run, args=[one]) for one in range(self._number)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        assert not self.failures, self.failures

    def _run(self, one: int) -> None:
        try:
            chance = random.Random(random.getrandbits(64))
            dsn = with_options(self._database, synchronous_commit="off")
            with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
                due = time.monotonic()
                while not self._over.is_set():
                    if self._pause is not None:
                        due = max(due + self._pause, time.monotonic() - 1)
                        self._over.wait(due - time.monotonic())
                    for _ in range(chance.choice((1, 1, 1, 3, 20))):
                        self._step(cursor, chance, one)
                    connection.rollback() if chance.random() < 0.1 else connection.commit()
                    self.transactions += 1
        except BaseException as error:
            self.failures.append(error)

    def _step(self, cursor: "psycopg2.extensions.cursor", chance: random.Random, one: int) -> None:
        key = chance.randrange(self._rows // 3) * 3 + one
        what = chance.choice(("update", "update", "delete", "insert", "move"))
        if what == "update":
            cursor.execute("update items set v = nextval('s') where id = %s", [key])
        elif what == "delete":
            cursor.execute("delete from items where id = %s", [key])
        elif what == "insert":
            cursor.execute(
                "insert into items values (%s, nextval('s'), 'new') on conflict (id)"
                " do update set v = nextval('s')",
                [key],
            )
        else:
            other = chance.randrange(self._rows // 3) * 3 + one
            cursor.execute(
                "update items set id = %s, v = nextval('s') where id = %s"
                " and not exists (select from items where id = %s)",
                [other, key, other],
            )


@pytest.mark.long
@pytest.mark.parametrize("args", [(), ("--record", "recording")], ids=["plain", "recorded"])
def test_under_writes_and_kills_nothing_older_comes_behind(
    args: tuple[str, ...],
    new_relay: NewRelay,
    services: ServiceAddresses,
    database: str,
    tmp_path: Path,
) -> None:
    execute(database, *MADE)
    relay = new_relay(*(str(tmp_path / arg) if arg == "recording" else arg for arg in args))
    relay.start()
    relay.wait_streaming()
    writers = Writers(database)
    with writers.going_on():
        for number in range(4):
            id = ask(relay, table="public.items")
            wait_begun(relay, id)
            if number:
                relay.kill()
                relay.start()
            status = wait_done(relay, id)
            # The rest was left out because the stream had it, or was sent before a kill, at most one chunk
            # per kill.
            assert status.rows + status.left_out > ROWS // 3
    relay.wait_caught_up()
    relay.stop()
    assert writers.transactions > 500
    assert_never_older(read_table(services, ITEMS, relay.name))
    assert_equal(services, database, [ITEMS], relay.name)


def test_what_alters_the_table_has_its_chunk_read_again(
    relay: Relay, services: ServiceAddresses, database: str
) -> None:
    """The table is truncated, filled, and gets another key repeatedly; only true rows are sent."""
    over = threading.Event()

    def alter() -> None:
        chance = random.Random(random.getrandbits(64))
        with session(database) as writer:
            while not over.wait(0.05):
                first = chance.randrange(1 << 40)
                writer.run("alter table items add column if not exists more text")
                writer.run(
                    "insert into items (id, name) select %s + n, 'again' from generate_series(1, 50) n", first
                )
                if chance.random() < 0.3:
                    writer.run("alter table items alter column name type varchar(50)")
                    writer.run("alter table items alter column name type text")
                if chance.random() < 0.3:
                    writer.run("alter table items drop constraint items_pkey, add primary key (id)")
                writer.run(
                    "update items set v = nextval('s'), more = 'm' where id between %s and %s",
                    first + 25,
                    first + 50,
                )
                writer.run("delete from items where id between %s and %s", first, first + 10)

    thread = threading.Thread(target=alter)
    thread.start()
    try:
        for _ in range(2):
            status = wait_done(relay, ask(relay, table="public.items"))
            assert status.rows + status.left_out >= ROWS
    finally:
        over.set()
        thread.join()
    relay.wait_caught_up()
    assert_never_older(read_table(services, ITEMS, relay.name))
    assert_equal(services, database, [ITEMS], relay.name)


def test_a_list_of_keys_makes_rows_and_tombstones(
    relay: Relay, services: ServiceAddresses, database: str, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("".join(f'["{number}"]\n' for number in (1, 2, ROWS + 1, ROWS + 2)))
    id = ask(relay, table="public.items", keys=str(tmp_path / "keys"), reason="repair")
    status = wait_done(relay, id)
    assert (status.rows, status.tombstones) == (2, 2)
    again = [one for one in read_table(services, ITEMS, relay.name) if one.operation != "snapshot"]
    assert [(one.key, one.value is None) for one in sorted(again, key=lambda one: one.key)] == [
        ((1,), False),
        ((2,), False),
        ((ROWS + 1,), True),
        ((ROWS + 2,), True),
    ]
    # The keys were compared under another topic or key encoding: the request fails, and sends no row or
    # tombstone.
    for otherwise in ({"topic": "another"}, {"topic": f"{relay.name}.items", "spelling": "json"}):
        id = ask(relay, table="public.items", keys=str(tmp_path / "keys"), reason="repair", **otherwise)
        wait_for("its end", lambda id=id: state_of(relay, id).is_over)  # type: ignore[misc]
        status = state_of(relay, id)
        assert (status.state, "were compared" in status.error) == ("failed", True)
    assert len(read_table(services, ITEMS, relay.name)) == ROWS + 4


def test_the_exit_code_says_whether_all_rows_were_sent(new_relay: NewRelay, database: str) -> None:
    """Backfills of many tables at once, one of them with a row that Kafka rejects."""
    tables = [f"public.t{number}" for number in range(30)]
    execute(database, *(f"create table {table} (id int primary key, v text)" for table in tables))
    execute(database, *(f"insert into {table} values (1, 'x'), (2, 'y')" for table in tables))
    relay = new_relay("-e", "log", "-C", "message.max.bytes=1000000")
    relay.start()
    relay.wait_streaming()
    all_sent = CliRunner().invoke(cli, ["snapshot", "--relay", relay.name, *tables])
    assert all_sent.exit_code == 0, all_sent.stderr
    execute(database, "alter table t7 alter column v set storage external")
    execute(database, "update t7 set v = repeat('x', 3000000) where id = 2")
    relay.wait_caught_up()
    one_dropped = CliRunner().invoke(cli, ["snapshot", "--relay", relay.name, "t7"])
    assert one_dropped.exit_code == 1
    assert "dropped as dead letters: 1 of public.t7" in one_dropped.stderr
    assert "bwtui dead-letters list" in one_dropped.stderr


@pytest.mark.parametrize("policy", ["exit", pytest.param("log", marks=pytest.mark.long)])
def test_a_row_that_is_refused_is_the_requests_affair(
    policy: str, new_relay: NewRelay, services: ServiceAddresses, database: str
) -> None:
    execute(database, *MADE)
    relay = new_relay("-e", policy)
    relay.start()
    relay.wait_streaming()
    relay.stop()
    # The change is committed while no relay runs; the slot continues after it.
    execute(database, "update items set name = repeat('x', 3000000) where id = 7")
    execute(database, "alter table items alter column name set storage external")
    relay.start("-C", "message.max.bytes=1000000", "-e", "log")
    relay.wait_caught_up()
    relay.stop()
    relay.start("-C", "message.max.bytes=1000000")
    relay.wait_streaming()
    id = ask(relay, table="public.items")
    wait_for("its end", lambda: state_of(relay, id).is_over)
    status = state_of(relay, id)
    if policy == "exit":
        assert (status.state, "a row of public.items can't be sent" in status.error) == ("failed", True)
    else:
        assert (status.state, status.rows, status.dropped) == ("done", ROWS - 1, 1)
        assert relay.letters()[-1]["operation"] == "backfill"
    execute(database, "insert into items (id) values (-1)")
    relay.wait("what comes", lambda now: now.tables["public.items"].inserts == 1)
    relay.stop()
