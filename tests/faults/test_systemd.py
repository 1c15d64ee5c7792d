"""A real relay under systemd's protocol: its notifications about start, main thread and end."""

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
    """Systemd's socket, whose address every relay of the test gets."""
    socket = NotifySocket(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", socket.address)
    monkeypatch.setenv("WATCHDOG_USEC", str(WATCHDOG_SECONDS * 1_000_000))
    return socket


def goes_silent(systemd: NotifySocket) -> bool:
    """Return whether the pings end, so that systemd would end the process."""
    # The main thread may have run since the last ping, in which case one more is due.
    return systemd.goes_silent("WATCHDOG=1", 1.5 * WATCHDOG_SECONDS)


def is_missed_where_it_turns(systemd: NotifySocket, thread: int) -> bool:
    """Stop the main thread, and return whether the pings end while all other threads run."""
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
        # The watchdog tolerates a thread stopped inside a call of libpq or the disk, which is brief: try
        # several times.
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
            # The relay waits a while for acknowledgements, and sends the rest again after the next start.
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
        # Before its first snapshot is complete there is no slot to lose.
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
