"""Notifications to systemd, over a real socket."""

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bwtui.model.gaps import with_gaps
from bwtui.model.proof import UnprovenTable
from bwtui.model.status import Status
from bwtui.model.verdict import RelayVerdict
from bwtui.relay.serving import systemd_notifier
from bwtui.relay.serving.systemd_notifier import NotifySocket as Sender
from bwtui.relay.serving.systemd_notifier import SystemdNotifier, supervisor_of
from bwtui.relay.state.activity_clock import MainThreadActivity
from bwtui.relay.state.measures import Measures
from bwtui.settings import RelaySettings
from tests.notify_socket import NotifySocket
from tests.unit.relay_double import DoubleEngine

#: With this timeout a ping is due every 0.1 s.
WATCHDOG = 0.4


class Watched(DoubleEngine):
    """An engine whose main thread activity and verdict the test sets."""

    at = MainThreadActivity("read", 0.0)
    verdict = RelayVerdict()
    not_proven: tuple[UnprovenTable, ...] = ()

    def turn(self) -> MainThreadActivity:
        """Return the test's activity."""
        return self.at

    def status(self) -> Status:
        """Return a status with the test's verdict."""
        return with_gaps(replace(super().status(), verdict=self.verdict, not_proven=self.not_proven))


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[NotifySocket]:
    with NotifySocket(str(tmp_path / "notify")) as listening:
        yield listening


@pytest.fixture
def engine() -> Watched:
    """An engine that is starting."""
    return Watched(RelaySettings(name="shop"))


@pytest.fixture
def supervisor(systemd: NotifySocket, engine: Watched) -> Iterator[SystemdNotifier]:
    """The notifier of the engine."""
    supervisor = SystemdNotifier(Sender(systemd.address), WATCHDOG)
    supervisor.watch(engine)
    yield supervisor
    supervisor.end(0, "")


@pytest.mark.usefixtures("supervisor")
def test_a_start_asks_for_time_and_then_says_that_it_is_through(
    systemd: NotifySocket, engine: Watched
) -> None:
    systemd.wait("EXTEND_TIMEOUT_USEC=60000000")
    assert "STATUS=starting" in systemd.lines
    assert "READY=1" not in systemd.lines
    engine.state = "streaming"
    systemd.wait("READY=1")
    systemd.wait("WATCHDOG=1")
    assert systemd.goes_silent("EXTEND_TIMEOUT_USEC", 3 * WATCHDOG)
    assert systemd.lines.count("READY=1") == systemd.lines.count("STATUS=streaming") == 1


@pytest.mark.usefixtures("supervisor")
def test_a_main_thread_that_turns_no_more_ends_the_pings(systemd: NotifySocket, engine: Watched) -> None:
    engine.state = "streaming"
    systemd.wait("READY=1")
    engine.at = MainThreadActivity("work", 1_000.0)
    assert systemd.goes_silent("WATCHDOG", 3 * WATCHDOG)
    # It waits for PostgreSQL within one call of libpq, and a restart would not help.
    engine.at = MainThreadActivity("locks", 1_000.0)
    systemd.wait("WATCHDOG=1")
    engine.at = MainThreadActivity("work", 0.0)
    systemd.wait("WATCHDOG=1")


def test_a_stop_asks_for_time_as_long_as_the_main_thread_turns(
    systemd: NotifySocket, engine: Watched, supervisor: SystemdNotifier
) -> None:
    engine.state = "streaming"
    systemd.wait("READY=1")
    engine.stop()
    systemd.wait("STOPPING=1")
    systemd.wait("EXTEND_TIMEOUT_USEC=")
    engine.at = MainThreadActivity("settling", 1_000.0)
    assert systemd.goes_silent("EXTEND_TIMEOUT_USEC", 3 * WATCHDOG)
    supervisor.end(5, "slot shop is gone")
    systemd.wait("STATUS=ended with exit code 5: slot shop is gone")
    assert systemd.lines.count("READY=1") == 1


@pytest.mark.usefixtures("supervisor")
def test_nothing_from_services_begins_a_line_or_names_a_password(
    systemd: NotifySocket, engine: Watched
) -> None:
    engine.state = "streaming"
    engine.verdict = RelayVerdict(sentence="postgresql://me:hunter2@db said \nMAINPID=1\n" + "😀" * 5_000)
    systemd.wait(r"STATUS=streaming: postgresql://me:***@db said \nMAINPID=1\n")
    assert "hunter2" not in "\n".join(systemd.lines)


@pytest.mark.usefixtures("supervisor")
def test_a_table_that_is_not_proven_is_told_once(systemd: NotifySocket, engine: Watched) -> None:
    engine.state = "streaming"
    systemd.wait("READY=1")
    engine.verdict = RelayVerdict("healthy", "rows pass")
    engine.not_proven = (UnprovenTable("public.orders", 7, "its topic was deleted"),)
    systemd.wait("STATUS=not proven: public.orders is not proven since 0/7: its topic was deleted; rows pass")
    engine.not_proven = ()
    systemd.wait("STATUS=streaming: rows pass")


@pytest.mark.usefixtures("supervisor")
def test_a_status_is_never_longer_than_systemd_takes(systemd: NotifySocket, engine: Watched) -> None:
    """systemd drops datagrams of more than 4096 bytes, including the ping in them."""
    engine.state = "streaming"
    engine.verdict = RelayVerdict(sentence="said " + "\U000e0100" * 5_000)
    systemd.wait("STATUS=streaming: said ")
    assert max(len(line.encode()) for line in systemd.lines) <= 2_100


def test_one_that_ends_well_before_it_was_seen_to_begin_has_not_failed(systemd: NotifySocket) -> None:
    SystemdNotifier(Sender(systemd.address)).end(0, "")
    systemd.wait("READY=1")
    assert systemd.lines[-2:] == ["STOPPING=1", "STATUS=ended"]
    SystemdNotifier(Sender(systemd.address)).end(4, "PostgreSQL does not let us in")
    systemd.wait("STATUS=ended with exit code 4")
    assert systemd.lines.count("READY=1") == 1


def test_an_engine_that_can_not_be_read_is_pinged_for_all_the_same(
    systemd: NotifySocket, engine: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Measures:
        raise ValueError("row value")

    monkeypatch.setattr(engine, "measures", broken)
    supervisor = SystemdNotifier(Sender(systemd.address), WATCHDOG)
    supervisor.watch(engine)
    systemd.wait("WATCHDOG=1")
    systemd.wait("WATCHDOG=1")
    supervisor.end(0, "")


def test_an_abstract_address(engine: Watched) -> None:
    with NotifySocket(f"@bwtui-{os.getpid()}-notify") as systemd:
        supervisor = SystemdNotifier(Sender(systemd.address))
        engine.state = "streaming"
        supervisor.watch(engine)
        systemd.wait("READY=1")
        supervisor.end(0, "")
    # Without WatchdogSec, systemd expects no pings.
    assert "WATCHDOG=1" not in systemd.lines


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("/nowhere/notify", "No such file or directory"),
        ("vsock:2:1234", "it is neither a path nor an abstract address"),
        ("/" + "x" * 200, "AF_UNIX path too long"),
    ],
)
def test_a_socket_that_is_not_there_is_told_once(
    address: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sender = Sender(address)
    assert not sender.send("READY=1")
    assert not sender.send("WATCHDOG=1")
    told = capsys.readouterr().err
    assert told.startswith("bwtui: notice: the relay's state can't be reported to systemd (NOTIFY_SOCKET is ")
    assert reason in told
    assert told.count("notice") == 1


def test_a_socket_whose_reader_is_busy_holds_up_nobody(systemd: NotifySocket) -> None:
    sender = Sender(systemd.address)
    # The kernel's queue fills up.
    assert not all(sender.send("WATCHDOG=1") for _ in range(10_000))
    systemd.drain()
    assert sender.send("WATCHDOG=1")


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "1000000"}, None),
        ({"NOTIFY_SOCKET": ""}, None),
        ({"NOTIFY_SOCKET": "@x"}, 0),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1500000"}, 1.5),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1500000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "1"}, 0),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "soon"}, 0),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "0"}, 0),
    ],
)
def test_what_the_environment_says(given: dict[str, str], seconds: float | None) -> None:
    environment = {**given, "PATH": "/bin"}
    supervisor = supervisor_of(environment)
    assert (supervisor.watchdog_seconds if supervisor else None) == seconds
    # The relay's child processes must not notify systemd.
    assert environment == {"PATH": "/bin"}


def test_nobody_who_does_not_read_holds_up_the_end(
    systemd: NotifySocket, engine: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd_notifier, "_END_SECONDS", 0.1)
    goes_on = threading.Event()

    def hangs() -> Measures:
        goes_on.wait(60)
        return Measures(engine.status())

    monkeypatch.setattr(engine, "measures", hangs)
    supervisor = SystemdNotifier(Sender(systemd.address), WATCHDOG)
    supervisor.watch(engine)
    supervisor.end(2, "the disk is full")
    systemd.wait("STATUS=ended with exit code 2: the disk is full")
    goes_on.set()
    assert supervisor._thread is not None
    supervisor._thread.join(60)


def test_a_stderr_that_nobody_reads_holds_up_neither_pings_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(systemd_notifier, "say", lambda *lines, err: goes_on.wait(60))
    supervisor = SystemdNotifier(Sender(str(tmp_path / "nobody")), WATCHDOG)
    ending = threading.Thread(target=supervisor.end, args=(0, ""), daemon=True)
    ending.start()
    ending.join(10)
    assert not ending.is_alive()
    goes_on.set()


def test_a_closed_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "err").open("w") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", closed)
    assert not Sender("/nowhere/notify").send("READY=1")
