"""A real relay under systemd's protocol: what it says of its start, its main thread and its end."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from tests.faults.incidents import frozen, suspended
from tests.faults.relays import Relay, execute
from tests.faults.writer import create_tables
from tests.notify_socket import NotifySocket, held_thread

NewRelay = Callable[..., Relay]
WATCHDOG_SECONDS = 2


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NotifySocket:
    """Systemd's socket, which every relay of the test is told of."""
    socket = NotifySocket(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", socket.address)
    monkeypatch.setenv("WATCHDOG_USEC", str(WATCHDOG_SECONDS * 1_000_000))
    return socket


def goes_silent(systemd: NotifySocket) -> bool:
    """Say whether the pings end, so that systemd would end the process."""
    # The main thread may have turned since the last one, and then one more is due.
    return systemd.goes_silent("WATCHDOG=1", 1.5 * WATCHDOG_SECONDS)


def is_missed_where_it_turns(systemd: NotifySocket, thread: int) -> bool:
    """Hold the main thread, and say whether the pings end, while all other threads go on."""
    with held_thread(thread):
        return goes_silent(systemd)


def test_systemd_hears_of_a_start_a_main_thread_and_an_end(
    database: str, new_relay: NewRelay, systemd: NotifySocket
) -> None:
    create_tables(database, 10)
    relay = new_relay()
    with systemd:
        relay.start()
        systemd.wait("READY=1")
        relay.wait_streaming()
        systemd.wait("STATUS=streaming")
        systemd.wait("WATCHDOG=1")
        # Where it is held within one call of libpq, or of the disk, as it is for moments, it is waited for.
        assert any(is_missed_where_it_turns(systemd, relay.pid) for _ in range(10))
        systemd.wait("WATCHDOG=1")
        with suspended(relay.pid):
            assert goes_silent(systemd)
        systemd.wait("WATCHDOG=1")
        relay.signal(signal.SIGTERM)
        systemd.wait("STOPPING=1")
        assert relay.join() == 0, relay.last_words()
        systemd.wait("STATUS=ended")
        assert systemd.lines.count("READY=1") == 1


@pytest.mark.long
def test_a_stop_that_waits_for_kafka_asks_for_time(
    sandbox: Sandbox, database: str, new_relay: NewRelay, systemd: NotifySocket
) -> None:
    create_tables(database, 10)
    relay = new_relay()
    with systemd:
        relay.start()
        relay.wait_streaming()
        with frozen(sandbox, "kafka"):
            execute(database, "update accounts set number = number + 1")
            relay.wait("that it waits", lambda status: status.verdict.cause == "kafka")
            relay.signal(signal.SIGTERM)
            systemd.wait("STOPPING=1")
            systemd.wait("EXTEND_TIMEOUT_USEC=")
            # What is not acknowledged is waited for a while, and comes again after the next start.
            assert relay.join() == 0, relay.last_words()
        systemd.wait("STATUS=ended")


@pytest.mark.long
def test_a_start_that_waits_for_kafka_asks_for_time_and_a_refused_one_says_why(
    services: ServiceAddresses, sandbox: Sandbox, database: str, new_relay: NewRelay, systemd: NotifySocket
) -> None:
    create_tables(database, 10)
    relay = new_relay("--wait-for-services")
    with systemd:
        with frozen(sandbox, "kafka"):
            relay.start()
            for _ in range(3):
                systemd.wait("EXTEND_TIMEOUT_USEC=")
            assert "READY=1" not in systemd.lines
        systemd.wait("READY=1")
        # Before its first snapshot is through there is no slot to lose.
        relay.wait_streaming()
        relay.signal(signal.SIGTERM)
        assert relay.join() == 0, relay.last_words()
        execute(database, f"select pg_drop_replication_slot('{relay.name}')")
        relay.start()
        assert relay.join() == 5, relay.last_words()
        systemd.wait("STATUS=ended with exit code 5: ")
        assert systemd.lines.count("READY=1") == 1


def test_a_process_of_systemds_that_is_another_one_is_not_pinged_for(
    database: str, new_relay: NewRelay, systemd: NotifySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(database, 1)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    relay = new_relay()
    with systemd:
        relay.run()
        systemd.wait("STATUS=ended")
    assert "READY=1" in systemd.lines
    assert "WATCHDOG=1" not in systemd.lines
