"""Shell completion offers option values, profiles, and relay names, without heavy imports."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from bwtui.cli.main import cli
from bwtui.relay.process.lock import RelayLock

HEAVY = ("confluent_kafka", "psycopg2", "textual", "pyspark", "pyarrow", "duckdb")


def completed(words: list[str], incomplete: str) -> set[str]:
    """Return the completions of ``incomplete`` after ``words``."""
    return {item.value for item in BashComplete(cli, {}, "bwtui", "_X").get_completions(words, incomplete)}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with profiles, but without a relay."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bwtui.toml").write_text("[profile.prod]\n[profile.test]\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "incomplete", "offered"),
    [
        (["connect", "-f"], "", {"avro", "json"}),
        (["connect", "--output-format"], "j", {"json"}),
        (["connect", "--on-error"], "", {"exit", "log"}),
        (["connect", "-e"], "l", {"log"}),
        (["connect", "--toast"], "", {"fetch", "error", "placeholder"}),
        (["connect", "--on-record-error"], "stop-", {"stop-recording"}),
        (["connect", "--profile"], "", {"prod", "test"}),
        (["doctor", "--profile"], "p", {"prod"}),
        (["stop"], "", set()),
        (["completion"], "", {"bash", "zsh", "fish"}),
    ],
)
def test_values(words: list[str], incomplete: str, offered: set[str]) -> None:
    assert completed(words, incomplete) == offered


def test_relays_that_run_and_for_status_those_that_ran() -> None:
    lock = RelayLock.acquire("shop")
    RelayLock.acquire("store").release()
    assert completed(["stop"], "") == completed(["attach"], "s") == {"shop"}
    assert completed(["verify", "--relay"], "") == {"shop"}
    assert completed(["status"], "st") == {"store"}
    lock.release()
    assert completed(["stop"], "") == set()


def test_a_file_that_is_wrong_has_no_profiles(home: Path) -> None:
    (home / "bwtui.toml").write_text("[profile")
    assert completed(["connect", "--profile"], "") == set()


@pytest.mark.parametrize("shell", [BashComplete, ZshComplete, FishComplete])
def test_every_shell_is_answered_without_heavy_imports(shell: type[BashComplete], home: Path) -> None:
    code = (
        "import sys; from bwtui.cli.main import cli\n"
        f"from click.shell_completion import {shell.__name__} as Shell\n"
        "print(Shell(cli, {}, 'bwtui', '_X').complete())\n"
        f"print('heavy', [m for m in {HEAVY} if m in sys.modules])"
    )
    environment = {"COMP_WORDS": "bwtui connect --toast ", "COMP_CWORD": "" if shell is FishComplete else "3"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=home
    )
    assert "placeholder" in ran.stdout
    assert ran.stdout.endswith("heavy []\n")


def test_every_option_with_a_few_words_completes_them() -> None:
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        for parameter in command.params if command else []:
            if parameter.name in ("output_format", "on_error", "toast", "on_record_error", "profile"):
                assert parameter._custom_shell_complete is not None, (name, parameter.name)
