"""The systemd unit in packaging/: its command exists, and its exit codes match the program's."""

import configparser
import subprocess
from pathlib import Path

import pytest

from bwtui import errors
from bwtui.cli.main import cli

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "packaging" / "systemd" / "bwtui@.service"


@pytest.fixture
def unit() -> configparser.RawConfigParser:
    """Parse the unit; of repeated settings, the last one counts."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def test_it_starts_a_relay_whose_options_there_are(unit: configparser.RawConfigParser) -> None:
    service = unit["Service"]
    _, name, *options = service["ExecStart"].split()
    command = cli.get_command(cli.make_context("bwtui", ["--help"], resilient_parsing=True), name)
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    assert {option for option in options if option.startswith("-")} <= known
    # systemd would not accept notifications from a relay in a child process.
    assert "--headless" in options
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")


def test_what_a_restart_does_not_mend_is_not_started_again(unit: configparser.RawConfigParser) -> None:
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    final = {errors.UsageError, errors.RefusedError, errors.SlotLost, errors.DamagedRecording}
    prevented = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert prevented == {error.exit_code for error in final}
    assert errors.ConnectionFailed.exit_code not in prevented
    assert int(service["SuccessExitStatus"]) == errors.Interrupted.exit_code


def test_a_service_that_is_away_or_lets_nobody_in_is_tried_again_for_ever(
    unit: configparser.RawConfigParser,
) -> None:
    """systemd gave up after a minute of rejected logins, and the slot would retain WAL unnoticed."""
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    # One login per second would lock accounts.
    assert int(unit["Service"]["RestartSec"]) >= 10


@pytest.mark.long
def test_systemd_itself_finds_nothing_wrong(tmp_path: Path) -> None:
    program = tmp_path / "bwtui"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/usr/local/bin/bwtui", str(program)))
    assert analyze("verify", "--man=no", str(copy)) == (0, "")
    # The value is ten times the exposure: an unrestricted service has 100, and below 20 is rated OK.
    code, told = analyze("security", "--offline=yes", "--threshold=12", "--no-pager", str(copy))
    assert code == 0, told


def analyze(*args: str) -> tuple[int, str]:
    """Return exit code and stderr of systemd-analyze."""
    command = ["systemd-analyze", *args]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    return ran.returncode, ran.stderr
