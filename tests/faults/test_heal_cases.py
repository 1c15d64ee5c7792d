"""``connect --heal`` in special cases.

Next to another relay, with a recording, where nothing can be proven.
"""

import json
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bwtui.demo.shop import DemoTable
from bwtui.model.lsn import format_lsn
from bwtui.model.status import Status
from bwtui.recording.as_of import TableFold, pages
from bwtui.recording.check import check
from bwtui.recording.reader import open_recording
from bwtui.sandbox.sandbox import ServiceAddresses
from tests import forked
from tests.database import session
from tests.faults.administration import make_topic
from tests.faults.backfills import ask, wait_done
from tests.faults.heal_gaps import LOGICAL, TABLES, created
from tests.faults.records import assert_equal, read_table
from tests.faults.relays import Relay, execute, new_name

NewRelay = Callable[..., Relay]
ITEMS = DemoTable("public", "items", ("id",))
MADE = (
    "create table items (id int primary key, v int not null)",
    "insert into items select n, n from generate_series(1, 100) n",
)
#: Changes that the slot misses, and the number of keys that differ.
MISSED = (
    "update items set v = -v where id <= 10",
    "delete from items where id = 50",
    "insert into items values (101, 1), (102, 2)",
)
DIFFER = 13
_HEAL_SECONDS = 120.0


def lose(relay: Relay) -> int:
    """Drop the slot of a caught-up relay, after changes; return the number of records."""
    relay.wait_caught_up()
    relay.stop()
    held = len(read_table(relay.services, ITEMS, relay.name))
    execute(relay.database, *MISSED, f"select pg_drop_replication_slot('{relay.name}')")
    return held


def is_healed(status: Status) -> bool:
    made = any("the relay recreated slot" in error.message for error in status.errors)
    return made and status.heal is None and status.state == "streaming"


def wait_healed(relay: Relay, services: ServiceAddresses, held: int) -> None:
    """Wait for the end of the heal, and check that exactly the differing keys were sent."""
    relay.wait("the heal", is_healed, _HEAL_SECONDS)
    relay.wait_caught_up()
    assert len(read_table(services, ITEMS, relay.name)) == held + DIFFER
    assert_equal(services, relay.database, [ITEMS], relay.name)


def begun(new_relay: NewRelay, *args: str) -> Relay:
    relay = new_relay(*args)
    relay.start()
    relay.wait_streaming()
    return relay


@pytest.mark.long
def test_two_relays_of_one_database_heal_at_once(
    new_relay: NewRelay, services: ServiceAddresses, database: str
) -> None:
    execute(database, *MADE)
    relays = [begun(new_relay, "--heal") for _ in range(2)]
    for relay in relays:
        relay.wait_caught_up()
        relay.stop()
    held = [len(read_table(services, ITEMS, relay.name)) for relay in relays]
    execute(database, *MISSED, *(f"select pg_drop_replication_slot('{relay.name}')" for relay in relays))
    for relay in relays:
        relay.start()
    for relay, before in zip(relays, held, strict=True):
        wait_healed(relay, services, before)


def test_a_publication_that_is_gone_is_made_anew_with_the_slot(
    new_relay: NewRelay, services: ServiceAddresses, database: str
) -> None:
    execute(database, *MADE)
    relay = begun(new_relay, "--heal")
    held = lose(relay)
    execute(database, f"drop publication bwtui_{relay.name}")
    relay.start()
    wait_healed(relay, services, held)
    status = relay.status()
    assert status is not None
    recreated = [one for one in status.errors if f"recreated slot {relay.name}" in one.message]
    assert [one.is_over for one in recreated] == [True]


def test_a_recording_has_what_the_heal_sent(
    new_relay: NewRelay, services: ServiceAddresses, database: str, tmp_path: Path
) -> None:
    execute(database, *MADE)
    folder = tmp_path / "recording"
    relay = begun(new_relay, "--heal", "--record", str(folder))
    held = lose(relay)
    relay.start()
    wait_healed(relay, services, held)
    execute(database, "insert into items values (200, 200)")
    relay.wait_caught_up()
    relay.stop()
    checked = check(folder)
    assert checked.verdict == "clean", checked.damages
    with closing(open_recording(folder)) as recording, closing(TableFold("public.items")) as fold:
        made = [change.operation for change in recording.changes() if change.operation != "snapshot"]
        assert fold.advance(recording, recording.length)
        found = [tuple(row.fields) for row in pages(fold)]
        assert fold.gaps(False) == (False, False, 0, 0)
    assert sorted(made) == sorted([*["backfill"] * (DIFFER - 1), "cleanup", "insert"])
    # The row whose delete the slot missed is also gone from the recording's table.
    with session(database) as opened:
        rows = opened.rows("select id::text, v::text from public.items order by items.id")
        assert found == [tuple(str(one).encode() for one in row) for row in rows]


def test_one_that_is_to_catch_up_ends_once_it_is_healed(
    new_relay: NewRelay, services: ServiceAddresses, database: str
) -> None:
    execute(database, *MADE)
    relay = begun(new_relay, "--heal")
    held = lose(relay)
    relay.start("--until-caught-up")
    assert relay.join(_HEAL_SECONDS) == 0, relay.last_words()
    assert len(read_table(services, ITEMS, relay.name)) == held + DIFFER
    assert_equal(services, database, [ITEMS], relay.name)


def test_a_kill_after_the_new_slot_is_made_keeps_that_slot(
    new_relay: NewRelay, services: ServiceAddresses, database: str
) -> None:
    """A row without a key that is written while the relay is down can only come from that slot."""
    execute(database, *MADE, "create table visits (id int)")
    relay = begun(new_relay, "--heal", "--allow-unkeyed")
    lose(relay)
    # The first write says that the slot will be created, the second that it was.
    relay.start(failpoint="before-heal:2:kill")
    assert relay.join() == -9, relay.last_words()
    made = relay.slot_lsn()
    assert made is not None
    execute(database, "insert into visits values (7)")
    relay.start()
    relay.wait_streaming()
    relay.wait_caught_up()
    visits = DemoTable("public", "visits", ())
    assert [record.value for record in read_table(services, visits, relay.name)] == [{"id": 7}]
    relay.wait("the comparison", lambda now: now.heal is not None and now.heal.lsn == format_lsn(made))


@pytest.mark.parametrize("how", ["expired", pytest.param("another writer", marks=pytest.mark.long)])
def test_where_nothing_can_be_proven_somebody_decides(
    how: str, new_relay: NewRelay, services: ServiceAddresses, database: str
) -> None:
    execute(database, *MADE)
    relay = new_relay("--heal")
    topic = ITEMS.topic(relay.name)
    make_topic(services, topic, 1 << 20, policy="delete")
    relay.start()
    relay.wait_streaming()
    lose(relay)
    if how == "expired":
        admin = AdminClient({"bootstrap.servers": services.broker})
        for future in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
            future.result()
    else:
        producer = Producer({"bootstrap.servers": services.broker})
        producer.produce(topic, b"\0\x7f\0\0\1not ours", b"\0\x7f\0\0\1not ours", partition=0)
        assert producer.flush(30) == 0
    relay.start("--until-caught-up")
    assert relay.join(_HEAL_SECONDS) == 3, relay.log()
    assert "bwtui snapshot" in relay.last_words()
    relay.start()
    undecided = relay.wait(
        "the question", lambda now: now.heal is not None and now.heal.state == "undecided", _HEAL_SECONDS
    )
    assert undecided.heal is not None
    assert "public.items" in undecided.heal.detail
    assert "bwtui snapshot public.items" in undecided.heal.hint
    execute(database, "insert into items values (200, 200)")
    relay.wait_caught_up()
    assert wait_done(relay, ask(relay, table="public.items")).rows == 102
    asked = ["repair", "--relay", relay.name, "--json"]
    # The snapshot has repaired all rows; the key whose delete was missed has no tombstone yet.
    assert command(*asked, "--dry-run")["tombstones"] == 1
    command(*asked, "--yes")
    if how == "expired":
        relay.wait("its end", lambda now: now.heal is None)
    relay.stop()


def command(*args: str) -> dict[str, object]:
    with forked.begin(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        output, errors = run.communicate(timeout=_HEAL_SECONDS)
    assert output, errors
    found: dict[str, object] = json.loads(output)
    return found


@pytest.mark.long
def test_a_server_that_comes_and_goes_is_healed_in_the_end(
    services: ServiceAddresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    server = created()
    relay = Relay(services, server.dsn, tmp_path, new_name("flaps"), "--heal")
    try:
        execute(server.dsn, *MADE)
        relay.start()
        relay.wait_streaming()
        held = lose(relay)
        relay.start()
        relay.wait("the comparison", lambda now: now.heal is not None and now.heal.state == "comparing")
        for _ in range(3):
            server.stop()
            server.start(**LOGICAL)
            relay.wait("that it streams again", lambda now: now.state == "streaming" and not now.detail)
        relay.wait("the heal", is_healed, _HEAL_SECONDS)
        relay.wait_caught_up()
        assert len(read_table(services, ITEMS, relay.name)) == held + DIFFER
        assert_equal(services, server.dsn, [ITEMS, *TABLES], relay.name)
        relay.stop()
    finally:
        relay.close()
        server.remove()


@pytest.mark.long
def test_a_right_to_read_that_is_taken_and_given_back(
    new_relay: NewRelay, services: ServiceAddresses, database: str
) -> None:
    role, here = new_name("reader"), urlsplit(database)
    execute(database, *MADE, f"create role {role} login replication password 'x'")
    try:
        execute(database, f"grant select on items to {role}")
        execute(database, f"create publication mine_{role} for table items")
        relay = new_relay("--heal", "--publication", f"mine_{role}")
        relay.database = here._replace(netloc=f"{role}:x@{here.hostname}:{here.port}").geturl()
        relay.start()
        relay.wait_streaming()
        relay.wait_caught_up()
        relay.stop()
        held = len(read_table(services, ITEMS, relay.name))
        execute(database, *MISSED, f"select pg_drop_replication_slot('{relay.name}')")
        execute(database, f"revoke select on items from {role}")
        relay.start()
        waiting = relay.wait(
            "the right", lambda now: now.heal is not None and now.heal.state == "waiting", _HEAL_SECONDS
        )
        assert waiting.heal is not None
        assert "permission denied for table items" in waiting.heal.detail
        execute(database, f"grant select on items to {role}")
        relay.wait("the heal", is_healed, _HEAL_SECONDS)
        relay.wait_caught_up()
        assert len(read_table(services, ITEMS, relay.name)) == held + DIFFER
        assert_equal(services, database, [ITEMS], relay.name)
        relay.stop()
    finally:
        execute(database, f"drop owned by {role}", f"drop role {role}")
