"""``connect --until-caught-up``: rows requested before the start are sent before the relay ends."""

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from bwtui.demo.shop import DemoTable
from bwtui.model.backfill import BackfillRequest
from bwtui.relay.history.backfill_store import FOLDER, BackfillStore
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.state_folder import state_folder
from tests.faults.records import difference, read_table
from tests.faults.relays import Relay, execute, wait_for

NewRelay = Callable[..., Relay]
FIRST, LATER = DemoTable("public", "first", ("id",)), DemoTable("public", "later", ("id",))
#: More than one chunk.
ROWS = 12_000
MADE = (
    "create table first (id int primary key, v int)",
    "create table later (id int primary key, v int)",
    "insert into first values (1, 1)",
    f"insert into later select n, n from generate_series(1, {ROWS}) n",
)


def requests_of(relay: Relay) -> BackfillStore:
    """Return the requests of a stopped relay."""
    return BackfillStore(state_folder(relay.name) / FOLDER)


def lacks(relay: Relay, *args: str) -> str:
    """Let the relay catch up, check that a table is not proven, and return its last output."""
    relay.start("--until-caught-up", *args)
    code = relay.join()
    assert code == 3, f"exit code {code}: {relay.last_words()}"
    return relay.last_words()


@pytest.fixture(
    params=[(), ("--exactly-once",), ("--record", "recording")], ids=["plain", "once", "recorded"]
)
def relay(
    request: pytest.FixtureRequest,
    database: str,
    new_relay: NewRelay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Relay:
    """A relay that has caught up once with the first of both tables."""
    monkeypatch.chdir(tmp_path)
    execute(database, *MADE)
    made = new_relay(*request.param)
    execute(database, f"create publication bwtui_{made.name} for table first")
    made.run()
    return made


def test_a_table_that_joined_brings_its_rows(relay: Relay, services: ServiceAddresses, database: str) -> None:
    execute(database, f"alter publication bwtui_{relay.name} add table later")
    relay.run()
    found = difference(services, database, [FIRST, LATER], relay.name)
    assert all(table.equal for table in found.tables), found.sentence


def test_a_request_is_worked_on_and_one_that_is_paused_waits(
    relay: Relay, services: ServiceAddresses
) -> None:
    store = requests_of(relay)
    paused = store.submit(BackfillRequest("public.first", where="true"))
    store.control(paused, "pause")
    relay.run()
    assert len(read_table(services, FIRST, relay.name, holes=True)) == 1
    requests_of(relay).control(paused, "resume")
    relay.run()
    assert [one.operation for one in read_table(services, FIRST, relay.name, holes=True)] == [
        "snapshot",
        "backfill",
    ]
    task = requests_of(relay).task(paused)
    assert task is not None and task.state == "done"


def test_a_table_that_left_the_publication_is_no_clean_end(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    execute(database, *MADE)
    relay = new_relay("--new-tables", "announce")
    relay.run()
    execute(
        database, f"alter publication bwtui_{relay.name} drop table later", "delete from later where id < 9"
    )
    words = lacks(relay)
    assert "public.later is not proven since" in words
    command = f'ALTER PUBLICATION "bwtui_{relay.name}" ADD TABLE public.later'
    assert command in words
    assert "public.later is not proven since" in lacks(relay)
    execute(database, command)
    # The run that is to end compares it first.
    relay.run()
    found = difference(services, database, [FIRST, LATER], relay.name)
    assert all(table.equal for table in found.tables), found.sentence
    execute(
        database, f"alter publication bwtui_{relay.name} drop table later", "delete from later where id < 99"
    )
    execute(database, command)
    assert "bwtui repair" in lacks(relay, "--on-gap", "report")


@pytest.mark.parametrize("args", [(), ("--exactly-once",)], ids=["plain", "once"])
def test_a_deleted_topic_is_filled_before_the_end(
    services: ServiceAddresses, database: str, new_relay: NewRelay, args: tuple[str, ...]
) -> None:
    execute(database, *MADE)
    relay = new_relay(*args)
    relay.run()
    topic, admin = FIRST.topic(relay.name), AdminClient({"bootstrap.servers": services.broker})
    admin.delete_topics([topic])[topic].result(30)
    wait_for("it is gone", lambda: topic not in admin.list_topics(timeout=10).topics)
    relay.run()
    found = difference(services, database, [FIRST, LATER], relay.name)
    assert all(table.equal for table in found.tables), found.sentence


def test_a_request_that_failed_in_an_earlier_run_is_no_clean_end(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    execute(database, *MADE)
    relay = new_relay()
    relay.run()
    requests_of(relay).submit(BackfillRequest("public.later", where="nothing", reason="joined"))
    assert "public.later" in lacks(relay)
    words = lacks(relay)
    assert "topic of public.later lacks the rows that the table had when it was added" in words
    requests_of(relay).submit(BackfillRequest("public.later"))
    relay.run()
