"""--exactly-once: a read_committed reader sees every change once, in order, whatever is killed.

``make exactly-once KILLS=100 SEED=1`` kills that many times in each test: at random moments, at each effect
of the relay, in the snapshot, and now and then a broker instead. Runs with several seeds add up.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bwtui.model.position import Position
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from bwtui.settings import RelaySettings
from bwtui.sink.transactions import PositionTopic
from bwtui.source.slot import reserve
from tests.faults.backfills import ask, state_of, wait_done
from tests.faults.hanging import hanging
from tests.faults.killing import assert_once, kill_on
from tests.faults.outside import Outside
from tests.faults.records import difference, read_table
from tests.faults.relays import Relay, execute, new_name, wait_for
from tests.faults.test_kill import copied
from tests.faults.writer import ACCOUNTS, TABLES, Writer, create_tables
from tests.raw_topic import committed_records
from tests.waiting import eventually

KILLS = int(os.environ.get("BWTUI_EXACT_KILLS", "2"))
SEED = int(os.environ.get("BWTUI_SEED") or random.getrandbits(32))
#: Number of kills of the relay between two kills of the broker.
BROKERS = 25
#: Pause in seconds between two transactions of a campaign's writer, to leave the machine's time for kills.
CAMPAIGN_PAUSE = 0.01
ROWS = 5_000

NewRelay = Callable[..., Relay]


def test_no_kill_repeats_a_row(services: ServiceAddresses, database: str, new_relay: NewRelay) -> None:
    create_tables(database, ROWS)
    relay = new_relay("--exactly-once")
    topics = [table.topic(relay.name) for table in TABLES]
    with Outside(services, topics) as outside, Writer(database, ROWS).going_on() as writer:
        kill_on(relay, outside, KILLS, random.Random(SEED))
    relay.wait_caught_up()
    relay.stop()
    assert_once(services, database, relay, writer)


@pytest.mark.long
def test_no_kill_of_relay_or_broker_repeats_a_row(
    interrupted: Sandbox, services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """Run the same campaign, but sometimes kill the broker in place of the relay."""
    create_tables(database, ROWS)
    relay = new_relay("--exactly-once")
    topics = [table.topic(relay.name) for table in TABLES]
    chance, begun, killed = random.Random(SEED), time.monotonic(), Counter[str]()
    left = KILLS
    with (
        Outside(services, topics) as outside,
        Writer(database, ROWS, pause=CAMPAIGN_PAUSE).going_on() as writer,
    ):
        while left:
            some = min(left, BROKERS)
            kill_on(relay, outside, some, chance, killed)
            left -= some
            if chance.random() < some / BROKERS:
                interrupted.kill_service("kafka")
                sent = len(writer.changes)
                wait_for("changes", lambda: len(writer.changes) > sent + 100)  # noqa: B023
                interrupted.start_service("kafka")
                killed["broker"] += 1
            relay.wait_caught_up()
            relay.kill()
            killed["once it had caught up"] += 1
            outside.settle()
            print(f"\n{said_of(killed, outside, begun)}", flush=True)
        relay.start()
        relay.wait_caught_up()
    relay.wait_caught_up()
    relay.stop()
    assert_once(services, database, relay, writer)
    print(f"\nall is there, once, whole: {said_of(killed, outside, begun)}", flush=True)


def said_of(killed: Counter[str], outside: Outside, begun: float) -> str:
    """Report the progress so far."""
    took, where = time.monotonic() - begun, ", ".join(f"{n} {what}" for what, n in sorted(killed.items()))
    return (
        f"seed {SEED}: {killed.total()} kills in {took:.0f} s ({where}); {outside.records:,} records, "
        f"{outside.transactions:,} transactions, {outside.split:,} records in later parts; 0 twice, 0 torn"
    )


def test_no_kill_repeats_a_row_of_a_chunk(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    create_tables(database, 10 * ROWS)
    relay = new_relay("--exactly-once")
    relay.run()
    relay.start()
    relay.wait_streaming()
    id = ask(relay, table="public.accounts")
    for _ in range(max(2, KILLS // 5)):
        chunks = state_of(relay, id).chunks
        wait_for("a chunk", lambda: state_of(relay, id).chunks > chunks or state_of(relay, id).is_over)  # noqa: B023
        execute(database, "update visits set number = number + 1 where id < 20")
        relay.kill()
        relay.start()
    relay.wait_streaming()
    wait_done(relay, id)
    relay.wait_caught_up()
    relay.stop()
    sent = [
        record.key[0]
        for record in read_table(services, ACCOUNTS, relay.name, holes=True)
        if record.operation == "backfill"
    ]
    assert sorted(sent) == list(range(1, 10 * ROWS + 1))
    print(f"\nall rows of chunks are there, once: {max(2, KILLS // 5)} kills", flush=True)


@pytest.mark.long
def test_a_snapshot_after_one_that_was_cut_off_without_transactions(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """The relay deletes only leftover rows that it has not sent itself in its open transaction."""
    create_tables(database, 10 * ROWS)
    relay = new_relay()
    relay.start()
    relay.wait("rows of the snapshot", lambda status: copied(status) >= ROWS)
    relay.kill()
    assert relay.slot_lsn() is None, "its snapshot was through"
    gone, *others = (record.key[0] for record in read_table(services, ACCOUNTS, relay.name))
    assert others
    execute(database, f"delete from accounts where id = {gone}")
    relay.run("--exactly-once")
    found = difference(services, database, TABLES, relay.name)
    assert all(table.equal for table in found.tables), found.sentence
    records = read_table(services, ACCOUNTS, relay.name, holes=True)
    assert [record.key[0] for record in records if record.value is None] == [gone]


def test_a_second_relay_fences_the_first(
    services: ServiceAddresses,
    database: str,
    new_relay: NewRelay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create_tables(database, 10)
    relay = new_relay("--exactly-once", "--commit-ms", "600000")
    relay.run()
    relay.start()
    relay.wait_streaming()
    # An open transaction that no process commits for ten minutes.
    execute(database, "insert into accounts values (11, 1, 'of the first')")
    relay.wait("the row", lambda status: status.tables["public.accounts"].inserts)
    relay.signal(signal.SIGSTOP)
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s",
            [relay.name],
        )
    relay._wait_released()
    execute(database, "insert into accounts values (12, 1, 'of the second')")
    with monkeypatch.context() as elsewhere:
        # The only state there is in Kafka.
        elsewhere.setenv("BWTUI_STATE_HOME", str(tmp_path / "elsewhere"))
        other = Relay(
            services, database, tmp_path, relay.name + "_other", "--exactly-once", "--on-gap", "report"
        )
        other.name = relay.name
        other.run("--on-gap", "report")
    relay.signal(signal.SIGCONT)
    assert relay.wait_ended() == 4
    assert "another relay has taken over slot" in relay.last_words()
    records = read_table(services, ACCOUNTS, relay.name, holes=True)
    assert sorted(record.key[0] for record in records if record.operation == "insert") == [11, 12]


def test_a_position_is_read_back_where_the_state_is_lost(
    services: ServiceAddresses,
    database: str,
    new_relay: NewRelay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create_tables(database, 10)
    relay = new_relay("--exactly-once")
    relay.run()
    execute(database, "insert into accounts values (11, 1, 'once')")
    before = relay.slot_lsn()
    relay.run()
    # Leave the state of a kill between Kafka's commit and the confirmation to PostgreSQL.
    execute(database, f"select pg_drop_replication_slot('{relay.name}')")
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "elsewhere"))
    relay.start("--until-caught-up")
    assert relay.join() == 5
    assert f"slot {relay.name} is missing" in relay.last_words()
    assert before is not None
    records = read_table(services, ACCOUNTS, relay.name, holes=True)
    assert [record.key[0] for record in records if record.operation == "insert"] == [11]


@pytest.mark.long
def test_a_slot_that_is_dropped_is_begun_anew(
    services: ServiceAddresses,
    database: str,
    new_relay: NewRelay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checked on the host that relayed, and on one that has no state but Kafka's."""
    create_tables(database, 10)
    relay = new_relay("--exactly-once")
    relay.run()
    for home, number in (("state", 11), ("elsewhere", 12)):
        monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / home))
        execute(database, f"select pg_drop_replication_slot('{relay.name}')")
        execute(database, f"insert into accounts values ({number}, 1, 'meanwhile')")
        relay.start("--until-caught-up")
        assert relay.join() == 5
        assert f"run 'bwtui slots drop {relay.name} -d " in relay.last_words()
        drop(relay)
        assert relay.run().tables["public.accounts"].snapshot_rows == number
        execute(database, f"update accounts set number = 2 where id = {number}")
        relay.run()
    found = difference(services, database, TABLES, relay.name)
    assert all(table.equal for table in found.tables), found.sentence


def drop(relay: Relay) -> None:
    """Make 'bwtui slots drop' forget the slot."""
    command = [sys.executable, "-m", "bwtui", "slots", "drop", relay.name, "-d", relay.database, "--yes"]
    subprocess.run(command, check=True)


@pytest.mark.long
def test_a_slow_transaction_is_split_before_kafka_aborts_it(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    create_tables(database, 10)
    relay = new_relay("--exactly-once", "-C", "transaction.timeout.ms=2000")
    relay.run()
    relay.start()
    relay.wait_streaming()
    execute(database, "insert into accounts select n, 1, repeat('x', 20) from generate_series(11, 150000) n")
    relay.wait_caught_up()
    relay.stop()
    # No change was read again.
    assert relay.last_status().tables["public.accounts"].inserts == 149_990
    records = read_table(services, ACCOUNTS, relay.name, holes=True)
    sent = sorted(record.ordinal for record in records if record.operation == "insert")
    assert sent == list(range(1, 149991))
    assert len({record.part for record in records}) > 1


def test_a_large_transaction_says_that_it_is_split(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    create_tables(database, 10)
    relay = new_relay("--exactly-once")
    relay.run()
    relay.start()
    relay.wait_streaming()
    execute(database, "insert into accounts select n, 1, repeat('x', 20000) from generate_series(11, 4000) n")
    relay.wait_caught_up()
    relay.stop()
    records = [
        record
        for record in read_table(services, ACCOUNTS, relay.name, holes=True)
        if record.operation == "insert"
    ]
    assert sorted(record.ordinal for record in records) == list(range(1, 3991))
    parts = {record.part for record in records}
    assert parts == set(range(len(parts))) and len(parts) > 1
    for part in parts - {0}:
        # The parts are consecutive: no part has an ordinal below those of the part before it.
        first = min(record.ordinal for record in records if record.part == part)
        assert max(record.ordinal for record in records if record.part < part) == first - 1


@pytest.mark.long
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_refused_row_is_dropped_alone(
    services: ServiceAddresses, database: str, new_relay: NewRelay, is_cut: bool
) -> None:
    """The dead letter is in the same transaction; one that is too large is sent without the row."""
    create_tables(database, 10)
    letters_topic = new_name("letters")
    relay = new_relay("--exactly-once", "-e", "log", "--dead-letter-topic", letters_topic)
    relay.run()
    limit_messages(services, ACCOUNTS.topic(relay.name), 20_000)
    if is_cut:
        limit_messages(services, letters_topic, 2_000)
    relay.start()
    relay.wait_streaming()
    large = "(select string_agg(md5(n::text), '') from generate_series(1, 2000) n)"
    execute(
        database,
        "insert into accounts select n, 1, 'small' from generate_series(11, 30) n",
        f"insert into accounts select 31, 1, {large}",
        "insert into accounts select n, 1, 'small' from generate_series(32, 50) n",
    )
    execute(database, "insert into accounts values (51, 1, 'behind it')")
    relay.wait_caught_up()
    relay.stop()
    keys = [
        record.key[0]
        for record in read_table(services, ACCOUNTS, relay.name, holes=True)
        if record.operation == "insert"
    ]
    assert sorted(keys) == [key for key in range(11, 52) if key != 31]
    assert [letter["after"]["id"] for letter in relay.letters()] == ["31"]
    (letter,) = (json.loads(one.value() or b"") for one in committed_records(services, [letters_topic]))
    assert (letter["operation"], letter.get("cut", False)) == ("insert", is_cut)


@pytest.mark.long
def test_what_comes_before_a_row_that_ends_the_relay_is_committed(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    create_tables(database, 10)
    relay = new_relay("--exactly-once", "-C", "message.max.bytes=20000", "--commit-ms", "600000")
    relay.run()
    relay.start()
    relay.wait_streaming()
    large = "(select string_agg(md5(n::text), '') from generate_series(1, 2000) n)"
    execute(database, "insert into accounts values (11, 1, 'before it')")
    execute(
        database,
        "insert into accounts select n, 1, 'beside it' from generate_series(12, 20) n",
        f"insert into accounts select 21, 1, {large}",
    )
    assert relay.wait_ended() == 2
    assert "the message has 64" in relay.last_words()

    def keys() -> list[int]:
        records = read_table(services, ACCOUNTS, relay.name, holes=True)
        return sorted(record.key[0] for record in records if record.operation == "insert")

    assert keys() == [11]
    relay._wait_released()
    relay.run("-e", "log", "--commit-ms", "100")
    assert keys() == list(range(11, 21))


def test_a_slot_whose_snapshot_was_not_committed_is_made_anew(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """The slot is in the state that a kill between its creation and Kafka's commit leaves."""
    create_tables(database, 10)
    relay = new_relay("--exactly-once")
    relay.run()
    tear(services, database, relay)
    status = relay.run()
    assert status.tables["public.accounts"].snapshot_rows == 10


@pytest.mark.long
def test_a_slot_whose_snapshot_is_not_committed_yet_is_left_alone(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """Another relay has just created the slot, and still holds the reservation."""
    create_tables(database, 10)
    relay = new_relay("--exactly-once")
    relay.run()
    tear(services, database, relay)
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        assert reserve(connection, relay.name) is None
        relay.start("--until-caught-up")
        assert relay.wait_ended() == 2
        assert f"another relay is creating slot {relay.name}" in relay.last_words()
        cursor.execute("select 1 from pg_replication_slots where slot_name = %s", [relay.name])
        assert cursor.fetchall() == [(1,)]
    assert relay.run().tables["public.accounts"].snapshot_rows == 10


def test_the_position_of_a_snapshot_names_the_servers_timeline(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """Without the timeline, a server that diverged before the snapshot would pass for the original."""
    create_tables(database, 10)
    relay = new_relay("--exactly-once")
    relay.run()
    _, last = position_of(services, database, relay)
    assert (last.timeline, last.phase) == (1, "stream")


def position_of(services: ServiceAddresses, database: str, relay: Relay) -> tuple[PositionTopic, Position]:
    """Return a reader of the relay's position, and the position."""
    positions = PositionTopic(RelaySettings(slot=relay.name, topic_prefix=relay.name), config(services))
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute("select system_identifier::text, current_database() from pg_control_system()")
        ((system, name),) = cursor.fetchall()
    last = positions.last(Position(system, name, relay.name).key)
    assert last is not None
    return positions, last


def tear(services: ServiceAddresses, database: str, relay: Relay) -> None:
    """Write to Kafka that the snapshot of the relay's slot began, and nothing else."""
    position, last = position_of(services, database, relay)
    torn = replace(last, phase="snapshot", passed=relay.slot_lsn() or 0, lsn=0)
    producer = Producer(config(services))
    producer.produce(position.topic, torn.to_json(), torn.key, 0)
    assert producer.flush(30) == 0


def test_another_servers_transaction_hides_no_position(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """Relays of two servers with one slot name and prefix share the topic; the second one was killed."""
    create_tables(database, 10)
    relay = new_relay("--exactly-once")
    relay.run()
    settings = RelaySettings(slot=relay.name, topic_prefix=relay.name)
    topic = PositionTopic(settings, config(services)).topic
    elsewhere = Position("1", "other", relay.name)
    other = Producer(config(services) | {"transactional.id": f"{relay.name}-other"})
    other.init_transactions(30)
    # The relay is killed after Kafka's commit and before its confirmation to PostgreSQL.
    relay.start(failpoint="after-commit:2:kill")
    execute(database, "insert into accounts values (11, 1, 'confirmed')")
    relay.wait_caught_up()
    other.begin_transaction()
    other.produce(topic, elsewhere.to_json(), elsewhere.key, 0)
    assert other.flush(30) == 0
    execute(database, "insert into accounts values (12, 1, 'once')")
    relay.wait_ended()
    relay._wait_released()
    relay.start("--until-caught-up")
    relay.wait("it waits", lambda status: "Kafka transaction of another relay" in status.detail)
    other.commit_transaction(30)
    assert relay.join() == 0, relay.last_words()
    records = read_table(services, ACCOUNTS, relay.name, holes=True)
    assert sorted(record.key[0] for record in records if record.operation == "insert") == [11, 12]


def test_a_position_that_kafka_has_lost_is_noticed(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """The topic was deleted, and with the slot alone rows would be sent twice."""
    create_tables(database, 10)
    relay = new_relay("--exactly-once")
    relay.run()
    relay.start(failpoint="after-commit:1:kill")
    relay.wait_streaming()
    execute(database, "insert into accounts values (11, 1, 'once')")
    relay.wait_ended()
    relay._wait_released()
    topic = PositionTopic(RelaySettings(slot=relay.name, topic_prefix=relay.name), config(services)).topic
    admin = AdminClient(config(services))
    for future in admin.delete_topics([topic]).values():
        future.result()
    relay.start("--until-caught-up")
    assert relay.join() == 5
    assert f"topic {topic} has lost the relay's position" in relay.last_words()
    records = read_table(services, ACCOUNTS, relay.name, holes=True)
    assert [record.key[0] for record in records if record.operation == "insert"] == [11]
    drop(relay)
    assert relay.run().tables["public.accounts"].snapshot_rows == 11


def config(services: ServiceAddresses) -> dict[str, Any]:
    """Return the configuration common to all clients."""
    return {"bootstrap.servers": services.broker}


@pytest.mark.long
def test_a_relay_that_slept_longer_than_its_transaction(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    create_tables(database, 10)
    relay = new_relay("--exactly-once", "--commit-ms", "600000", "-C", "transaction.timeout.ms=6000")
    relay.run()
    relay.start()
    relay.wait_streaming()
    execute(database, "insert into accounts values (11, 1, 'aborted by Kafka')")
    relay.wait("the row", lambda status: status.tables["public.accounts"].inserts)
    relay.signal(signal.SIGSTOP)
    since = time.monotonic()
    # Kafka checks for such transactions every ten seconds.
    eventually("it is aborted", lambda: time.monotonic() - since > 20)
    relay.signal(signal.SIGCONT)
    relay.wait("a new session", lambda status: status.tables["public.accounts"].inserts > 1)
    execute(database, "insert into accounts values (12, 1, 'after it')")
    relay.wait("the other row", lambda status: status.tables["public.accounts"].inserts > 2)
    relay.stop()
    relay.run()
    records = read_table(services, ACCOUNTS, relay.name, holes=True)
    assert sorted(record.key[0] for record in records if record.operation == "insert") == [11, 12]


@pytest.mark.long
def test_a_broker_that_hangs_and_one_that_is_started_again(
    interrupted: Sandbox, services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    create_tables(database, ROWS)
    relay = new_relay("--exactly-once")
    writer = Writer(database, ROWS)
    relay.start()
    relay.wait_streaming()
    with writer.going_on():
        for _ in range(2):
            sent = len(writer.changes)
            with hanging(interrupted):
                wait_for("changes", lambda: len(writer.changes) > sent + 300)  # noqa: B023
            relay.wait_caught_up()
        interrupted.kill_service("kafka")
        sent = len(writer.changes)
        wait_for("changes", lambda: len(writer.changes) > sent + 300)
        interrupted.start_service("kafka")
        relay.wait_caught_up()
    relay.wait_caught_up()
    relay.stop()
    assert_once(services, database, relay, writer)


def limit_messages(services: ServiceAddresses, topic: str, size: int) -> None:
    """Limit the topic's messages to ``size`` bytes."""
    admin = AdminClient(config(services))
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()
