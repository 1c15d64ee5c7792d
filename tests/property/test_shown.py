"""Whatever a text contains, no output lets through invisible characters or terminal controls."""

import contextlib
import io
import json
import logging
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from rich.table import Table
from rich.text import Text

from bwtui import console
from bwtui.audit.html_report import page
from bwtui.audit.report import AuditFinding, AuditSummary
from bwtui.audit.terminal import line, show
from bwtui.cli.doctor import PrerequisiteResult, _lines
from bwtui.cli.main import tell
from bwtui.cli.output.headless import HeadlessReporter
from bwtui.cli.output.table import columns
from bwtui.cli.status import _as_table, _in_full
from bwtui.errors import BwtuiError
from bwtui.escaping import escape, escape_json, escape_lines, is_plain, json_text, shorten
from bwtui.model.status import ErrorEntry, Status, TableStatus
from bwtui.packages.setup_progress import PlainSetupProgress
from bwtui.relay.process.log import _MaskingFormatter
from tests.hostile import ALL, any_text, harm


class OnTerminal(io.BytesIO):
    """Bytes for a terminal."""

    def isatty(self) -> bool:
        return True


def report(text: str) -> AuditSummary:
    """Return a report with the text in every field that can hold one."""
    fields = [{"field": text, "postgresql": text, "sent": None, "kafka": text}]
    place = {"topic": text, "partition": 0, "offset": 7, "lsn": 1, "ordinal": 2, "table": text}
    finding = AuditFinding("corrupted", **place, key={text: text}, fields=fields, hop=text, note=text)  # type: ignore[arg-type]
    counts = {"matched": 7, "corrupted": 1}
    low = {"partition": 0, "low": 0, "high": 1, "messages": 1, "records": 1}
    return AuditSummary(
        verdict="anomalies",
        window={"first_lsn": text},
        expected=8,
        actual=8,
        balance={"expected": counts, "actual": counts},
        classes={"matched": 7, "corrupted": 1},
        without={},
        findings=[finding],
        found={"corrupted": 1},
        by_topic=[{"topic": text, "classes": {text: 1}, **low}],
        by_time=[{"start_us": 0, "messages": 1, "classes": {text: 1}}],
        notes=[text],
        details={"cluster": text, "inputs": {text: text}, "more": [text]},
    )


def written(write: Callable[[], object]) -> str:
    """Return the output of ``write`` on stdout and stderr."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        write()
    return out.getvalue()


def logged(text: str) -> str:
    try:
        raise ValueError(text)
    except ValueError:
        record = logging.LogRecord("x", 20, "", 0, "said: %s", (text,), sys.exc_info())
    return _MaskingFormatter("%(levelname)s %(message)s").format(record)


def rich_printed(text: str) -> str:
    table = Table("a", title=text)
    table.add_row(text)
    table.add_row(Text(text))
    return written(lambda: console.terminal(width=80).print(text, Text(text), table))


def on_terminal(text: str, show: Callable[[str], str]) -> str:
    file = OnTerminal()
    console.for_terminal(file, show).write(text.encode("utf-8", "surrogatepass"))
    return file.getvalue().decode()


def a_status(text: str) -> Status:
    tables = {text: TableStatus(topic=text, notes=(text,))}
    errors = (ErrorEntry(0.0, "row", text, text, text), ErrorEntry(0.0, "broker", None, text, text))
    places = {"publication": text, "database": text, "broker": text, "registry": text}
    return Status("streaming", text, text, text, tables=tables, errors=errors, **places)  # type: ignore[arg-type]


#: Every output, and what it writes for a text.
WAYS: dict[str, Callable[[str], str]] = {
    "shown": escape,
    "shown lines": escape_lines,
    "shortened": lambda text: shorten(text, 20),
    "say": lambda text: written(lambda: console.say(text)),
    "say on stderr": lambda text: written(lambda: console.say(text, err=True)),
    "say JSON": lambda text: written(lambda: console.say_json({text: [text]})),
    "rich": rich_printed,
    "a table": lambda text: "\n".join(columns((text,), [(text,)])),
    "an error": lambda text: written(lambda: tell(BwtuiError(text, text))),
    "the log": logged,
    "a finding": lambda text: line(report(text).findings[0]),
    "a report": lambda text: written(lambda: show(report(text))),
    "a page": lambda text: page(report(text)),
    "a precondition": lambda text: written(
        lambda: console.say(
            *_lines(PrerequisiteResult(text, text, BwtuiError(text, text))),
            *_lines(PrerequisiteResult(text, text)),
        )
    ),
    "a status": lambda text: written(lambda: console.say(*_in_full(a_status(text)))),
    "statuses": lambda text: written(lambda: console.say(*_as_table([a_status(text)]))),
    "a status as JSON": lambda text: written(lambda: console.say_json(a_status(text).to_json())),
    "what a relay tells": lambda text: written(lambda: HeadlessReporter().emit_last(a_status(text))),
    "progress": lambda text: written(lambda: PlainSetupProgress().note(text)),
    "an export": lambda text: on_terminal(text, escape_lines),
    "an export as JSON": lambda text: on_terminal(json.dumps(text, ensure_ascii=False), escape_json),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_way_out_lets_it_through(way: str) -> None:
    @settings(max_examples=40)
    @given(any_text())
    @example(ALL)
    def check(text: str) -> None:
        assert harm(WAYS[way](text)) == []

    check()


@given(any_text())
@example(ALL)
def test_it_is_the_same_twice_and_loses_nothing(text: str) -> None:
    once = escape(text)
    assert escape(once) == once
    assert "\n" not in once
    assert harm(escape_lines(text)) == []
    if is_plain(text):
        assert once == text


@given(any_text())
@example(ALL)
def test_json_means_the_same(text: str) -> None:
    # In JSON, two surrogates that form a pair are one character.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert json.loads(json_text({text: text})) == {text: text}
    assert json.loads(escape_json(json.dumps([text], ensure_ascii=False))) == [text]


@given(any_text())
def test_what_a_program_reads_is_exact(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert written(lambda: console.say_verbatim(text)) == f"{text}\n"


@pytest.mark.parametrize(
    "text", ["é", "Ж", "日本語", "ไทย", "😀", "❤️", "a\u0301", "\xa0", "\u3000", "ß", "ﷺ"]
)
def test_what_can_be_read_stays(text: str) -> None:
    assert escape(text) == text


def test_a_finding_shows_the_beginning_of_a_large_value() -> None:
    began = time.process_time()
    told = line(AuditFinding("corrupted", key={"id": "\x1b" * 10_000_000}))
    assert len(told) < 10_000
    assert time.process_time() - began < 1


def test_ten_megabytes_take_no_time() -> None:
    for text in ("x" * 10_000_000, "\x1b" * 10_000_000, "日" * 10_000_000):
        began = time.process_time()
        assert len(shorten(text, 100)) <= 400
        assert time.process_time() - began < 0.1
        assert len(escape(text)) >= len(text)
        assert time.process_time() - began < 5
