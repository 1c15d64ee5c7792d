"""`bwtui status` if one of several relays does not answer: the others are shown, and the exit code is 4."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bwtui.cli.main import CONTEXT
from bwtui.cli.status import _as_table, _in_full, status
from bwtui.model.gaps import with_gaps
from bwtui.model.proof import UnprovenTable
from bwtui.model.status import ErrorEntry, Status, TableStatus
from bwtui.model.verdict import RelayVerdict
from bwtui.relay.process import control
from bwtui.relay.process.control import socket_path
from bwtui.relay.serving.control_server import ControlServer
from bwtui.settings import RelaySettings
from bwtui.state_folder import LOCK_NAME
from tests.unit.relay_double import DoubleEngine


@pytest.fixture(autouse=True)
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A relay that answers."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    make(tmp_path, "one")
    with ControlServer("one", DoubleEngine(RelaySettings(name="one"))):
        yield


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A relay whose process is suspended: the kernel accepts the connection, and no process answers."""
    real = control.request

    def request(name: str, message: dict[str, str], timeout: float = 0) -> Any:
        # The other relay may take longer.
        return real(name, message, 0.2 if name == "two" else 60)

    monkeypatch.setattr(control, "request", request)
    make(tmp_path, "two")
    with socket.socket(socket.AF_UNIX) as suspended:
        suspended.bind(str(socket_path("two")))
        suspended.listen()
        yield


def make(home: Path, name: str) -> None:
    """Make a relay's state folder."""
    (home / name).mkdir()
    (home / name / LOCK_NAME).touch()


def run(*arguments: str) -> Result:
    # click keeps a command's help options from its first call.
    return CliRunner().invoke(status, arguments, **CONTEXT)


def test_all_that_run_answer() -> None:
    ended = run()
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert "one, pid" in ended.stdout


@pytest.mark.usefixtures("two")
def test_one_of_two_does_not_answer() -> None:
    ended = run()
    assert ended.exit_code == 4
    assert "one, pid" in ended.stdout
    assert ended.stderr.startswith("bwtui: relay two runs, but does not answer; its process may be suspended")
    ended = run("--json")
    assert (ended.exit_code, json.loads(ended.stdout)["name"]) == (4, "one")
    assert run("one").exit_code == 0, "the one that was asked for answers"


@pytest.mark.usefixtures("two")
def test_the_one_that_was_asked_for_does_not_answer() -> None:
    ended = run("two")
    assert ended.stdout == ""
    assert getattr(ended.exception, "exit_code", None) == 4


def test_what_the_sentence_does_not_say_stands_below_it() -> None:
    old = "PostgreSQL has not reported the slot's lag since 12:00:00: the lag shown is that old"
    shown = Status("streaming", "one", "one", detail=old, verdict=RelayVerdict("healthy", "nothing waits"))
    lines = _in_full(shown)
    assert lines[1].endswith("streaming: nothing waits")
    assert lines[2].endswith(old)
    shown = replace(shown, detail="waiting", verdict=RelayVerdict("starting", "waiting for Kafka"))
    assert sum("waiting" in line for line in _in_full(shown)) == 1


def test_what_postgresql_was_not_asked_for_yet_is_not_known() -> None:
    shown = Status("snapshot", "one", "one", confirmed_lsn=0x2000, server_lsn=0x1000)
    lines = _in_full(shown)
    assert "confirmed  0/2000 of 0/2000" in lines, "an end before what is confirmed is an old one"
    assert "retained   unknown so far" in lines
    lines = _in_full(replace(shown, wal_status="reserved"))
    assert "retained   0 B, reserved, no limit set" in lines


def test_tables_that_are_not_proven_are_listed_with_their_commands() -> None:
    entries = (
        UnprovenTable("public.a", 0x16B3748, "topic a was deleted", "bwtui snapshot public.a"),
        UnprovenTable("public.b", 0x16B3750, "it left the publication"),
    )
    verdict = RelayVerdict("healthy", "nothing waits")
    shown = with_gaps(Status("streaming", "one", "one", verdict=verdict, not_proven=entries))
    lines = _in_full(shown)
    assert lines[1] == f"state      not proven: {shown.verdict.sentence}"
    assert lines[1].startswith(
        "state      not proven: public.a is not proven since 0/16B3748: topic a was deleted;"
    )
    assert lines[2] == "hint       for public.a run: bwtui snapshot public.a"
    assert sum("bwtui snapshot public.a" in line for line in lines) == 1
    assert shown.verdict.sentence.count("it left the publication") == 1
    assert not any(line.startswith("unproven") for line in lines), "the verdict says it all"
    assert not any(line.startswith("comparing") for line in lines)
    compared = _in_full(replace(shown, comparison="public.b: reading topics: 3 of 7"))
    assert compared[compared.index(lines[-1]) + 1] == "comparing  public.b: reading topics: 3 of 7"
    table = _as_table([shown, Status("streaming", "two", "two")])
    assert table[1].startswith("one   not proven ")
    assert table[-1].startswith("one: public.a is not proven since")


def test_each_command_is_shown_once() -> None:
    """The hint has the command that repairs all tables."""
    entries = [
        UnprovenTable(f"public.{name}", 0x10, "it was truncated", f"bwtui repair --relay one --table {name}")
        for name in "ab"
    ]
    entries.append(UnprovenTable("public.c", 0x10, "topic c was deleted", "bwtui snapshot public.c"))
    shown = Status("streaming", "one", "one", verdict=RelayVerdict("healthy"), not_proven=tuple(entries))
    lines = _in_full(with_gaps(replace(shown, not_captured=("public.c", "public.d"))))
    assert "hint       run: bwtui repair --relay one" in lines
    assert "unproven   public.b since 0/10: it was truncated" in lines
    assert "           public.c since 0/10: topic c was deleted; run: bwtui snapshot public.c" in lines
    assert (
        "lacking    public.d: not captured; run 'bwtui doctor --relay one': it says what captures it" in lines
    )


def test_a_stalled_relay_names_its_tables_once() -> None:
    entry = UnprovenTable("public.a", 0x10, "it was truncated")
    verdict = RelayVerdict("stalled", "Kafka is down", hint="check Kafka")
    shown = with_gaps(Status("stalled", "one", "one", verdict=verdict, not_proven=(entry,)))
    lines = _in_full(shown)
    assert (
        lines[1] == "state      stalled: Kafka is down; public.a is not proven since 0/10: it was truncated"
    )
    assert sum("it was truncated" in line for line in lines) == 1


def test_notices_are_no_errors() -> None:
    errors = (
        ErrorEntry(1, "notice", None, "publication p includes all future tables", "list them"),
        ErrorEntry(2, "row", "public.a", "value too large"),
        ErrorEntry(3, "notice", None, "table b is not there", since=2, until=3),
    )
    lines = _in_full(Status("streaming", "one", "one", errors=errors))
    assert lines[lines.index("last errors:") + 1] == "  row public.a: value too large"
    notices = lines.index("notices:")
    assert lines[notices + 1 : notices + 3] == [
        "  publication p includes all future tables",
        "    hint: list them",
    ]
    assert lines[lines.index("resolved:") + 1].endswith(" notice: table b is not there")


def test_what_is_never_sent_of_a_table_without_a_key_is_listed() -> None:
    note = "unkeyed: updates and deletes are not captured (REPLICA IDENTITY FULL captures updates)"
    tables = {name: TableStatus(name, notes=(note,)) for name in ("public.log", "public.trace")}
    lines = _in_full(Status("streaming", "shop", "shop", tables=tables | {"b": TableStatus("b")}))
    assert lines[lines.index("notes:") + 1] == f"  public.log, public.trace: {note}"
