"""`bwtui dead-letters`: dropped rows are sent after all, in their current state and in order."""

import json
import random
import re
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bwtui.cli.main import cli
from bwtui.demo.shop import DemoTable
from bwtui.encode.names import topic_name
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.database import Session
from tests.faults.administration import limit_topic, make_topic
from tests.faults.records import assert_equal, assert_keys_in_order, difference, read_table
from tests.faults.relays import Relay, execute

ITEMS, LOGS = DemoTable("public", "items", ("id", "part")), DemoTable("public", "logs", ())
LIMIT = 20_000
NewRelay = Callable[..., Relay]


@pytest.fixture
def relay(services: ServiceAddresses, database: str, new_relay: NewRelay) -> Relay:
    """A running relay whose topic rejects large rows, with dead letters of five rows of two tables."""
    return with_letters(services, database, new_relay)


def with_letters(services: ServiceAddresses, database: str, new_relay: NewRelay, *given: str) -> Relay:
    execute(
        database,
        """create table items (id bigint, part text, body text, primary key (part, id))""",
        """alter table items alter column body set storage external""",
        """create table logs (body text)""",
    )
    relay = new_relay("-e", "log", "-u", *given)
    relay._args += ("--dead-letter-topic", f"dead-{relay.name}")
    for table in ("items", "logs"):
        make_topic(services, topic_name(relay.name, "public", table), LIMIT)
    relay.run()
    relay.start()
    relay.wait_streaming()
    execute(
        database,
        *(f"""insert into items values ({n}, 'a''\\b', 'x')""" for n in (1, 2, 3)),
        # One row is large, one will be deleted, one is small again, and one has a changed key.
        f"""update items set body = {large()} where id = 1""",
        f"""insert into items values (4, '', {large()}), (5, 'ü', {large()})""",
        """delete from items where id = 4""",
        """update items set body = 'small' where id = 5""",
        f"""update items set id = 30, body = {large()} where id = 3""",
        f"""insert into logs values ({large()})""",
    )
    relay.wait_caught_up()
    return relay


def large() -> str:
    return f"'{random.randbytes(2 * LIMIT).hex()}'"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["dead-letters", *arguments], prog_name="bwtui")


def listed(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("list", "--json", *arguments).stdout.splitlines()]


def test_letters_are_retried_as_their_rows_are_by_then(
    services: ServiceAddresses, database: str, relay: Relay
) -> None:
    first = listed()
    assert run("list").exit_code == 1
    assert [one["state"] for one in first] == ["open"] * 5
    keys = {one["table"]: one["key"] for one in first}
    assert keys == {"public.items": {"id": "…", "part": "…"}, "public.logs": None}
    assert listed("--from-topic") == first
    assert "5 letters open in topic " in run("list", "--from-topic").stdout
    # Nothing was fixed: rows that are still large are refused again, the others are sent in their current
    # state.
    again = run("retry", "--table", "items", "--json")
    assert again.exit_code == 1, again.stderr
    told = json.loads(again.stdout)
    assert len(told["sent"]) == 2
    assert len(told["refused_again"]) == 2
    second = listed("--table", "items")
    assert [one["id"] for one in second] == [id for new in told["refused_again"].values() for id in new]
    limit_topic(services, topic_name(relay.name, "public", "items"), 10_000_000)
    stop = threading.Event()
    writer = threading.Thread(target=_write, args=(database, stop))
    writer.start()
    try:
        mended = run("retry", *(one["id"][:8] for one in second))
    finally:
        stop.set()
        writer.join()
    assert mended.exit_code == 0, mended.stderr
    assert "2 letters sent: " in mended.stdout
    _one_without_a_key()
    assert_same(services, database, relay)
    assert_keys_in_order(read_table(services, ITEMS, relay.name))


def test_letters_of_rows_that_are_gone_are_sent_as_tombstones_and_told_of_no_more(
    database: str, relay: Relay
) -> None:
    told = "rows were dropped and stored as dead letters"
    relay.wait("the remark", lambda status: told in status.verdict.sentence)
    relay.stop()
    relay.start()
    relay.wait("the remark after a restart", lambda status: told in status.verdict.sentence)
    execute(database, """delete from items where id in (1, 4, 5, 30)""")
    relay.wait_caught_up()
    sent = run("retry", "--table", "items")
    assert sent.exit_code == 0, sent.stderr
    assert re.search(r"4 letters sent: \d tombstones for keys without a row$", sent.stdout, re.MULTILINE)
    _one_without_a_key()
    relay.wait("no remark", lambda status: "dropped" not in status.verdict.sentence)


def assert_same(services: ServiceAddresses, database: str, relay: Relay) -> None:
    """Check that the topics equal the tables, except for the row that can't be sent by its key."""
    execute(database, """delete from logs""")
    relay.wait_caught_up()
    relay.stop()
    assert_equal(services, database, [ITEMS, LOGS], relay.name)


def _one_without_a_key() -> None:
    """Its row can't be requested; the command reports the way out and sets the dead letter aside."""
    refused = run("retry", "--all")
    assert refused.exit_code == 2
    assert "it has no key" in refused.stderr
    assert "'bwtui snapshot public.logs --where SQL -u'" in refused.stderr
    (left,) = listed()
    shown = json.loads(run("show", left["id"], "--json").stdout)
    assert shown["after"] == {"body": "…"}
    # Kafka refused another row of its transaction, so it was read again and has two dead letters there.
    assert len({place["partition"] for place in shown["places"]}) == 1
    assert "is set aside" in run("drop", left["id"], "--note", "a test row").stdout
    assert (run("list").exit_code, listed()) == (0, [])
    (note,) = json.loads(run("show", left["id"], "--json").stdout)["notes"]
    assert (note["what"], note["text"]) == ("drop", "a test row")


def _write(database: str, stop: threading.Event) -> None:
    """Change one of the rows meanwhile."""
    with closing(Session(database)) as session:
        number = 0
        while not stop.is_set() or number < 50:
            number += 1
            session.run("""update items set body = %s where id = 1""", f"newer {number}")


@pytest.mark.long
def test_a_relay_that_is_stopped_sends_them_after_its_next_start(
    services: ServiceAddresses, database: str, relay: Relay
) -> None:
    relay.stop()
    limit_topic(services, topic_name(relay.name, "public", "items"), 10_000_000)
    asked = run("retry", "--table", "items")
    assert asked.exit_code == 4
    assert f"relay {relay.name} is not running, so request 1-items waits for its next start" in asked.stderr
    assert {one["state"] for one in listed("--table", "items")} == {"asked"}
    assert "already has an unfinished backfill" in run("retry", listed("--table", "items")[0]["id"]).stderr
    relay.start()
    relay.wait("the rows", lambda status: [one.state for one in status.backfills] == ["done"])
    assert listed("--table", "items") == []
    assert {one["state"] for one in listed("--table", "items", "--all")} == {"sent"}
    assert_same(services, database, relay)


@pytest.mark.long
def test_the_letters_of_a_table_whose_key_is_another_one_stay(database: str, relay: Relay) -> None:
    execute(
        database,
        """alter table items drop constraint items_pkey, add column code uuid default gen_random_uuid()""",
        """alter table items add primary key (code, part)""",
    )
    relay.wait_caught_up()
    refused = run("retry", "--table", "items")
    assert refused.exit_code == 2
    assert "the key of table public.items changed from (id, part) to (part, code)" in refused.stderr
    assert {one["state"] for one in listed("--table", "items")} == {"open"}


@pytest.mark.long
def test_exactly_once_sends_none_of_them_while_one_is_refused(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """The rows are one Kafka transaction; the dead letters stay open, and are sent once no row is refused."""
    relay = with_letters(services, database, new_relay, "--exactly-once")
    refused = run("retry", "--table", "items")
    assert refused.exit_code == 2
    assert "raise max.message.bytes of topic" in refused.stderr
    assert refused.stdout.count("stays open: 1-items: Kafka rejects a message of ") == 4
    assert {one["state"] for one in listed("--table", "items")} == {"open"}
    limit_topic(services, topic_name(relay.name, "public", "items"), 10_000_000)
    mended = run("retry", "--table", "items")
    assert "4 letters sent: 3 rows as of then, 2 tombstones for keys without a row" in mended.stdout
    assert listed("--table", "items") == []
    relay.stop()
    found = difference(services, database, [ITEMS], relay.name)
    assert all(table.equal for table in found.tables), found.sentence
