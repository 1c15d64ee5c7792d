"""Every screen, with texts from a hostile database.

The test checks the output of the widgets before the last filter in front of the terminal, which would hide a
fault.
"""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.segment import Segment
from textual.color import Color

from bwtui.model.status import ChangeSample, ErrorEntry, SchemaEntry, Status
from bwtui.pgoutput.messages import Field, Relation, UnchangedToast
from bwtui.recording.change import Change
from bwtui.tui.app import RelayApp
from bwtui.tui.audit.records import TopicRecord
from bwtui.tui.audit.report import parse_report
from bwtui.tui.audit.session import AuditSession, Connections
from bwtui.tui.base.plain import PrintableFilter
from bwtui.tui.recording_app import ReportApp
from tests.hostile import ALL, TEXTS, harm
from tests.recorded_shop import MemoryRecording, Tape, shop_tape
from tests.tui.audited import NOW_MS, FakeKafka
from tests.tui.doubles import Clock, Stage
from tests.tui.picture import lines, text
from tests.tui.recorded import RecordedStage
from tests.tui.shop import Shop
from tests.tui.test_audit import read

LARGE = "\x1b[2J" * 2_500_000


class Watch(PrintableFilter):
    """Records the text that it would have had to remove, and every action in a text."""

    def __init__(self) -> None:
        super().__init__()
        self.harm: list[str] = []
        self.painted: set[str] = set()
        self.actions: set[str] = set()

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        for segment in segments:
            self.harm += [repr(segment.text)] if harm(segment.text, "") else []
            self.painted.add(segment.text)
            style = segment.style
            if style is not None:
                assert style.link is None
                self.actions |= {str(value) for name, value in style.meta.items() if name == "@click"}
        return segments


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Check every line in place of the last filter."""
    found = Watch()
    monkeypatch.setattr(RelayApp, "_printable", found)
    return found


def check(watch: Watch, app: Any, *seen: str) -> None:
    """Check that no harmful text was painted, no value made a line or an action, and escapes are shown."""
    assert watch.harm == []
    shown = text(app)
    for line in lines(app):
        # On the inner screens a value may have its lines one below another.
        assert not re.match(r"[│┃|]? {0,4}(clean: nothing lost|hint: run)", line), line
    for part in seen:
        assert part in shown, part
    assert not [action for action in watch.actions if "show(" not in action]


def name(number: int) -> str:
    """Return the texts in turn."""
    return list(TEXTS.values())[number % len(TEXTS)]


class HostileShop(Shop):
    """A relay whose tables, rows, schemas and errors have such names and texts."""

    def status(self, now: float) -> Status:
        """Put a text wherever one is possible."""
        status = super().status(now)
        tables = {
            f"{n}{name(n)}": replace(table, topic=name(n), notes=(name(n), ALL), key_columns=(name(n),))
            for n, table in enumerate([*status.tables.values()] * 5)
        }
        errors = tuple(
            ErrorEntry(now - n, "row", bad, bad, bad) for n, bad in enumerate((ALL, *TEXTS.values()))
        )
        places = dict.fromkeys(
            ("slot", "publication", "database", "broker", "registry", "server_version"), ALL
        )
        return replace(status, tables=tables, errors=errors, detail=ALL, **places)  # type: ignore[arg-type]

    def changes(self, now: float, after: int) -> list[ChangeSample]:
        """Return changes of such rows."""
        return [_sample(change) for change in super().changes(now, after)]

    def schemas(self) -> list[SchemaEntry]:
        """Return schemas with such names, and one with invalid JSON."""
        found = []
        for n, schema in enumerate(super().schemas()):
            data = {"type": "record", "name": name(n), "fields": [{"name": name(n), "doc": ALL}]}
            written = ALL if n == 0 else json.dumps(data, ensure_ascii=False)
            found.append(
                replace(schema, subject=f"{name(n)}{n}", table=name(n), topic=name(n), schema=written)
            )
        return found


def _sample(change: ChangeSample) -> ChangeSample:
    bad = name(change.sequence)
    fields = tuple(replace(f, name=bad, before=f.before and bad, after=bad) for f in change.fields)
    return replace(change, table=f"0{name(0)}", topic=bad, key=f"id={bad}", fields=fields)


async def test_screens_of_a_relay(watch: Watch) -> None:
    stage = Stage(HostileShop())
    async with stage.run((120, 40)):
        check(watch, stage.app, "\\x1b[2J")
        await stage.press("enter")
        check(watch, stage.app, "\\x1b[2J")
        await stage.press("escape")
        for mode in ("changes", "registry", "errors", "audit"):
            await stage.show(mode)
            for _ in range(len(TEXTS) // 2):
                await stage.pilot.press(*["up" if mode == "changes" else "down"] * 2)
                await stage.pilot.pause()
                check(watch, stage.app)
        await stage.show("errors")
        check(watch, stage.app, "[/x][/]", "[@click=app.quit]clean[/]")
        # Copied text is exact; base64 keeps it from the terminal.
        await stage.press("home", "y")
        assert harm(stage.app.clipboard)
        stage.app.notify(ALL, title=ALL, timeout=60)
        await stage.settle()
        check(watch, stage.app)
        assert any("[@click=app.quit]" in part for part in watch.painted)
        await stage.press("slash", *"[/x]")
        check(watch, stage.app)


async def test_what_one_types_is_not_sent_back_raw() -> None:
    stage = Stage(Shop())
    async with stage.run((120, 30)):
        await stage.press("slash")
        focused: Any = stage.app.focused
        focused.value = ALL.replace("\n", " ")
        await stage.settle()
        assert harm(text(stage.app)) == []
        assert "[2J" in text(stage.app)
        stage.app.copy_to_clipboard("\ud800\x1b")
        assert stage.app.clipboard == "?\x1b"


def hostile_tape() -> Tape:
    """Return the shop's tape with such names and values, and one of 10 MB."""
    tape = shop_tape(3)
    relations: dict[int, Relation] = {}
    for change in tape.changes:
        if change.relation.oid not in relations:
            relations[change.relation.oid] = _renamed(change.relation)
    tape.changes[:] = [_changed(n, change, relations) for n, change in enumerate(tape.changes)]
    tape.errors[:] = [replace(one, table=ALL, message=ALL, hint=ALL) for one in tape.errors]
    return tape


def _renamed(relation: Relation) -> Relation:
    columns = tuple(
        replace(column, name=f"{ALL}{n}" if column.name == "id" else f"{name(n)}{n}")
        for n, column in enumerate(relation.columns)
    )
    return replace(relation, name=f"{relation.name}{ALL}", columns=columns)


def _changed(number: int, change: Change, relations: dict[int, Relation]) -> Change:
    relation = relations[change.relation.oid]
    value = (LARGE if number == 9 else name(number)).encode("utf-8", "surrogatepass")
    old = {column.name: n for n, column in enumerate(change.relation.columns)}

    def row(fields: tuple[Field, ...] | None) -> tuple[Field, ...] | None:
        # Keys stay distinct.
        return fields and tuple(
            one if one is None or isinstance(one, UnchangedToast) else value + one if not n else value
            for n, one in enumerate(fields)
        )

    keys = tuple(relation.columns[old[key]].name for key in change.key_columns)
    messages = tuple(replace(message, topic=name(number)) for message in change.messages)
    return replace(
        change, relation=relation, key_columns=keys, messages=messages,
        after=row(change.after), before=row(change.before),
        tables=(relation.qualified_name,), filled=(ALL,) if change.filled else (),
    )  # fmt: skip


async def test_screens_of_a_recording(watch: Watch) -> None:
    stage = RecordedStage(MemoryRecording(hostile_tape(), name="shop"))
    async with stage.run((120, 40)):
        for keys in ("1", "3", "4"):
            await stage.press(keys)
            check(watch, stage.app, "\\x1b[2J")
        await stage.press("2")
        for _ in range(10):
            await stage.pilot.press("up", "up")
            await stage.pilot.pause()
            check(watch, stage.app)
        # A transaction, a key from one end of its history to the other, and a table's rows.
        for key in ("T", "x", "a"):
            await stage.press("2", key)
            check(watch, stage.app)
            await stage.press("up")
            check(watch, stage.app)
            await stage.press("escape")
        await stage.seek(ALL.replace("\n", "").replace("\r", "")[:40])
        check(watch, stage.app)


def report() -> dict[str, Any]:
    """Return a report with such texts, as a user may get one from somebody else."""
    values = (LARGE, *TEXTS.values())
    fields = [
        {"field": f"{n}{value[:99]}", "postgresql": value[:99], "sent": value, "kafka": f"{value[:99]}!"}
        for n, value in enumerate(values)
    ]
    place = {"topic": ALL, "partition": 0, "offset": 7, "lsn": "0/7", "ordinal": 1, "table": ALL}
    findings = [
        {
            "class": "corrupted",
            **place,
            "operation": "update",
            "key": key,
            "fields": shown,
            "hop": ALL,
            "note": ALL,
        }
        for key, shown in (({ALL: LARGE}, []), (dict.fromkeys(TEXTS.values(), ALL), fields))
    ]
    window = {"first_lsn": ALL, "last_lsn": ALL, "confirmed_lsn": ALL, "fences": [ALL, ALL]}
    counts = {"corrupted": len(findings)}
    texts = {"notes": [ALL], "cluster": ALL, "recording": ALL, "without_message": {ALL: 7}, "tables": [ALL]}
    return texts | {"findings": findings, "window": window, "classes": counts, "findings_total": counts}


@pytest.mark.parametrize("question", ["recording", "database", "recordings"])
async def test_screens_of_a_report(watch: Watch, question: str) -> None:
    found = parse_report(
        dict(read("database").raw) | report() | {"question": question, "verdict": "anomalies"}
    )
    row = json.dumps({text: text for text in TEXTS.values()} | {"large": LARGE}).encode()
    kafka = FakeKafka({(ALL, 0, 7): TopicRecord(row, row, NOW_MS, ((ALL, b"x"),))})
    audit = AuditSession(Connections("", "", (), lambda broker, registry: kafka), found)
    app = ReportApp(ALL, audit, Clock())
    async with app.run_test(size=(120, 36)) as pilot:
        for keys in (("end",), ("enter",), ("down",), ("enter",)):
            await pilot.press(*keys)
            await app.workers.wait_for_complete()
            await pilot.pause()
            check(watch, app)
        for _ in range(len(TEXTS) // 2):
            await pilot.press("down", "down")
            await pilot.pause()
            check(watch, app)
        assert any("\\x1b[2J" in part for part in watch.painted)
