"""A first snapshot by chunks: the stream begins at once, and no kill leaves a table incomplete."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from bwtui.demo.shop import DemoTable
from bwtui.model.backfill import BackfillStatus
from bwtui.recording.check import check
from bwtui.recording.info import facts
from bwtui.recording.reader import open_recording
from bwtui.relay.backfill.backfill import CHUNK_ROWS
from bwtui.relay.process.control import request
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.state_folder import state_folder
from tests.database import session
from tests.faults.administration import configure_topic, make_topic
from tests.faults.backfills import assert_never_older
from tests.faults.records import assert_equal, read_table
from tests.faults.relays import Relay, execute, wait_for
from tests.faults.test_backfill import Writers

NewRelay = Callable[..., Relay]
ITEMS, SMALL = DemoTable("public", "items", ("id",)), DemoTable("public", "a_small", ("id",))
ROWS = 35_000
MADE = (
    "create sequence s",
    "create table items (id bigint primary key, v bigint not null default nextval('s'), name text)",
    f"insert into items (id, name) select n, 'item ' || n from generate_series(1, {ROWS}) n",
    "create table a_small (id int primary key, v bigint not null default nextval('s'))",
    "insert into a_small select n from generate_series(1, 10) n",
    "analyze items",
)
CHUNKS = ("--snapshot-by", "chunks")


@pytest.fixture
def relay(database: str, new_relay: NewRelay) -> Relay:
    """Return a relay that will start with two tables."""
    execute(database, *MADE)
    return new_relay(*CHUNKS)


def first_of(relay: Relay, table: str) -> BackfillStatus | None:
    """Return the progress of a table while the relay runs."""
    status = relay.status()
    if status is None:
        return None
    return next((one for one in status.backfills if (one.table, one.reason) == (table, "first")), None)


def begun(relay: Relay) -> str:
    """Wait until a chunk of the large table is sent, pause the task, and return its id."""

    def look() -> BackfillStatus | None:
        found = first_of(relay, "public.items")
        return found if found is not None and found.chunks else None

    found = wait_for("a chunk", look)
    control(relay, found.id, "pause")
    wait_for("the pause", lambda: getattr(first_of(relay, "public.items"), "state", "") == "paused")
    return found.id


def control(relay: Relay, id: str, what: str) -> None:
    """Pause, resume or end a task."""
    request(relay.name, {"request": "backfill_control", "id": id, "what": what})


def kept(relay: Relay) -> list[Path]:
    """Return the files that list the unfinished tables."""
    return list(state_folder(relay.name).glob("first-*.json"))


def chunks_sent(services: ServiceAddresses, relay: Relay) -> int:
    """Return the number of rows of `ITEMS` that were backfilled."""
    return sum(one.operation == "backfill" for one in read_table(services, ITEMS, relay.name))


def test_the_stream_goes_on_meanwhile_and_all_say_that_it_is_a_snapshot(
    relay: Relay, services: ServiceAddresses, database: str
) -> None:
    relay.start()
    id = begun(relay)
    execute(database, "insert into a_small values (11)", "delete from items where id = 1")
    status = relay.wait("what was written", lambda now: now.tables["public.items"].deletes == 1)
    assert relay.slot_lsn() is not None
    assert (status.state, status.phase) == ("snapshot", "snapshot")
    assert status.first_snapshot is not None
    assert (status.first_snapshot.tables, status.first_snapshot.done) == (2, 1)
    items, small = status.tables["public.items"], status.tables["public.a_small"]
    assert (small.snapshot_state, small.snapshot_rows) == ("done", 10)
    assert items.snapshot_state == "running"
    assert 0 < items.snapshot_rows < ROWS == items.snapshot_estimate
    told = subprocess.run(
        [sys.executable, "-m", "bwtui", "status", relay.name], capture_output=True, text=True, check=True
    ).stdout
    assert "the first snapshot is incomplete: 1 of 2 tables is done" in told
    control(relay, id, "resume")
    status = relay.wait("its end", lambda now: now.state == "streaming")
    assert status.first_snapshot is None
    assert status.detail == ""
    assert status.tables["public.items"].snapshot_state == "done"
    assert status.tables["public.items"].backfill_rows == 0
    relay.stop()
    assert "first snapshot" not in relay.last_words()
    records = read_table(services, ITEMS, relay.name)
    assert_never_older(records)
    assert chunks_sent(services, relay) in (ROWS, ROWS - 1)
    assert_equal(services, database, [ITEMS, SMALL], relay.name)
    assert not kept(relay)


def test_schemas_and_tables_may_have_dots(
    new_relay: NewRelay, services: ServiceAddresses, database: str
) -> None:
    """Only the catalog tells where the schema's name ends.

    No row of these tables was sent, and the relay ended well.
    """
    dotted = [DemoTable("my.own", "items", ("id",)), DemoTable("my", "own.things", ("id",))]
    for table in dotted:
        named = f'"{table.schema}"."{table.name}"'
        execute(
            database,
            f'create schema if not exists "{table.schema}"',
            f"create table {named} (id int primary key)",
            f"insert into {named} select generate_series(1, 100)",
        )
    relay = new_relay(*CHUNKS)
    status = relay.run()
    for schema, name in (("my_x2e_own", "items"), ("my", "own_x2e_things")):
        records = read_table(services, DemoTable(schema, name, ("id",)), relay.name)
        assert sorted(record.key[0] for record in records) == list(range(1, 101))
    assert not status.errors


def test_a_stop_says_what_is_left(relay: Relay, services: ServiceAddresses, database: str) -> None:
    relay.start()
    begun(relay)
    relay.stop()
    status = relay.last_status()
    assert status.state == "stopped"
    assert (
        "the first snapshot is incomplete: 1 of 2 tables is done; the next start" in status.verdict.sentence
    )
    # The task stays paused, as requested.
    relay.start()
    relay.wait("the next start", lambda now: now.state == "snapshot" and now.backfills)
    found = first_of(relay, "public.items")
    assert found is not None
    assert found.state == "paused"
    assert found.rows >= CHUNK_ROWS
    # The option only controls how a slot is created, and this slot exists already.
    control(relay, found.id, "resume")
    relay.stop()
    assert relay.run("--snapshot-by", "export", "--skip-snapshot").first_snapshot is None
    assert_equal(services, database, [ITEMS, SMALL], relay.name)
    assert chunks_sent(services, relay) <= ROWS + CHUNK_ROWS


def test_rows_that_were_cancelled_are_not_proven_until_they_are_sent(
    relay: Relay, services: ServiceAddresses, database: str
) -> None:
    relay.start()
    control(relay, begun(relay), "cancel")
    relay.stop()
    relay.start()
    status = relay.wait("the gap", lambda now: now.state == "streaming" and now.not_proven)
    (entry,) = status.not_proven
    assert (entry.table, status.verdict.condition) == ("public.items", "not_proven")
    assert "lacks rows of the first snapshot: request " in entry.reason
    assert entry.command.startswith("bwtui repair --relay ")
    subprocess.run(
        [sys.executable, "-m", "bwtui", "snapshot", "public.items", "--relay", relay.name], check=True
    )
    relay.wait("the proof", lambda now: not now.not_proven)
    relay.stop()
    assert_equal(services, database, [ITEMS, SMALL], relay.name)


@pytest.mark.parametrize(
    "recorded", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "recorded"]
)
def test_under_writes_no_kill_leaves_anything_in_part(
    new_relay: NewRelay, services: ServiceAddresses, database: str, tmp_path: Path, recorded: bool
) -> None:
    execute(database, *MADE)
    folder = tmp_path / "recording"
    relay = new_relay(*CHUNKS, *(("--record", str(folder)) if recorded else ()))
    chance, kills, pauses = random.Random(random.getrandbits(64)), 0, 0
    writers = Writers(database)
    with writers.going_on():
        relay.start()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and kills < (12 if recorded else 4):
            time.sleep(chance.choice((0.0, 0.3, 0.8, 1.5, 2.5)) * (0.5 + chance.random()))
            if is_through(relay):
                break
            if chance.random() < 0.25:
                relay.signal(signal.SIGSTOP)
                time.sleep(chance.random())
                relay.signal(signal.SIGCONT)
                pauses += 1
                continue
            relay.kill()
            kills += 1
            relay.start()
        relay.wait("its end", lambda now: now.state == "streaming")
    relay.wait_caught_up()
    relay.stop()
    assert kills
    assert writers.transactions > 100
    records = read_table(services, ITEMS, relay.name)
    assert_never_older(records)
    assert_equal(services, database, [ITEMS, SMALL], relay.name)
    sent = sum(one.operation == "backfill" for one in records)
    # A chunk that is read again may contain other keys, but no key twice.
    times = {one.key: 0 for one in records}
    for one in records:
        times[one.key] += one.operation == "backfill"
    again = sum(count - 1 for count in times.values() if count > 1)
    assert again <= (kills + pauses) * CHUNK_ROWS, f"{again} of {sent} rows again, {kills} kills"
    if recorded:
        assert check(folder).verdict == "clean"
        view = open_recording(folder)
        # The recording holds all rows, although without a snapshot, and reports no row as missing.
        assert facts(view).lines == []
        view.close()


def is_through(relay: Relay) -> bool:
    """Return whether the relay streams and the snapshot is complete."""
    status = relay.status()
    return status is not None and status.state == "streaming"


@pytest.mark.long
def test_a_kill_while_it_begins_leaves_nothing_to_others(
    relay: Relay, services: ServiceAddresses, database: str
) -> None:
    """A start that is killed before its slot exists is not resumed; with a slot, no table is forgotten."""
    chance = random.Random(random.getrandbits(64))
    for _ in range(8):
        relay.start()
        time.sleep(0.5 + chance.random())
        relay.kill()
        if relay.slot_lsn() is None:
            continue
        left = [id for path in kept(relay) for id in json.loads(path.read_text())["tables"].values() if id]
        sent = chunks_sent(services, relay) if services else 0
        assert left or sent >= ROWS
    status = relay.run()
    assert status.first_snapshot is None
    tasks = list((state_folder(relay.name) / "backfills").glob("*.json"))
    assert len(tasks) == 2
    assert_equal(services, database, [ITEMS, SMALL], relay.name)


def test_a_slot_of_somebody_else_is_refused(relay: Relay, database: str) -> None:
    """A slot lost during the snapshot is reported, and a slot at another position is rejected as foreign."""
    relay.start()
    begun(relay)
    relay.stop()
    with session(database) as source:
        source.wait_released(relay.name)
        source.run("select pg_drop_replication_slot(%s)", relay.name)
        relay.start()
        assert relay.join() == 5
        assert "is missing" in relay.last_words()
        source.run("select pg_create_logical_replication_slot(%s, 'pgoutput')", relay.name)
    relay.start()
    assert relay.join() == 5
    assert "another consumer moved slot" in relay.last_words()


@pytest.mark.long
def test_a_lost_slot_is_healed_and_the_rest_comes(
    relay: Relay, services: ServiceAddresses, database: str
) -> None:
    relay.start()
    id = begun(relay)
    relay.stop()
    with session(database) as source:
        source.wait_released(relay.name)
        source.run("select pg_drop_replication_slot(%s)", relay.name)
        source.run("update items set v = nextval('s') where id % 3 = 0")
        source.run("delete from items where id % 7 = 0")
    relay.start("--heal")
    waits = "the first snapshot of public.items is incomplete"
    status = relay.wait("the heal", lambda now: now.heal is not None and waits in now.heal.detail)
    assert status.first_snapshot is not None
    control(relay, id, "resume")
    relay.wait("its end", lambda now: now.heal is None and now.state == "streaming", 120)
    relay.wait_caught_up()
    relay.stop()
    assert_equal(services, database, [ITEMS, SMALL], relay.name)


def test_a_drop_of_the_slot_forgets_it(relay: Relay, services: ServiceAddresses, database: str) -> None:
    relay.start()
    begun(relay)
    relay.stop()
    execute(database, "delete from items where id > 10")
    bwtui = [sys.executable, "-m", "bwtui"]
    subprocess.run([*bwtui, "slots", "drop", relay.name, "-d", database, "--yes"], check=True)
    assert not kept(relay)
    with session(database) as source:
        source.run("select pg_create_logical_replication_slot(%s, 'pgoutput')", relay.name)
    # A slot that others created is used as it is.
    status = relay.run()
    assert status.first_snapshot is None
    assert any("was created or moved elsewhere" in error.message for error in status.errors)
    assert chunks_sent(services, relay) < ROWS


@pytest.mark.long
def test_a_second_relay_waits_or_is_refused(
    relay: Relay, new_relay: NewRelay, services: ServiceAddresses, database: str
) -> None:
    """Two relays of one slot: while one starts, and while its tables are unfinished."""
    second = new_relay(*CHUNKS)
    relay.start()
    second.start("-s", relay.name, "--name", second.name, "-p", relay.name)
    ended = wait_for("one of them", lambda: [one for one in (relay, second) if one.has_ended])
    loser, winner = (relay, second) if ended[0] is relay else (second, relay)
    assert loser.wait_ended() == 2
    said = loser.last_words()
    # The reason depends on the obstacle: the lock, the other relay's tables, or the slot in use.
    assert "relay" in said or "is in use" in said, said
    winner.wait("its end", lambda now: now.state == "streaming")
    winner.stop()
    assert_equal(services, database, [ITEMS, SMALL], relay.name)


@pytest.mark.long
def test_the_tables_of_another_relay_are_not_left_behind(
    relay: Relay, new_relay: NewRelay, database: str
) -> None:
    relay.start()
    begun(relay)
    relay.stop()
    second = new_relay(*CHUNKS)
    second.start("-s", relay.name, "--name", second.name, "-p", relay.name)
    assert second.wait_ended() == 2
    assert f"relay {relay.name} has not finished the first snapshot of slot" in second.last_words()


@pytest.mark.long
def test_a_slot_that_another_relay_has_made_since_is_that_ones(
    relay: Relay, new_relay: NewRelay, services: ServiceAddresses, database: str
) -> None:
    """Unsent work of the first relay is void with its slot: starts and audits of the second succeed."""
    relay.start()
    begun(relay)
    relay.stop()
    execute(database, f"select pg_drop_replication_slot('{relay.name}')")
    second = new_relay()
    mine = ("-s", relay.name, "--name", second.name, "-p", relay.name)
    second.run(*mine)
    second.start(*mine)
    second.wait_streaming()
    verify = [sys.executable, "-m", "bwtui", "verify", "--database", "--relay", second.name, "--json"]
    asked = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr
    second.stop()
    assert_equal(services, database, [ITEMS, SMALL], relay.name)
    assert len(kept(relay)) == 1


ALTERATIONS = {
    "dropped": ("drop table items", "table public.items does not exist"),
    "left out": (
        "alter publication bwtui_{slot} drop table only items",
        "is in no publication",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("what", ALTERATIONS)
def test_a_table_that_is_gone_is_told_and_ends(relay: Relay, database: str, what: str) -> None:
    statement, told = ALTERATIONS[what]
    relay.start()
    id = begun(relay)
    execute(database, statement.format(slot=relay.name))
    control(relay, id, "resume")
    status = relay.wait("its end", lambda now: now.state == "streaming")
    items = status.tables["public.items"]
    assert items.snapshot_state == "none"
    assert any(told in note for note in items.notes), items.notes
    assert any(told in error.message for error in status.errors)
    relay.stop()


def test_a_relay_that_is_to_end_waits_for_the_rows_of_a_renamed_table(
    relay: Relay, services: ServiceAddresses, database: str
) -> None:
    relay.start("--until-caught-up")
    id = begun(relay)
    execute(database, "alter table items rename to renamed")
    control(relay, id, "resume")
    assert relay.join() == 0, relay.last_words()
    records = read_table(services, DemoTable("public", "renamed", ("id",)), relay.name)
    assert {one.key for one in records} == {(number,) for number in range(1, ROWS + 1)}


def test_a_table_that_can_not_be_read_any_more_may_be_left_out(relay: Relay, database: str) -> None:
    relay.start()
    id = begun(relay)
    execute(database, "alter table items drop constraint items_pkey")
    control(relay, id, "resume")
    without = "exclude it with --exclude-table 'public.items'"
    assert relay.join() == 2
    assert without in relay.last_words()
    relay.start("-u")
    assert relay.join() == 2
    assert without in relay.last_words()
    status = relay.run("--exclude-table", "public.items")
    assert status.first_snapshot is None
    assert not kept(relay)
    assert any("exclude table public.items" in error.message for error in status.errors)


@pytest.mark.long
@pytest.mark.parametrize(
    "statements",
    [
        (
            "alter table items add column more text",
            "update items set more = 'n' where id % 3 = 0",
        ),
        ("alter table items alter column id type int",),
        ("truncate items", "insert into items (id) values (5), (70000)"),
    ],
    ids=["columns", "key", "truncated"],
)
def test_a_table_that_is_altered_comes_whole(
    relay: Relay, services: ServiceAddresses, database: str, statements: tuple[str, ...]
) -> None:
    relay.start()
    id = begun(relay)
    execute(database, *statements)
    control(relay, id, "resume")
    relay.wait("its end", lambda now: now.state == "streaming")
    relay.wait_caught_up()
    relay.stop()
    if statements[0].startswith("truncate"):
        # A TRUNCATE makes no tombstones, whenever it happens.
        latest = {one.key: one.value for one in read_table(services, ITEMS, relay.name)}
        assert {(5,), (70000,)} <= latest.keys()
        return
    # Rows sent earlier have the columns, or the types, of that time.
    latest = {one.key: one.value for one in read_table(services, ITEMS, relay.name)}
    with session(database) as source:
        rows = {(id,): v for id, v in source.rows("select id, v from items")}
    assert {key: value["v"] for key, value in latest.items() if value is not None} == rows


@pytest.mark.long
def test_another_key_begins_anew(relay: Relay, database: str) -> None:
    relay.start()
    id = begun(relay)
    execute(database, "alter table items drop constraint items_pkey", "alter table items add primary key (v)")
    control(relay, id, "resume")
    status = relay.wait("its end", lambda now: now.state == "streaming")
    relay.stop()
    items = status.tables["public.items"]
    assert items.snapshot_state == "done"
    assert items.snapshot_rows >= ROWS + CHUNK_ROWS
    assert items.key_columns == ("v",)


@pytest.mark.parametrize("policy", [pytest.param("exit", marks=pytest.mark.long), "log"])
def test_a_row_that_is_refused_ends_the_relay_or_is_dropped(
    policy: str, new_relay: NewRelay, services: ServiceAddresses, database: str
) -> None:
    execute(database, *MADE, "update items set name = repeat('x', 3000000) where id = 30007")
    relay = new_relay(*CHUNKS, "-C", "message.max.bytes=1000000")
    relay.start("-e", policy, "--until-caught-up")
    code = relay.join()
    if policy == "exit":
        assert code == 2
        assert "a row of public.items can't be sent" in relay.last_words()
        relay.start("-e", policy, "--until-caught-up")
        assert relay.join() == 2
        relay.run("-e", "log")
    else:
        assert code == 0, relay.last_words()
    assert len(relay.letters()) == 1
    relay.run("-e", "log")
    assert len(relay.letters()) == 1
    keys = {one.key for one in read_table(services, ITEMS, relay.name)}
    assert keys == {(number,) for number in range(1, ROWS + 1)} - {(30007,)}


@pytest.mark.long
def test_a_topic_that_takes_nothing_ends_the_relay(
    relay: Relay, services: ServiceAddresses, database: str
) -> None:
    topic, oldest = f"{relay.name}.items", "message.timestamp.before.max.ms"
    make_topic(services, topic, 1_000_000, **{oldest: "0"})
    for _ in range(2):
        relay.start("--until-caught-up", "-e", "log")
        assert relay.join() == 4
        assert f"Kafka rejects every message for topic {topic}: " in relay.last_words()
        assert relay.letters() == []
    configure_topic(services, topic, oldest, str(10**12))
    relay.run("-e", "log")
    assert relay.letters() == []
    assert_equal(services, database, [ITEMS, SMALL], relay.name)


def test_rows_without_a_key_are_copied_as_of_the_slot(
    new_relay: NewRelay, services: ServiceAddresses, database: str
) -> None:
    """Each row is sent once, whatever is written meanwhile."""
    execute(
        database,
        *MADE,
        "create table logged (v bigint)",
        "insert into logged select generate_series(1, 5000)",
    )
    relay = new_relay(*CHUNKS, "-u")
    relay.start()
    id = begun(relay)
    execute(database, "insert into logged select generate_series(5001, 6000)")
    control(relay, id, "resume")
    relay.wait("its end", lambda now: now.state == "streaming")
    relay.wait_caught_up()
    relay.stop()
    records = read_table(services, DemoTable("public", "logged", ()), relay.name)
    assert sorted(one.value["v"] for one in records if one.value) == list(range(1, 6001))
    assert [one.operation for one in records].count("snapshot") == 5000
    assert chunks_sent(services, relay) == ROWS


@pytest.mark.long
def test_what_a_dead_export_sent_is_taken_back(
    relay: Relay, services: ServiceAddresses, database: str
) -> None:
    """A row that was deleted before the slot was created is in neither the chunks nor the stream."""
    relay.start("--snapshot-by", "export")
    relay.wait("some rows", lambda now: now.stages["acknowledge"].total > 20_000)
    relay.kill()
    assert relay.slot_lsn() is None
    execute(database, "delete from items where id <= 1000")
    relay.run()
    assert_equal(services, database, [ITEMS, SMALL], relay.name)


@pytest.mark.long
def test_without_a_snapshot_there_is_none(relay: Relay, services: ServiceAddresses) -> None:
    status = relay.run("--skip-snapshot")
    assert status.first_snapshot is None
    assert not status.backfills


def test_an_audit_does_not_judge_a_table_in_part(
    relay: Relay, services: ServiceAddresses, database: str
) -> None:
    relay.start()
    id = begun(relay)
    verify = [sys.executable, "-m", "bwtui", "verify", "--database", "--relay", relay.name, "--json"]
    asked = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert asked.returncode == 3
    assert "the first snapshot of public.items is incomplete" in asked.stderr
    part = subprocess.run([*verify, "--table", "a_small"], capture_output=True, text=True, check=False)
    assert part.returncode == 0, part.stderr
    control(relay, id, "resume")
    relay.wait("its end", lambda now: now.state == "streaming")
    whole = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert whole.returncode == 0, whole.stderr
    relay.stop()


@pytest.mark.long
def test_without_the_option_headers_the_rows_are_the_runs_own(
    relay: Relay, services: ServiceAddresses, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [arg for arg in relay.command() if arg != "--headers"]
    monkeypatch.setattr(relay, "command", lambda: command)
    relay.run()
    with closing(psycopg2.connect(database)):
        assert_equal(services, database, [ITEMS, SMALL], relay.name)
