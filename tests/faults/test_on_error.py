"""--on-error: exit stops with the slot before the failing row, log drops only that row."""

import json
import random
import re
import signal
from collections.abc import Callable
from contextlib import closing

import psycopg2
import pytest

from bwtui.demo.shop import DemoTable
from bwtui.model.lsn import parse_lsn
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.administration import limit_topic, make_topic, occupy_subject
from tests.faults.records import Record, assert_equal, assert_keys_in_order, difference, read_table, repeated
from tests.faults.relays import Relay, execute
from tests.raw_topic import raw_messages

ITEMS = DemoTable("public", "items", ("id",))
OTHERS = DemoTable("public", "others", ("id",))
LIMIT = 20_000
MARK = "confidential"

NewRelay = Callable[..., Relay]


@pytest.fixture
def table(database: str) -> None:
    """A table with one row, whose large values neither PostgreSQL nor Kafka can compress."""
    execute(
        database,
        "create table items (id bigint primary key, body text)",
        "alter table items alter column body set storage external",
        "insert into items values (0, 'first')",
    )


def large() -> str:
    """Return a value that is too large for `LIMIT`, as an SQL literal."""
    return f"'{MARK}{random.randbytes(2 * LIMIT).hex()}'"


def good(*ids: int) -> str:
    values = ", ".join(f"({n}, '{MARK} {n}')" for n in ids)
    return f"insert into items values {values}"


def bad(n: int) -> str:
    return f"insert into items values ({n}, {large()})"


def failure(relay: Relay) -> tuple[int, int]:
    """Return commit LSN and ordinal of the row that the error names; check that it shows no value."""
    words = relay.last_words()
    found = re.search(r"error: insert on public\.items at ([0-9A-F]+/[0-9A-F]+) #(\d+): ", words)
    assert found, words
    assert "max.message.bytes" in words
    for text in (words, relay.log(), json.dumps(relay.last_status().to_json())):
        assert MARK not in text
    return parse_lsn(found[1]), int(found[2])


def assert_stops_at_the_row(
    services: ServiceAddresses,
    database: str,
    relay: Relay,
    end: int,
    *args: str,
    again_from: int | None = None,
) -> None:
    """Check that the relay fails again at the same row, and sends everything in order without the limit.

    ``again_from``: changes from this LSN on may be sent twice. The broker rejects a row together with its
    neighbours in the request, and everything unconfirmed at that moment is read again.
    """
    at, ordinal = failure(relay)
    assert ordinal == 3
    assert relay.slot_lsn() == end < at
    relay.start(*args)
    assert relay.join() == 2
    assert failure(relay) == (at, ordinal)
    assert relay.slot_lsn() == end
    limit_topic(services, f"{relay.name}.items", 10_000_000)
    relay.run()
    assert_equal(services, database, [ITEMS], relay.name)
    records = read_table(services, ITEMS, relay.name)
    assert_keys_in_order(records)
    # Changes before the slot were sent once; of the failing transaction, the rows before the bad one were
    # sent again.
    again = {identity[1:3] for identity in repeated(records)} - {(at, 1), (at, 2)}
    assert all(again_from is not None and again_from <= lsn for lsn, _ in again)


def test_exit_before_sending(
    services: ServiceAddresses, database: str, new_relay: NewRelay, table: None
) -> None:
    relay = new_relay()
    relay.run()
    end = execute(database, good(*range(1, 50)))
    execute(database, good(50, 51), bad(52), good(53))
    execute(database, good(54))
    limit = ("-C", f"message.max.bytes={LIMIT}")
    relay.start(*limit)
    assert relay.join() == 2
    assert_stops_at_the_row(services, database, relay, end, *limit)


def test_exit_on_the_brokers_refusal(
    services: ServiceAddresses, database: str, new_relay: NewRelay, table: None
) -> None:
    relay = new_relay()
    make_topic(services, f"{relay.name}.items", LIMIT)
    relay.run()
    relay.start()
    relay.wait_streaming()
    relay.signal(signal.SIGSTOP)
    confirmed = relay.slot_lsn()
    end = execute(database, good(*range(1, 50)))
    execute(database, good(50, 51), bad(52), good(53))
    execute(database, good(54))
    relay.signal(signal.SIGCONT)
    assert relay.join() == 2
    assert_stops_at_the_row(services, database, relay, end, again_from=confirmed)


def test_exit_in_the_snapshot_leaves_nothing(
    services: ServiceAddresses, database: str, new_relay: NewRelay, table: None
) -> None:
    execute(database, good(1, 2), bad(3), good(4))
    relay = new_relay()
    relay.start("-C", f"message.max.bytes={LIMIT}")
    assert relay.join() == 2
    words = relay.last_words()
    assert re.search(r"snapshot on public\.items at [0-9A-F]+/[0-9A-F]+ #4: ", words), words
    assert MARK not in words + relay.log()
    assert relay.slot_lsn() is None
    limit_topic(services, f"{relay.name}.items", 10_000_000)
    relay.run()
    assert_equal(services, database, [ITEMS], relay.name)


def changes(database: str) -> None:
    """Change thirty keys a few times each, in separate transactions; one value of key 7 is too large.

    Key 8 gets such a value for good; a later transaction moves key 9 to 109 with one, and back.
    """
    execute(database, good(*range(1, 31)))
    for round_ in range(3):
        statements = [f"update items set body = 'round {round_} ' || id"]
        if round_ == 1:
            statements.insert(0, f"update items set body = {large()} where id = 7")
        execute(database, *statements)
    execute(
        database,
        f"update items set body = {large()} where id = 8",
        "update items set body = body || '!' where id <> 8",
    )
    execute(database, "delete from items where id = 30", good(31))


def assert_dropped(relay: Relay, count: int) -> None:
    """Check that ``count`` rows were dropped, counted, shown and kept, and that no value was shown."""
    status = relay.last_status()
    items = status.tables["public.items"]
    assert items.dead_letters == items.errors == count
    letters = relay.letters()
    assert len(letters) == count
    for letter in letters:
        assert letter["table"] == "public.items"
        assert letter["topic"] == f"{relay.name}.items"
        assert letter["reason"]
        assert "bytes" in letter["error"]
        assert letter["after"]["body"].startswith(MARK)
    shown = [entry for entry in status.errors if entry.kind == "row"]
    assert sum(entry.count for entry in shown) == count
    assert all(entry.table == "public.items" and entry.hint for entry in shown)
    assert MARK not in json.dumps(status.to_json()) + relay.log() + relay.last_words()


def assert_all_but_dropped(
    services: ServiceAddresses, database: str, relay: Relay, expected: set[int]
) -> None:
    """Check that the topic equals the table, except for the keys whose last row was dropped."""
    records = read_table(services, ITEMS, relay.name)
    assert_keys_in_order(records)
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute("select id, body from items")
        rows = dict(cursor.fetchall())
    latest = {record.key[0]: record for record in records}
    found = {key: record.value["body"] for key, record in latest.items() if record.value is not None}
    assert {key for key in rows.keys() | found.keys() if rows.get(key) != found.get(key)} == expected
    assert all(len(body) < LIMIT for body in found.values())


def bodies(records: list[Record], key: int) -> list[str]:
    """Return the values of ``key`` in the topic, without repetitions."""
    found = {
        record.identity: record.value["body"] for record in records if record.key == (key,) and record.value
    }
    return list(found.values())


@pytest.mark.parametrize("refused_by", ["relay", "broker"])
def test_log_drops_only_the_row(
    services: ServiceAddresses, database: str, new_relay: NewRelay, table: None, refused_by: str
) -> None:
    relay = new_relay("-e", "log", *(["-C", f"message.max.bytes={LIMIT}"] if refused_by == "relay" else []))
    if refused_by == "broker":
        make_topic(services, f"{relay.name}.items", LIMIT)
    relay.run()
    relay.start()
    relay.wait_streaming()
    relay.signal(signal.SIGSTOP)
    changes(database)
    relay.signal(signal.SIGCONT)
    relay.wait_caught_up()
    relay.stop()
    assert_dropped(relay, 2)
    assert_all_but_dropped(services, database, relay, {8})
    kept = bodies(read_table(services, ITEMS, relay.name), 7)
    assert kept == [f"{MARK} 7", "round 0 7", "round 1 7", "round 2 7", "round 2 7!"]


def test_log_counts_a_row_once_that_is_read_twice(
    services: ServiceAddresses, database: str, new_relay: NewRelay, table: None
) -> None:
    """After the broker's refusal of one row the relay reads again; the other row has already been dropped."""
    relay = new_relay("-e", "log", "-C", f"message.max.bytes={3 * LIMIT}")
    make_topic(services, f"{relay.name}.items", LIMIT)
    relay.run()
    relay.start()
    relay.wait_streaming()
    execute(database, good(1))
    relay.wait_caught_up()
    relay.signal(signal.SIGSTOP)
    medium = f"insert into items values (3, '{MARK}{random.randbytes(LIMIT).hex()}')"
    execute(database, bad(2), medium, good(4))
    execute(database, "update items set body = 'changed' where id in (1, 4)", bad(5))
    # The relay has all rows when Kafka refuses row 3: row 5 has already been dropped.
    relay.wait_sent()
    relay.signal(signal.SIGCONT)
    relay.wait_caught_up()
    relay.stop()
    assert_dropped(relay, 3)
    assert [letter["after"]["id"] for letter in relay.letters()] == ["2", "5", "3"]
    assert_all_but_dropped(services, database, relay, {2, 3, 5})


@pytest.mark.parametrize("refused_by", ["relay", "broker"])
def test_log_in_the_snapshot(
    services: ServiceAddresses, database: str, new_relay: NewRelay, table: None, refused_by: str
) -> None:
    execute(
        database,
        *(good(n) for n in range(1, 200)),
        bad(200),
        *(good(n) for n in range(201, 400)),
        bad(400),
    )
    relay = new_relay("-e", "log", *(["-C", f"message.max.bytes={LIMIT}"] if refused_by == "relay" else []))
    if refused_by == "broker":
        make_topic(services, f"{relay.name}.items", LIMIT)
    relay.start("--until-caught-up")
    assert relay.join() == 0, relay.last_words()
    assert relay.last_status().tables["public.items"].dead_letters == 2
    assert len(relay.letters()) == 2
    assert MARK not in json.dumps(relay.last_status().to_json()) + relay.log() + relay.last_words()
    assert_all_but_dropped(services, database, relay, {200, 400})
    assert relay.slot_lsn() is not None


@pytest.mark.parametrize("refused_by", ["relay", "broker"])
def test_log_with_a_topic_for_dead_letters(
    services: ServiceAddresses, database: str, new_relay: NewRelay, table: None, refused_by: str
) -> None:
    """A dead letter holds the row and may be too large for its topic: it is sent without the row."""
    relay = new_relay("-e", "log", *(["-C", f"message.max.bytes={LIMIT}"] if refused_by == "relay" else []))
    letters = f"letters.{relay.name}"
    if refused_by == "broker":
        make_topic(services, f"{relay.name}.items", LIMIT)
        make_topic(services, letters, LIMIT, policy="delete")
    relay.run("--dead-letter-topic", letters)
    relay.start("--dead-letter-topic", letters)
    relay.wait_streaming()
    relay.signal(signal.SIGSTOP)
    changes(database)
    relay.signal(signal.SIGCONT)
    relay.wait_caught_up()
    relay.stop()
    assert_dropped(relay, 2)
    assert_all_but_dropped(services, database, relay, {8})
    found = read_letters(services, letters, 2)
    assert {letter["table"] for letter in found} == {"public.items"}
    assert {letter["operation"] for letter in found} == {"update"}
    assert {letter["commit_lsn"] for letter in found} == {letter["commit_lsn"] for letter in relay.letters()}
    assert all(letter["error"] and letter["reason"] for letter in found)


def read_letters(services: ServiceAddresses, topic: str, count: int) -> list[dict[str, str]]:
    """Return the dead letters in the topic, of ``count`` rows; a row that is read again has two."""
    found = [json.loads(value or b"") for _, value in raw_messages(services, topic)]
    assert len({(letter["commit_lsn"], letter["ordinal"]) for letter in found}) == count
    return found


def test_a_refused_schema_stops_the_relay(
    services: ServiceAddresses, database: str, new_relay: NewRelay, table: None
) -> None:
    relay = new_relay()
    occupy_subject(services, f"{relay.name}.items-value")
    relay.start()
    assert relay.join() == 2
    assert f"{relay.name}.items-value" in relay.last_words()
    assert relay.slot_lsn() is None


def test_a_refused_schema_in_the_stream_stops_the_relay(
    services: ServiceAddresses, database: str, new_relay: NewRelay, table: None
) -> None:
    relay = new_relay()
    execute(database, f"create publication bwtui_{relay.name} for all tables")
    relay.run()
    occupy_subject(services, f"{relay.name}.others-value", "FULL")
    execute(database, "create table others (id int primary key)")
    end = execute(database, good(1))
    execute(database, "insert into others values (1)", good(2))
    relay.start()
    assert relay.join() == 2
    words = relay.last_words()
    assert f"{relay.name}.others-value" in words
    assert "insert on public.others at " in words
    assert relay.slot_lsn() == end


def test_a_refused_schema_drops_only_its_table(
    services: ServiceAddresses, database: str, new_relay: NewRelay, table: None
) -> None:
    execute(database, "create table others (id int primary key)", "insert into others values (1), (2)")
    relay = new_relay("-e", "log")
    occupy_subject(services, f"{relay.name}.others-value")
    relay.start()
    relay.wait_streaming()
    execute(database, "insert into others values (3)", good(1))
    execute(database, "delete from others where id = 1", good(2))
    relay.wait_caught_up()
    relay.stop()
    status = relay.last_status()
    assert status.tables["public.others"].dead_letters == 4
    assert status.tables["public.items"].dead_letters == 0
    letters = relay.letters()
    assert [letter["operation"] for letter in letters] == ["snapshot", "snapshot", "insert", "delete"]
    assert all(f"{relay.name}.others-value" in letter["error"] for letter in letters)
    found = difference(services, database, [ITEMS], relay.name)
    assert all(verdict.equal for verdict in found.tables), found.sentence
