"""The terminal is restored however the screens end; one that can't show them gets no escape sequences."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bwtui.sandbox.sandbox import DEFAULT_MAJOR, Sandbox
from tests.attempts import Attempts
from tests.database import Session
from tests.on_terminal import OnTerminal

SHOP = Path(__file__).parents[2] / "recordings" / "shop"
REPORT = Path(__file__).parents[1] / "tui" / "reports" / "faults.json"
SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT]
#: The demo in the run's sandbox, which stays up.
DEMO = """
import sys
from pathlib import Path
from bwtui.cli.demo import _play, _with_screens
from bwtui.cli.main import guarded
from bwtui.demo.run import DemoOptions
from bwtui.packages.setup_progress import SetupProgress
options = DemoOptions(rate=20, scale=0.01, keep=True, folder=Path(sys.argv[1]))
sys.exit(guarded(lambda: _play(options, _with_screens, SetupProgress())))
"""


#: Screens that don't close.
STUCK = """
from bwtui.tui import app as screens
from textual.app import App
class Stuck(App):
    def exit(self, *_): pass
screens._CLOSE_SECONDS = 0.2
screens.run_app(Stuck(), "")
"""


#: Screens that end before one of their workers begins, as after an early signal.
UNBEGUN = """
from textual.app import App
from bwtui.tui import app as screens

class Early(App):
    def run(self):
        async def sample(): pass
        sample()

screens.run_app(Early(), "")
"""


def on_terminal(folder: Path, *args: str, **environment: str) -> OnTerminal:
    """Run ``bwtui`` on a terminal."""
    clean = {name: one for name, one in os.environ.items() if not name.startswith(("BWTUI_", "PG"))}
    given = {"BWTUI_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder), **environment}
    return OnTerminal([sys.executable, "-m", "bwtui", *args], clean | given, folder)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda one: one.name)
@pytest.mark.variants(1)
def test_a_signal_ends_open_and_gives_the_terminal_back(number: signal.Signals, tmp_path: Path) -> None:
    with on_terminal(tmp_path, "open", str(SHOP)) as terminal:
        terminal.wait_for_screens()
        assert terminal.ended(number) == 130
        assert terminal.is_as_it_was(), terminal.said[-500:]
        assert b"bwtui: error: interrupted\r\nhint: " in terminal.said[terminal.said.rindex(b"?1049l") :]


def test_a_terminal_that_is_closed_ends_open(tmp_path: Path) -> None:
    with on_terminal(tmp_path, "open", str(SHOP)) as terminal:
        terminal.wait_for_screens()
        terminal.close()
        assert terminal.process.wait(30) == 130


def test_screens_that_do_not_close_are_ended(tmp_path: Path) -> None:
    with OnTerminal([sys.executable, "-c", STUCK], os.environ, tmp_path) as terminal:
        terminal.wait_for_screens()
        assert terminal.ended(signal.SIGTERM) == 130
        assert terminal.is_as_it_was(), terminal.said[-500:]


def test_a_signal_ends_the_screens_of_a_report(tmp_path: Path) -> None:
    with on_terminal(tmp_path, "open", str(REPORT)) as terminal:
        terminal.wait_for_screens()
        assert terminal.ended(signal.SIGTERM) == 130
        assert terminal.is_as_it_was(), terminal.said[-500:]


@pytest.mark.services
def test_a_signal_ends_connect_and_attach_and_the_relay_goes_on(
    attempts: Attempts, source: Session, database: str, tmp_path: Path
) -> None:
    source.run("create table t (id int primary key)")
    services = ("-b", attempts.services.broker, "-r", attempts.services.schema_registry)
    relay = ("-d", database, *services, "-s", attempts.name, "-p", attempts.name)
    try:
        commands = (("connect", *relay), *[("attach", attempts.name)] * 3)
        for number, command in zip(SIGNALS, commands, strict=True):
            with on_terminal(tmp_path, *command) as terminal:
                terminal.wait_for_screens()
                assert terminal.ended(number) == 130
                assert terminal.is_as_it_was(), (number, terminal.said[-500:])
                assert f"bwtui attach {attempts.name}".encode() in terminal.said
            assert attempts.command("status", attempts.name).code == 0
    finally:
        assert attempts.command("stop", attempts.name).code == 0


@pytest.mark.services
@pytest.mark.since(DEFAULT_MAJOR, "the demo always runs the newest")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_a_signal_ends_the_demo_and_gives_the_terminal_back(
    sandbox: Sandbox, tmp_path: Path, number: signal.Signals
) -> None:
    environment = {**os.environ, "BWTUI_STATE_HOME": str(tmp_path)}
    with OnTerminal([sys.executable, "-c", DEMO, str(sandbox.folder)], environment, tmp_path) as terminal:
        terminal.wait_for_screens()
        assert terminal.ended(number) == 130
        assert terminal.is_as_it_was(), terminal.said[-500:]


@pytest.mark.parametrize(
    ("term", "command"),
    [
        ("dumb", ("connect", "-d", "host=127.0.0.1")),
        ("dumb", ("demo",)),
        ("dumb", ("open", str(SHOP))),
        ("", ("open", str(SHOP))),
    ],
)
def test_a_terminal_that_can_only_print_is_refused_in_plain_words(
    term: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    with on_terminal(tmp_path, *command, TERM=term) as terminal:
        assert terminal.ended() == 2
        assert f"TERM is {term or 'empty'}" in terminal.said.decode()
        assert b"\x1b" not in terminal.said
        error, hint = terminal.said.decode().splitlines()
        assert error.startswith("bwtui: error: ")
        assert hint.startswith("hint: ") and ("--headless" in hint or "recording info" in hint)


def test_a_worker_that_never_begins_is_not_told_of() -> None:
    command = [sys.executable, "-c", UNBEGUN]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
