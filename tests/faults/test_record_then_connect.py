"""A slot confirmed only to a recording is not continued into Kafka as if Kafka lacked nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.records import assert_equal
from tests.faults.relays import RecordingOnly, Relay, execute
from tests.faults.writer import TABLES, create_tables

NewRelay = Callable[..., Relay]


@pytest.fixture
def recorded(database: str, new_relay: NewRelay, tmp_path: Path) -> Relay:
    """A slot whose snapshot and first change were recorded, and nothing else."""
    create_tables(database, 10)
    relay = new_relay("-o", str(tmp_path / "recording"), kind=RecordingOnly)
    relay.run()
    execute(database, "insert into accounts values (1000, 1, 'recorded')")
    relay.run()
    return relay


def connecting(services: ServiceAddresses, recorded: Relay, tmp_path: Path, *args: str) -> Relay:
    """Return bwtui connect on the same slot."""
    folder = tmp_path / "connect"
    folder.mkdir(exist_ok=True)
    return Relay(services, recorded.database, folder, recorded.name, *args)


@pytest.mark.parametrize("other_name", [pytest.param(False, marks=pytest.mark.long), True])
def test_connect_refuses_a_slot_that_was_recorded(
    services: ServiceAddresses, recorded: Relay, tmp_path: Path, other_name: bool
) -> None:
    before = recorded.slot_lsn()
    relay = connecting(services, recorded, tmp_path)
    for _ in range(2):
        relay.start("--until-caught-up", *(["--name", "another"] if other_name else []))
        assert relay.join() == 2
        error, hint = relay.last_words().splitlines()
        assert f"confirmed slot {relay.name} up to 0/" in error
        assert "'bwtui record'" in error
        assert f"'bwtui slots drop {relay.name} -d " in hint
    assert relay.slot_lsn() == before
    execute(recorded.database, "insert into accounts values (1001, 1, 'recorded too')")
    recorded.run()


def test_connect_goes_on_when_it_is_meant(
    services: ServiceAddresses, recorded: Relay, tmp_path: Path
) -> None:
    relay = connecting(services, recorded, tmp_path)
    status = relay.run("--skip-snapshot")
    (error,) = status.errors
    assert "which were only recorded" in error.message
    execute(recorded.database, "insert into accounts values (1001, 1, 'relayed')")
    assert relay.run("--skip-snapshot").tables["public.accounts"].inserts == 1
    # A loss that was accepted is not reported again.
    assert relay.run().errors == ()


def test_a_new_snapshot_is_taken_when_the_slot_was_dropped(
    services: ServiceAddresses, database: str, recorded: Relay, tmp_path: Path
) -> None:
    execute(database, f"select pg_drop_replication_slot('{recorded.name}')")
    for memory in (tmp_path / "state").rglob("slot-*.json"):
        memory.unlink()
    relay = connecting(services, recorded, tmp_path, "--publication", "anew")
    relay.run()
    assert_equal(services, database, TABLES, relay.name)


def test_record_refuses_a_slot_that_was_relayed_until_it_is_meant(
    services: ServiceAddresses, database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    create_tables(database, 10)
    relay = new_relay()
    relay.run()
    # Advance the LSN, as any WAL does: the recording confirms WAL that holds no change.
    execute(database, "select pg_logical_emit_message(false, 'test', 'no change')")
    (tmp_path / "record").mkdir()
    recording = RecordingOnly(services, database, tmp_path / "record", relay.name)
    before = relay.slot_lsn()
    recording.start("-o", str(tmp_path / "recording"), "--until-caught-up")
    assert recording.join() == 2
    error, hint = recording.last_words().splitlines()
    assert f"slot {relay.name} belongs to a relay that sends its changes to Kafka" in error
    assert "--skip-snapshot" in hint
    assert relay.slot_lsn() == before
    recording.start("-o", str(tmp_path / "recording"), "--until-caught-up", "--skip-snapshot")
    assert recording.join() == 0
    (told,) = recording.last_status().errors
    assert told.kind == "notice"
    assert "the recording begins at 0/" in told.message
    assert "without a snapshot" in told.message
    # Kafka lacks nothing of the confirmed changes.
    assert relay.run().errors == ()
