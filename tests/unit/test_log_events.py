"""The JSON log: each line is an object, event names are stable, and no line contains a password."""

import ast
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bwtui.cli import connect as command
from bwtui.cli.output.headless import HeadlessReporter
from bwtui.errors import Interrupted
from bwtui.escaping import is_plain
from bwtui.model.events import EVENTS, OTHERS, event
from bwtui.relay.process.lock import RelayLock
from bwtui.relay.process.log import JsonLogFormatter, log_path
from bwtui.settings import RelaySettings
from tests.package_sources import nodes, texts
from tests.unit.test_cli_headless import LATE, status

ROOT = Path(__file__).parents[2]
SECRET = "geheim"
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
SECRETS = (
    f"postgresql://me:{SECRET}@db/shop",
    f"host=db password={SECRET} user=me",
    f"host=db password='a\\'{SECRET}' user=me",
    f'asked with "password={SECRET}"',
    f"http://me:{SECRET}@registry:8081",
)


def calls_in_modules_with(name: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield, in each of our modules that uses this name, the calls of it or of its methods."""
    for path, text in texts().items():
        if re.search(rf"\b_?{name}(ging)?[.(]", text):
            yield from ((path, node) for node in nodes(path) if isinstance(node, ast.Call))


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield each call of our loggers, and its module."""
    for path, node in calls_in_modules_with("log"):
        if not isinstance(node.func, ast.Attribute):
            continue
        of, says = node.func.value, node.func.attr in LEVELS
        if says and isinstance(of, ast.Name) and of.id in ("_log", "log", "logging"):
            yield f"{path}:{node.lineno}", node


def test_each_line_of_ours_says_which_event_it_is() -> None:
    found = dict(calls())
    assert len(found) > 25
    assert [where for where, call in found.items() if "extra" not in {one.arg for one in call.keywords}] == []


def test_each_event_is_used_and_each_that_is_used_is_known() -> None:
    used = {
        node.args[0].value
        for _, node in calls_in_modules_with("event")
        if isinstance(node.func, ast.Name) and node.func.id == "event"
        if isinstance(node.args[0], ast.Constant)
    }
    assert used == set(EVENTS)
    assert OTHERS not in EVENTS


def test_the_page_has_each_event() -> None:
    page = (ROOT / "docs" / "operate.md").read_text().partition("\n## The log\n")[2]
    assert dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.MULTILINE)) == EVENTS


def line_of(message: str, *args: object, **details: object) -> str:
    """Return the line of a record that has an exception with the same text."""
    try:
        raise ValueError(message % args)
    except ValueError:
        extra = event("error", **details)
        logger = logging.getLogger("bwtui.test")
        record = logger.makeRecord("x", 40, "", 0, message, args, sys.exc_info(), extra=extra)
    return JsonLogFormatter("shop").format(record)


@pytest.mark.parametrize("text", SECRETS)
def test_no_password_is_in_a_line(text: str) -> None:
    line = line_of("can't reach %s", text, hint=text, table=text)
    assert SECRET not in line
    told = json.loads(line)
    for key in ("message", "hint", "table", "exception"):
        assert "***" in told[key], key


@pytest.mark.parametrize(
    "text", ['two\nlines "quoted" \\', "\x1b[2J\u202e\x7f", "\udcff", '{"event": "state"}']
)
def test_whatever_a_text_holds_a_line_is_one_object(text: str) -> None:
    line = line_of("%s", text, table=text)
    assert is_plain(line)
    told = json.loads(line)
    assert (told["message"], told["table"], told["event"]) == (text, text, "error")
    assert text.partition("\n")[0] in told["exception"]


def test_a_line_of_a_library_is_an_object_too() -> None:
    record = logging.LogRecord("rdkafka", 30, "", 0, "FAIL [%s]", ("broker",), None)
    told = json.loads(JsonLogFormatter("shop").format(record))
    assert (told["event"], told["level"], told["relay"]) == ("log", "warning", "shop")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", told["time"])


def test_a_headless_relay_tells_objects(capsys: pytest.CaptureFixture[str]) -> None:
    lines = HeadlessReporter("json")
    lines.emit(status(LATE, dropped=2))
    lines.emit_last(status(LATE, state="stopped", dropped=2))
    out, err = capsys.readouterr()
    told = [json.loads(line) for line in err.splitlines()]
    assert out == ""
    assert [one["event"] for one in told] == ["state", "notice", "state", "rows_dropped"]
    assert (told[1]["message"], told[1]["hint"], told[1]["table"]) == (LATE.message, "add it", "public.late")
    assert (told[3]["rows"], told[0]["state"]) == (2, "streaming")


def test_who_ends_a_relay_by_hand_reads_of_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line of its state reports the stop; an alert on the event would be a false alarm."""

    def end(settings: RelaySettings, as_json: bool) -> None:
        raise Interrupted()

    monkeypatch.setattr(command, "_run_headless", end)
    with pytest.raises(click.exceptions.Exit) as ended:
        command.run_headless(RelaySettings(name="shop", log_format="json"), as_json=False)
    assert ended.value.exit_code == Interrupted.exit_code
    assert capsys.readouterr().err == ""


def connect(state: Path) -> "subprocess.CompletedProcess[str]":
    """Run a relay whose PostgreSQL is not available."""
    command = (
        *("-m", "bwtui", "connect", "--headless", "--log-format", "json", "-s", "shop"),
        *("-d", f"postgresql://me:{SECRET}@127.0.0.1:1/x"),
    )
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "BWTUI_STATE_HOME": str(state)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_relay_that_runs_already_is_said_to_in_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    lock = RelayLock.acquire("shop")
    try:
        run = connect(tmp_path)
    finally:
        lock.release()
    [line] = run.stderr.splitlines()
    told = json.loads(line)
    assert (told["event"], told["exit_code"], run.returncode) == ("failed", 2, 2)


def test_a_relay_that_can_not_begin_says_so_in_objects_alone(tmp_path: Path) -> None:
    run = connect(tmp_path)
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
    command = (
        "connect",
        "--detach",
        "--log-format",
        "json",
        "-s",
        "shop",
        "-d",
        f"postgresql://me:{SECRET}@127.0.0.1:1/x",
    )
    run = subprocess.run(
        [sys.executable, "-m", "bwtui", *command],
        env={**os.environ, "BWTUI_STATE_HOME": str(tmp_path)},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 4
    log = (tmp_path / "shop" / "engine.log").read_text()
    assert SECRET not in log
    told = [json.loads(line) for line in log.splitlines()]
    assert [one["event"] for one in told][-1] == "failed"
    assert "hint" not in told[-1]["message"]
    assert told[-1]["hint"]
