"""What a command whose services are not available says and leaves behind, as a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bwtui.relay.process.lock import RelayLock
from bwtui.relay.process.log import log_path

SECRET = "s3cret"
#: A relay whose PostgreSQL is not available, with its log as JSON.
UNREACHABLE = (
    *("--log-format", "json", "-s", "shop"),
    *("-d", f"postgresql://me:{SECRET}@127.0.0.1:1/x"),
)


def bwtui(state: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, in its own state folder."""
    return subprocess.run(
        [sys.executable, "-m", "bwtui", *args],
        env=os.environ | {"BWTUI_STATE_HOME": str(state)},
        capture_output=True,
        text=True,
        check=False,
        cwd=state,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("command", "password"),
    [
        (("connect", "--headless", "--json"), "s3cr/etXYZ"),
        (("doctor",), "s3cr/etXYZ"),
        (("slots", "list"), "s3cr@etXYZ"),
    ],
)
def test_a_password_that_is_not_escaped_stands_nowhere(
    command: tuple[str, ...], password: str, tmp_path: Path
) -> None:
    """It is missing from the command's output and from the log, the status and the state that it leaves."""
    dsn = f"postgresql://me:{password}@127.0.0.1:1/shop"
    ran = bwtui(tmp_path, *command, "-d", dsn)
    assert ran.returncode
    said = ran.stdout + ran.stderr
    assert "percent-encode" in said
    kept = [path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert not [text for text in (said, *kept) if "XYZ" in text or "s3cr" in text]


def test_a_relay_that_runs_already_is_said_to_in_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    lock = RelayLock.acquire("shop")
    try:
        run = bwtui(tmp_path, "connect", "--headless", *UNREACHABLE)
    finally:
        lock.release()
    [line] = run.stderr.splitlines()
    told = json.loads(line)
    assert (told["event"], told["exit_code"], run.returncode) == ("failed", 2, 2)


def test_a_relay_that_can_not_begin_says_so_in_objects_alone(tmp_path: Path) -> None:
    run = bwtui(tmp_path, "connect", "--headless", *UNREACHABLE)
    assert (run.returncode, run.stdout) == (4, "")
    log = (tmp_path / "shop" / log_path("shop").name).read_text()
    for text in (run.stderr, log):
        assert SECRET not in text
        told = [json.loads(line) for line in text.splitlines()]
        assert {"state", "failed"} <= {one["event"] for one in told}
        [failed] = [one for one in told if one["event"] == "failed"]
        assert (failed["exit_code"], failed["level"], failed["relay"]) == (4, "error", "shop")
        assert "127.0.0.1" in failed["message"]


@pytest.mark.long
def test_a_relay_in_the_background_writes_objects_too(tmp_path: Path) -> None:
    run = bwtui(tmp_path, "connect", "--detach", *UNREACHABLE)
    assert run.returncode == 4
    log = (tmp_path / "shop" / "engine.log").read_text()
    assert SECRET not in log
    told = [json.loads(line) for line in log.splitlines()]
    assert [one["event"] for one in told][-1] == "failed"
    assert "hint" not in told[-1]["message"]
    assert told[-1]["hint"]


def test_a_failed_start_gives_the_reason_once_and_logs_it(tmp_path: Path) -> None:
    args = ["-d", "host=127.0.0.1 port=1 dbname=x", "-b", "127.0.0.1:1", "--headless"]
    ran = bwtui(tmp_path, "connect", *args)
    lines = ran.stderr.splitlines()
    assert lines[-3] == "bwtui: bottledwater: failed"
    reason = lines[-2].removeprefix("bwtui: error: ")
    assert (ran.returncode, ran.stderr.count(reason)) == (4, 1)
    assert reason in next(tmp_path.glob("**/engine.log")).read_text()
