"""Two processes: relays start, are watched, stop, and fail, with a double of the engine."""

import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.model.status import Status
from bwtui.relay.process import outcome
from bwtui.relay.process.control import request
from bwtui.relay.process.lock import is_held, wait_until_free
from bwtui.state_folder import state_folder
from tests import waiting
from tests.terminal import Terminal
from tests.unit.relay_double import LINE, LINES, SECRET

COMMAND = [sys.executable, str(Path(__file__).with_name("bwtui_double.py"))]
DEADLINE = 60.0
DSN = f"host=db user=me password={SECRET}"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A separate state folder, in which no relay is left at the end."""
    for name in [name for name in os.environ if name.startswith("BWTUI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    yield
    for folder in (tmp_path / "state").glob("*"):
        if is_held(folder.name):
            os.kill(status_of(folder.name).pid, signal.SIGKILL)
            assert wait_until_free(folder.name, DEADLINE)


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Select the double's behaviour."""
    return lambda name: monkeypatch.setenv("DOUBLE_MODE", name)


def bwtui(*args: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    return subprocess.run([*COMMAND, *args], capture_output=True, text=True, check=False, timeout=DEADLINE)


def started(*args: str) -> "subprocess.Popen[str]":
    """Start a command."""
    return subprocess.Popen([*COMMAND, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def eventually(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds, and return its result; a relay may start to exist meanwhile."""

    def found() -> Any:
        with suppress(BwtuiError):
            return condition()
        return None

    return waiting.eventually("what the test waits for", found, DEADLINE)


def status_of(name: str) -> Status:
    """Return a relay's status."""
    return Status.from_json(request(name, {"request": "status"}))


def streaming(name: str) -> Status:
    """Wait until a relay streams."""
    return eventually(lambda: (s := status_of(name)).state == "streaming" and s)


# -- in the background -------------------------------------------------------------------------------------


def test_detach_status_stop() -> None:
    ran = bwtui("connect", "-s", "shop", "-d", DSN, "--detach")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "shop\n", "")
    status = bwtui("status", "--json")
    assert status.returncode == 0
    assert json.loads(status.stdout)["state"] == "streaming"
    assert json.loads(status.stdout)["confirmed_lsn"] == "1/1"
    stop = bwtui("stop")
    assert (stop.returncode, stop.stdout, stop.stderr) == (0, "relay shop has stopped\n", "")
    assert not is_held("shop")
    assert not (state_folder("shop") / "engine.sock").exists()
    last = bwtui("status", "shop", "--json")
    assert last.returncode == 4
    assert json.loads(last.stdout)["state"] == "stopped"
    assert last.stderr.splitlines() == [
        "bwtui: error: no relay called shop is running",
        "hint: its last run stopped cleanly",
    ]


def test_who_ends_a_relay_in_the_background_by_hand_finds_no_failure_in_its_log() -> None:
    """As for a relay in the foreground: an alert on that event would be false."""
    assert bwtui("connect", "-s", "shop", "--detach", "--log-format", "json").returncode == 0
    os.kill(status_of("shop").pid, signal.SIGINT)
    assert wait_until_free("shop", DEADLINE)
    kept = outcome.read("shop")
    assert kept is not None and kept.exit_code == 130
    lines = (state_folder("shop") / "engine.log").read_text().splitlines()
    told = [(line["event"], line.get("state")) for line in map(json.loads, lines)]
    assert told[-1] == ("state", "stopped"), told


def test_detach_json_prints_the_status() -> None:
    ran = bwtui("connect", "-s", "shop", "--name", "other", "--detach", "--json")
    status = json.loads(ran.stdout)
    assert (status["name"], status["slot"], status["state"]) == ("other", "shop", "streaming")
    assert bwtui("stop", "other").returncode == 0


def test_secrets_are_in_no_argument_and_in_no_file(tmp_path: Path) -> None:
    assert bwtui("connect", "-d", DSN, "-C", f"sasl.password={SECRET}", "--detach").returncode == 0
    pid = status_of("bottledwater").pid
    assert SECRET not in Path(f"/proc/{pid}/cmdline").read_text()
    assert bwtui("stop").returncode == 0
    for path in (tmp_path / "state").rglob("*"):
        if path.is_file():
            assert SECRET not in path.read_text(errors="replace")
            assert path.stat().st_mode & 0o077 == 0, path


def test_the_engine_has_a_session_of_its_own_and_closed_stdin() -> None:
    assert bwtui("connect", "-s", "shop", "--detach").returncode == 0
    pid = status_of("shop").pid
    assert os.getsid(pid) == pid
    assert Path(f"/proc/{pid}/fd/0").readlink() == Path(os.devnull)
    assert Path(f"/proc/{pid}/fd/2").readlink() == state_folder("shop") / "engine.log"


def test_a_second_relay_of_the_same_name_is_refused_and_the_first_goes_on() -> None:
    assert bwtui("connect", "-s", "shop", "--detach").returncode == 0
    log = (state_folder("shop") / "engine.log").read_text()
    for way in ("--detach", "--headless"):
        second = bwtui("connect", "-s", "shop", way)
        assert second.returncode == 2
        assert second.stderr.splitlines()[0] == "bwtui: error: a relay called shop is already running"
    assert status_of("shop").state == "streaming"
    assert (state_folder("shop") / "engine.log").read_text().startswith(log)


def test_a_killed_engine_leaves_nothing_that_blocks_the_next() -> None:
    assert bwtui("connect", "-s", "shop", "--detach").returncode == 0
    os.kill(status_of("shop").pid, signal.SIGKILL)
    assert wait_until_free("shop", DEADLINE)
    assert (state_folder("shop") / "engine.sock").exists(), "the kernel leaves the socket's file"
    gone = bwtui("status", "shop")
    assert gone.returncode == 4
    assert bwtui("connect", "-s", "shop", "--detach").returncode == 0
    assert bwtui("stop", "shop").returncode == 0


@pytest.mark.parametrize(
    ("name", "code", "lines"),
    [
        ("refuse", 4, ["bwtui: error: can't connect to PostgreSQL: no route", "hint: check the network"]),
        ("lost", 5, ["bwtui: error: slot lost is gone", "hint: drop it"]),
        ("lost, and slow to end", 5, ["bwtui: error: slot lost is gone", "hint: drop it"]),
    ],
)
@pytest.mark.parametrize("way", ["--detach", "--headless"])
@pytest.mark.variants(2)
def test_the_engine_s_error_becomes_ours(
    way: str, name: str, code: int, lines: list[str], mode: Callable[[str], None]
) -> None:
    mode(name)
    ran = bwtui("connect", "-s", "shop", way)
    assert ran.returncode == code
    assert [line for line in ran.stderr.splitlines() if not line.startswith("bwtui: shop:")] == lines
    kept = outcome.read("shop")
    assert kept is not None
    assert kept.exit_code == code
    later = bwtui("status", "shop")
    assert later.returncode == 4
    assert re.match(
        rf"hint: relay shop failed at \d{{4}}-\d\d-\d\d [0-9:]{{8}} with exit code {code}: ",
        later.stderr.splitlines()[1],
    )
    assert bwtui("status").stderr.splitlines()[1].startswith("hint: relay shop failed at ")


@pytest.mark.parametrize("way", ["--detach", "--headless"])
def test_a_crash_tells_no_value(way: str, mode: Callable[[str], None]) -> None:
    mode("crash")
    ran = bwtui("connect", "-s", "shop", way)
    assert ran.returncode == 2
    assert "unexpected ValueError" in ran.stderr
    log = (state_folder("shop") / "engine.log").read_text()
    assert "relay_double.py" in log
    assert SECRET not in ran.stderr + log


def test_detach_of_a_relay_that_is_done_at_once(mode: Callable[[str], None]) -> None:
    mode("caught up")
    ran = bwtui("connect", "-s", "shop", "--until-caught-up", "--detach", "--json")
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["state"] in ("streaming", "stopped")
    assert wait_until_free("shop", DEADLINE)


def test_ctrl_c_while_the_engine_starts_ends_both(mode: Callable[[str], None]) -> None:
    mode("starting")
    connect = started("connect", "-s", "shop", "--detach")
    eventually(lambda: status_of("shop").state == "starting")
    connect.send_signal(signal.SIGINT)
    out, err = connect.communicate(timeout=DEADLINE)
    assert (connect.returncode, out, err) == (130, "", "bwtui: error: interrupted\n")
    assert not is_held("shop")


def test_detach_says_so_where_the_engine_is_still_starting(
    mode: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mode("starting")
    monkeypatch.setenv("DOUBLE_READY_SECONDS", "1")
    ran = bwtui("connect", "-s", "shop", "--detach")
    assert (ran.returncode, ran.stdout) == (0, "shop\n")
    assert ran.stderr == "bwtui: relay shop is still starting; 'bwtui status shop' shows its progress\n"


def test_several_relays() -> None:
    for name in ("one", "two"):
        assert bwtui("connect", "-s", name, "--detach").returncode == 0
    table = bwtui("status").stdout.splitlines()
    assert [line.split()[0] for line in table] == ["NAME", "one", "two"]
    objects = [json.loads(line) for line in bwtui("status", "--json").stdout.splitlines()]
    assert [found["name"] for found in objects] == ["one", "two"]
    for command in ("stop", "attach"):
        ran = bwtui(command)
        assert ran.returncode == 2
        assert ran.stderr.splitlines() == [
            "bwtui: error: 2 relays are running",
            f"hint: choose one, as in 'bwtui {command} one': one, two",
        ]
    wrong = bwtui("stop", "tow")
    assert (wrong.returncode, wrong.stderr.splitlines()[1]) == (4, "hint: did you mean two?")
    assert bwtui("stop", "one").returncode == 0
    assert bwtui("stop").stdout == "relay two has stopped\n"


def test_attach_shows_several_relays_and_leads_to_each_and_back(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert bwtui("connect", "-s", name, "--detach").returncode == 0
    terminal = Terminal()
    attached = terminal.start([COMMAND[1], "attach"], dict(os.environ), tmp_path)
    terminal.read_until(lambda got: "ALL RELAYS" in got and got.count("STREAMING") >= 2, DEADLINE)
    pid = status_of("two").pid
    os.kill(pid, signal.SIGSTOP)
    try:
        terminal.read_until(lambda got: "NO ANSWER" in got, DEADLINE)
    finally:
        os.kill(pid, signal.SIGCONT)
    # The relay that answers is attached to, and left for the list again.
    terminal.type("/one\r\r")
    terminal.read_until(lambda got: "Overview" in got, DEADLINE)
    seen = terminal.text.count("ALL RELAYS")
    terminal.type("F")
    terminal.read_until(lambda got: got.count("ALL RELAYS") > seen, DEADLINE)
    os.kill(pid, signal.SIGKILL)
    terminal.read_until(lambda got: "KILLED" in got or "ended without reporting how" in got, DEADLINE)
    terminal.type("q")
    assert terminal.read_to_the_end(attached) == 0
    assert status_of("one").state == "streaming", "it was only looked at"


def test_plain_refuses_several_relays_on_a_terminal_too(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert bwtui("connect", "-s", name, "--detach").returncode == 0
    terminal = Terminal()
    attached = terminal.start([COMMAND[1], "attach", "--plain"], dict(os.environ), tmp_path)
    assert terminal.read_to_the_end(attached) == 2
    assert "hint: choose one, as in 'bwtui attach one': one, two" in terminal.text


def test_stop_of_a_relay_that_does_not_end_is_bounded(mode: Callable[[str], None]) -> None:
    mode("stuck")
    assert bwtui("connect", "-s", "shop", "--detach").returncode == 0
    ran = bwtui("stop", "--timeout", "0.2")
    assert ran.returncode == 2
    assert ran.stderr.startswith("bwtui: error: relay shop has not stopped within 0.2 seconds\nhint: ")
    assert f"kill -9 {status_of('shop').pid}" in ran.stderr


def test_attach_without_a_terminal() -> None:
    assert bwtui("connect", "-s", "shop", "--detach").returncode == 0
    ran = bwtui("attach")
    assert (ran.returncode, ran.stderr.splitlines()[0]) == (
        2,
        "bwtui: error: the screens need a terminal",
    )


# -- in the foreground -------------------------------------------------------------------------------------


def test_headless_json_writes_a_status_a_second_and_a_last_one() -> None:
    relay = started("connect", "-s", "shop", "--headless", "--json")
    lines = relay.stdout
    assert lines is not None
    times = [json.loads(lines.readline())["time"]]

    def comes_after_a_second() -> bool:
        times.append(json.loads(lines.readline())["time"])
        return bool(times[-1] - times[-2] == pytest.approx(1.0, abs=0.5))

    # Not each of them, because the machine may stall.
    eventually(comes_after_a_second)
    assert bwtui("stop", "shop").returncode == 0
    out, err = relay.communicate(timeout=DEADLINE)
    assert (relay.returncode, err) == (0, "")
    last = json.loads(out.splitlines()[-1])
    assert (last["state"], last["exit_code"], last["tables"]["public.orders"]["inserts"]) == ("stopped", 0, 3)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)])
def test_signals_stop_cleanly(number: signal.Signals, code: int) -> None:
    relay = started("connect", "-s", "shop", "--headless")
    streaming("shop")
    relay.send_signal(number)
    _, err = relay.communicate(timeout=DEADLINE)
    assert relay.returncode == code
    lines = err.splitlines()
    assert "bwtui: shop: stopped cleanly; everything up to 1/1 is confirmed" in lines
    assert "error" not in err
    assert not (state_folder("shop") / "engine.sock").exists()
    ended = outcome.read("shop")
    assert ended is not None
    assert ended.exit_code == code


def test_a_second_ctrl_c_ends_at_once(mode: Callable[[str], None]) -> None:
    mode("stuck")
    relay = started("connect", "-s", "shop", "--headless")
    streaming("shop")
    relay.send_signal(signal.SIGINT)

    # Pending signals of one number merge, so it is sent until it has arrived twice.
    def has_ended() -> bool:
        relay.send_signal(signal.SIGINT)
        return relay.poll() is not None

    eventually(has_ended)
    relay.communicate(timeout=DEADLINE)
    assert relay.returncode == 130
    assert not is_held("shop")


@pytest.mark.parametrize("args", [["--json"], []])
def test_a_relay_goes_on_when_nobody_reads_what_it_tells(args: list[str]) -> None:
    relay = started("connect", "-s", "shop", "--headless", *args)
    told, other = (relay.stdout, relay.stderr) if args else (relay.stderr, relay.stdout)
    assert told is not None and other is not None
    assert told.readline()
    told.close()
    first = streaming("shop").time
    # Two more lines would have been written since.
    eventually(lambda: status_of("shop").time > first + 2.5)
    assert relay.poll() is None
    assert bwtui("stop", "shop").returncode == 0
    assert relay.wait(DEADLINE) == 0
    notice = "stdout has no reader any more; the relay continues, and 'bwtui status shop' shows its state"
    assert other.read() == (f"bwtui: shop: notice: {notice}\n" if args else "")
    other.close()
    log = (state_folder("shop") / "engine.log").read_text()
    assert log.count(notice) == bool(args)
    assert args or ": shop: stopped cleanly; " in log.splitlines()[-1], "what nobody reads is in the log"


def test_a_relay_ends_although_its_reader_has_stopped_reading() -> None:
    relay = started("connect", "-s", "shop", "--headless", "--json")
    output = relay.stdout
    assert output is not None and relay.stderr is not None
    with closing(output), closing(relay.stderr):
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, 4096)
        streaming("shop")
        # Once the pipe is full, the reporting thread blocks in a write.
        eventually(lambda: select.select([output], [], [], 0)[0] and _stuck_in_a_write(relay.pid))
        relay.terminate()
        assert relay.wait(DEADLINE) == 0
        assert relay.stderr.read() == ""
    ended = outcome.read("shop")
    assert ended is not None and ended.status is not None
    assert (ended.exit_code, ended.status.state) == (0, "stopped")


def _stuck_in_a_write(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    # The system call, by its number and arguments; 1 is write's on x86-64, 64 on ARM.
    return any((task / "syscall").read_text().split()[:2] in (["1", "0x1"], ["64", "0x1"]) for task in tasks)


def test_a_relay_goes_on_when_its_status_cannot_be_written() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [*COMMAND, "connect", "-s", "shop", "--headless", "--json"]
        relay = subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True)
    streaming("shop")
    assert relay.stderr is not None
    with closing(relay.stderr):
        reason = "can't write the output: No space left on device"
        assert relay.stderr.readline() == f"bwtui: shop: error: {reason}; the relay continues\n"
        assert bwtui("stop", "shop").returncode == 0
        assert relay.wait(DEADLINE) == 2
        hint = "free some space on the disk of the output, then try again"
        assert relay.stderr.read() == f"bwtui: error: {reason}\nhint: {hint}\n"
    ended = outcome.read("shop")
    assert ended is not None
    assert ended.exit_code == 0, "the relay itself did its work"


@pytest.mark.parametrize("way", ["--headless", "--detach"])
def test_the_log_of_months_is_bounded_and_dead_letters_are_kept(
    way: str, mode: Callable[[str], None]
) -> None:
    mode("talkative")
    folder = state_folder("shop")
    folder.mkdir(parents=True, mode=0o700)
    letters = folder / "dead-letters.jsonl"
    letters.write_bytes(b"{}\n" * 4_000_000)
    ended = started("connect", "-s", "shop", way)
    streaming("shop")
    logs = [folder / "engine.log", folder / "engine.log.1"]
    eventually(lambda: logs[1].exists() and sum(log.stat().st_size for log in logs) <= 16 << 20)
    assert all(log.stat().st_mode & 0o077 == 0 for log in logs)
    assert bwtui("stop", "shop").returncode == 0
    ended.communicate(timeout=DEADLINE)
    assert LINES * len(LINE) > sum(log.stat().st_size for log in logs) > 0
    assert letters.stat().st_size == 12_000_000


def test_headless_until_caught_up(mode: Callable[[str], None]) -> None:
    mode("caught up")
    ran = bwtui("connect", "-s", "shop", "--headless", "--json", "--until-caught-up")
    assert ran.returncode == 0
    assert json.loads(ran.stdout.splitlines()[-1])["state"] == "stopped"


def test_headless_json_tells_of_a_failure_on_stdout_too(mode: Callable[[str], None]) -> None:
    mode("lost")
    ran = bwtui("connect", "-s", "shop", "--headless", "--json")
    assert ran.returncode == 5
    last = json.loads(ran.stdout.splitlines()[-1])
    assert (last["state"], last["exit_code"]) == ("failed", 5)
    assert len(ran.stderr.splitlines()) == 2


def test_a_relay_that_is_gone_is_a_failed_connection() -> None:
    with pytest.raises(ConnectionFailed):
        status_of("nobody")
