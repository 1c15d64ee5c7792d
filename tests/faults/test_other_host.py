"""A state folder that another host uses as well, and rows that exceed PostgreSQL's timeouts."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.database import with_options
from tests.faults.records import assert_equal, read_table
from tests.faults.relays import Relay, execute, streaming
from tests.faults.writer import ACCOUNTS, TABLES, create_tables

pytestmark = pytest.mark.services

NewRelay = Callable[..., Relay]


@pytest.mark.long
def test_the_state_folder_is_another_hosts(
    services: ServiceAddresses,
    database: str,
    new_relay: NewRelay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The folder is a copy from before the relay ran elsewhere, such as that of a cloned virtual machine."""
    create_tables(database, 10)
    relay = new_relay()
    relay.run()
    shutil.copytree(tmp_path / "state", tmp_path / "elsewhere")
    execute(database, "update accounts set note = 'on the first host'")
    relay.run()
    execute(database, "update accounts set note = 'on the second host'")
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "elsewhere"))
    relay.start("--until-caught-up")
    assert relay.join() == 5
    assert "another consumer moved slot" in relay.last_words()
    assert "if this relay ran on another host" in relay.last_words()
    # The other host's folder is right.
    shutil.rmtree(tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "state", tmp_path / "elsewhere")
    relay.run()
    assert_equal(services, database, TABLES, relay.name)


def test_a_row_takes_longer_than_wal_sender_timeout(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """The server would end each session at that row, and the row would be sent again each time."""
    relay = streaming(database, new_relay, "-d", with_options(database, wal_sender_timeout="200ms"))
    execute(database, "insert into accounts select 10, 0, repeat('x', 60 << 20)")
    execute(database, "insert into accounts values (20, 0, 'behind it')")
    status = relay.wait_caught_up()
    assert [entry.message for entry in status.errors if entry.kind == "outage"] == []
    relay.stop()
    records = read_table(services, ACCOUNTS, relay.name)
    assert sorted(record.key[0] for record in records if record.operation == "insert") == [10, 20]
