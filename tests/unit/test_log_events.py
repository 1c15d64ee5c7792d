"""The JSON log: each line is an object, event names are stable, and no line contains a password."""

import json
import logging
import re
import sys
from pathlib import Path

import click
import pytest

from bwtui.cli import connect as command
from bwtui.cli.output.headless import HeadlessReporter
from bwtui.errors import Interrupted
from bwtui.escaping import is_plain
from bwtui.model.events import EVENTS, event
from bwtui.relay.process.log import JsonLogFormatter
from bwtui.settings import RelaySettings
from tests.unit.test_cli_headless import LATE, status

ROOT = Path(__file__).parents[2]
SECRET = "geheim"
SECRETS = (
    f"postgresql://me:{SECRET}@db/shop",
    f"host=db password={SECRET} user=me",
    f"host=db password='a\\'{SECRET}' user=me",
    f'asked with "password={SECRET}"',
    f"http://me:{SECRET}@registry:8081",
)


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
