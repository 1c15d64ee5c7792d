"""Messages of connect and attach when their screens close, whatever the state of relay and screens."""

import sys
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bwtui.cli.connect import run_headless, show
from bwtui.cli.main import cli
from bwtui.errors import BwtuiError, Interrupted, SlotLost
from bwtui.options import BY_NAME, parse
from bwtui.relay.process import outcome
from bwtui.relay.process.lock import RelayLock
from bwtui.relay.process.outcome import RunOutcome
from bwtui.relay.serving.control_server import ControlServer
from bwtui.settings import LogFormat, RelaySettings
from tests.unit.relay_double import SECRET, DoubleEngine


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state folder for this test, with the folder of the relay "one"."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("BWTUI_DEBUG", raising=False)
    RelayLock.acquire("one").release()


@pytest.fixture
def screens(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., int]], None]:
    """Replace the screens with a function."""

    def put(run: Callable[..., int]) -> None:
        module = types.ModuleType("bwtui.tui.app")
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "bwtui.tui.app", module)

    return put


Screens = Callable[[Callable[..., int]], None]


def crashing(name: str, *, owned: bool, fleet: str, kafka: object, choices: object) -> int:
    """Screens that crash with a secret in the exception."""
    raise ValueError(SECRET)


def running() -> ControlServer:
    """Return the control server of a running relay."""
    return ControlServer("one", DoubleEngine(RelaySettings(name="one")))


def test_the_screens_close_and_the_relay_goes_on(screens: Screens) -> None:
    screens(lambda name, *, owned, fleet, kafka, choices: 0)
    with running():
        show("one", owned=True)


@pytest.mark.parametrize("run", [crashing, lambda name, *, owned, fleet, kafka, choices: 1])
def test_screens_that_crash_leave_the_relay_and_say_so(run: Callable[..., int], screens: Screens) -> None:
    screens(run)
    with running(), pytest.raises(BwtuiError, match="the screens failed") as caught:
        show("one", owned=True)
    assert caught.value.exit_code == 2, "1 would say that differences were found"
    assert "'bwtui attach one'" in caught.value.hint and "'bwtui stop one'" in caught.value.hint
    assert SECRET not in caught.value.message


def test_a_relay_that_stopped_cleanly_is_fine(screens: Screens) -> None:
    screens(lambda name, *, owned, fleet, kafka, choices: 0)
    outcome.write("one", RunOutcome(0, 1.0, None, None, None))
    show("one", owned=True)


def test_the_error_of_the_relay_behind_the_screens_becomes_ours(screens: Screens) -> None:
    screens(lambda name, *, owned, fleet, kafka, choices: 0)
    outcome.write("one", RunOutcome(5, 1.0, "slot is lost", "drop it", None))
    with pytest.raises(SlotLost, match="slot is lost"):
        show("one", owned=False)


def test_only_its_own_terminal_reports_that_a_relay_was_interrupted(screens: Screens) -> None:
    """It stopped cleanly; whoever only looks on has not interrupted anything."""
    screens(lambda name, *, owned, fleet, kafka, choices: 0)
    outcome.write("one", RunOutcome(130, 1.0, "interrupted", None, None))
    assert not show("one", owned=False)
    with pytest.raises(Interrupted):
        show("one", owned=True)


def test_a_relay_that_was_killed_behind_the_screens_is_an_error(screens: Screens) -> None:
    screens(lambda name, *, owned, fleet, kafka, choices: 0)
    with pytest.raises(BwtuiError, match="relay one was killed"):
        show("one", owned=False)


@pytest.mark.parametrize("broker", ["http://localhost:9092", "https://localhost"])
def test_a_broker_is_none_over_http(broker: str) -> None:
    """librdkafka would ignore such a broker, and the relay would wait for it."""
    ended = CliRunner().invoke(cli, ["doctor", "-d", "host=127.0.0.1 port=1", "-b", broker])
    assert ended.exit_code == 2, ended.output
    assert "is not a broker" in ended.stderr
    assert parse(BY_NAME["broker"], "SASL_SSL://localhost:9092")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_interrupted_relay_that_stopped_cleanly_is_no_error(
    log_format: LogFormat, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(settings: RelaySettings, as_json: bool) -> None:
        raise Interrupted

    monkeypatch.setattr("bwtui.cli.connect._run_headless", interrupted)
    with pytest.raises(click.exceptions.Exit) as ended:
        run_headless(RelaySettings(name="one", log_format=log_format), False)
    assert (ended.value.exit_code, capsys.readouterr().err) == (130, "")
