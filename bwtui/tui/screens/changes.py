"""The changes of a relay or a recording: all, and those of one table below its facts."""

import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any, ClassVar

from textual.containers import Container
from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.model.status import ChangeSample, SchemaEntry, TableStatus
from bwtui.recording.change import Change
from bwtui.recording.explain import RowKey
from bwtui.recording.export import change_object
from bwtui.recording.playback import Matches, WindowBounds
from bwtui.recording.query_completion import QueryNames
from bwtui.recording.query_language import Query
from bwtui.tui.base import assessment, figures
from bwtui.tui.base.keys import key_for
from bwtui.tui.base.plain import Content, fact
from bwtui.tui.screens.backfills import of_table
from bwtui.tui.screens.base import Objects, RelayScreen
from bwtui.tui.sources.host import Closer, ScreenHost, ScreenSelection
from bwtui.tui.sources.journey import sampled_key
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.widgets.changes import ChangeDetail, ChangeList, RecordedChanges, RecordedDetail
from bwtui.tui.widgets.filter_bar import Filter, FilterBar
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.line import Detail
from bwtui.tui.widgets.transport import QueryBar


class ChangesPair(RelayScreen):
    """Shows a list of changes, and the selected one in full."""

    def action_sort(self) -> None:
        """Explain why there is nothing to sort."""
        self.notify("Changes are always sorted by commit", timeout=3)

    action_reverse = action_sort


class SampledPair(ChangesPair):
    """Shows changes that are sampled from a relay."""

    wants_changes: bool = True
    #: The change in the detail panel.
    _detailed: ChangeSample | None = None

    def paint(self, snapshot: ScreenSnapshot) -> None:
        model = self.host.model
        stands_still = ""
        if model.paused is not None:
            stands_still = f"paused, {key_for('pause')} resumes"
        elif model.link != "live":
            stands_still = "no answer from the relay"
        self.main_grid().show(snapshot, stands_still)
        # The row may now hold a different change, for which no event is sent.
        if self.main_grid().selected() != self._detailed:
            self._show_selected()

    def main_grid(self) -> ChangeList:
        return self.query_one(ChangeList)

    def current_filter(self) -> Filter:
        return self.main_grid().filter

    def apply_filter(self, new: Filter) -> None:
        self.main_grid().set_filter(new)

    def selected_sample(self) -> ChangeSample | None:
        return self.main_grid().selected()

    def selected_key(self) -> RowKey | str:
        return sampled_key(self.selected_sample(), self.host.model.snapshot.status)

    def row_text(self) -> str:
        return self.main_grid().copy_text()

    def selected_objects(self) -> Objects:
        change = self.main_grid().selected()
        return [] if change is None else [dataclasses.asdict(change)]

    def all_objects(self) -> Objects:
        return map(dataclasses.asdict, self.main_grid().shown_changes)

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._show_selected()

    def _show_selected(self) -> None:
        self._detailed = self.main_grid().selected()
        self.query_one(ChangeDetail).show_change(self._detailed)

    def action_follow(self) -> None:
        """Follow the newest change again; also called from the detail panel."""
        self.focus_list()
        self.main_grid().action_last()


class ChangesScreen(SampledPair):
    """Shows the sampled changes, and the selected one in full."""

    mode: ClassVar[str] = "changes"

    def body(self) -> Iterable[Widget]:
        return (ChangeList(), ChangeDetail())

    def action_errors_only(self) -> None:
        """Show only the changes of tables with errors, or all."""
        status = self.host.model.snapshot.status
        if self.main_grid().only is not None or status is None:
            self.main_grid().show_only(None)
        else:
            troubled = frozenset(n for n, t in status.tables.items() if assessment.has_trouble(t))
            self.main_grid().show_only(troubled)


class OneTableScreen(RelayScreen):
    """A screen about one table; Esc goes back to the screen that opened it."""

    mode: ClassVar[str] = "overview"

    def __init__(self, host: ScreenHost, table: str) -> None:
        super().__init__(host)
        self.table = table

    @classmethod
    def of(cls, host: ScreenHost, selection: ScreenSelection) -> Closer:
        """Return the screen of the selected table."""
        table = selection.selected_table()
        return "No table is selected" if table is None else cls(host, table)

    def selected_table(self) -> str | None:
        return self.table

    def crumbs(self) -> tuple[str, ...]:
        return ("Overview", self.table)


class FactsScreen(OneTableScreen):
    """Mix-in that shows a table's facts above its changes; must precede the class that shows the changes."""

    def body(self) -> Iterable[Widget]:
        pair = Container(*self.changes_pair(), id="changes-pair", classes="folder")
        return (Detail(id="facts", title=self.table), pair)

    def changes_pair(self) -> Iterable[Widget]:
        """Return the list of the table's changes, and the selected one in full."""
        raise NotImplementedError

    def paint(self, snapshot: ScreenSnapshot) -> None:
        self._show_facts(snapshot)
        super().paint(snapshot)

    def _show_facts(self, snapshot: ScreenSnapshot) -> None:
        name = self.table
        table = snapshot.status.tables.get(name) if snapshot.status else None
        facts = self.query_one("#facts", Detail)
        if table is None:
            nothing = (
                "The relay's status does not list this table"
                if snapshot.playhead is None
                else "No change of this table up to here"
            )
            facts.show(None, Content.styled(nothing, "$warning"))
        else:
            schemas = tuple(s for s in snapshot.schemas if s.table == name)
            content = _table_facts(table, schemas, snapshot.rates.get(name, ()), self.has_class("-wide"))
            if again := of_table(snapshot.status, name, snapshot.received):
                content = Content("\n").join([content, _fact("sent again", again)])
            facts.show(content.markup, content)


class TableScreen(FactsScreen, SampledPair):
    """The screen of a table of a running relay, opened from the overview."""

    def changes_pair(self) -> Iterable[Widget]:
        return (ChangeList(self.table), ChangeDetail())


def _table_facts(
    table: TableStatus, schemas: tuple[SchemaEntry, ...], points: tuple[float, ...], wide: bool
) -> Content:
    counters = [
        ("rows/s", figures.rate(table.rows_per_second)),
        ("inserts", f"{table.inserts:,}"),
        ("updates", f"{table.updates:,}"),
        ("deletes", f"{table.deletes:,}"),
        ("truncates", f"{table.truncates:,}"),
        ("snapshot rows", f"{table.snapshot_rows:,}"),
        *((("backfilled", f"{table.backfill_rows:,}"),) if table.backfill_rows else ()),
        ("messages", f"{table.messages:,}"),
        ("bytes", figures.size(table.bytes)),
        ("errors", f"{table.errors:,}"),
        ("dead letters", f"{table.dead_letters:,}"),
    ]
    per_line = 5 if wide else 3
    lines = [
        Content.assemble(*(part for pair in counters[i : i + per_line] for part in _counter(*pair)))
        for i in range(0, len(counters), per_line)
    ]
    lines.append(_fact("trend", _trend(points), "$success"))
    lines.append(_fact("topic", table.topic))
    none = (
        "none: the table is unkeyed"
        if table.has_final_key
        else "unknown so far: this run of the relay has sent no row of it"
    )
    keys = ", ".join(table.key_columns) or none
    lines.append(_fact("key", keys, "" if table.key_columns else "$warning"))
    lines.append(_fact("snapshot", _snapshot(table)))
    if toast := _toast(table):
        lines.append(_fact("large values", toast, "$warning"))
    lines += [_fact(f"{s.part} schema", _schema(s)) for s in schemas]
    lines += [_fact("note", f"▲ {note}", "$warning") for note in table.notes]
    return Content("\n").join(lines)


def _counter(name: str, value: str) -> list[tuple[str, str]]:
    tone = "bold $error" if name in ("errors", "dead letters") and value != "0" else "bold"
    return [(f"{name:<14}", "$quiet"), (f"{value:>9}", tone), ("   ", "")]


_fact = partial(fact, width=14)


def _trend(points: tuple[float, ...]) -> str:
    """Return the rates of the last minute as bars, and their peak if a bar is cut off."""
    shown = points[-60:]
    bars = figures.sparkline(shown, 60).lstrip() or figures.NONE
    peak = max(shown, default=0.0)
    return f"{bars} ▲{figures.rate(peak)}/s" if peak > figures.ceiling(shown) else bars


def _toast(table: TableStatus) -> str:
    """Return how unchanged TOAST values of UPDATEs were handled, or "" if there were none."""
    counts = (
        (table.toast_fetched, "fetched by key"),
        (table.toast_placeholders, "sent as placeholder"),
        (table.toast_superseded, "skipped: row deleted"),
    )
    return " · ".join(f"{number:,} {handling}" for number, handling in counts if number)


def _snapshot(table: TableStatus) -> str:
    if table.snapshot_state == "none":
        return "not in this run"
    estimate = "" if table.snapshot_estimate is None else f" of ~{figures.count(table.snapshot_estimate)}"
    time_left = f", {time_left}" if (time_left := figures.remaining(table.snapshot_seconds_left)) else ""
    return f"{table.snapshot_state}, {table.snapshot_rows:,}{estimate} rows{time_left}"


def _schema(schema: SchemaEntry) -> str:
    version = "" if schema.version is None else f" version {schema.version}"
    return f"{schema.subject} · id {schema.id}{version}"


class RecordedPair(ChangesPair):
    """Shows a list of recorded changes, and the selected one in full."""

    def __init__(self, host: ScreenHost, *rest: Any, **more: Any) -> None:
        super().__init__(host, *rest, **more)
        self._export_stopped = threading.Event()

    def filter_bar(self) -> FilterBar:
        end = self.recording.source.view.last_time
        return QueryBar(self._search, end, self._names, self.apply_filter, self.focus_list)

    def _names(self) -> QueryNames:
        """Return the names of tables and columns for queries."""
        snapshot = self.host.model.snapshot
        tables = snapshot.status.tables if snapshot.status is not None else ()
        columns = {**self.main_grid().columns_at_hand, **dict.fromkeys(columns_of(snapshot.schemas))}
        return QueryNames(tuple(tables), tuple(columns))

    def paint(self, snapshot: ScreenSnapshot) -> None:
        self.main_grid().show(snapshot)
        self._show_selected()

    def main_grid(self) -> RecordedChanges:
        return self.query_one(RecordedChanges)

    def selected_change(self) -> Change | None:
        """Return the change under the cursor; until the list is read, the last one at the position."""
        return self.main_grid().selected() if self.main_grid().window else super().selected_change()

    def is_filtered(self) -> bool:
        return self.main_grid().is_filtered

    def row_text(self) -> str:
        return self.main_grid().copy_text()

    def selected_objects(self) -> Objects:
        change = self.main_grid().selected()
        return [] if change is None else [change_object(change)]

    def action_export_all(self) -> None:
        """Write all changes that match to a file, however many there are."""
        self.notify("Reading the recording for the export", timeout=2)
        self.export(self._matching(*self.main_grid().search_scope))

    def _matching(self, bounds: WindowBounds, matches: Matches | None) -> Objects:
        """Yield the exported changes; runs in its own thread with its own view."""
        with contextlib.closing(self.recording.source.reopen()) as view:
            for change in view.changes(bounds.start, bounds.stop):
                if self._export_stopped.is_set():
                    raise BwtuiError(
                        "the export was stopped because its screen was closed",
                        "stay on the screen until it has finished",
                    )
                if matches is None or matches(change):
                    yield change_object(change)

    def on_unmount(self) -> None:
        self._export_stopped.set()

    def action_back(self) -> None:
        """Stop a search first."""
        if not self.main_grid().stop_searching():
            super().action_back()

    def action_errors_only(self) -> None:
        """Show only changes that were dropped, refused or never confirmed, or all."""
        self.main_grid().toggle_errors_only()

    def _search(self, query: Query | None) -> None:
        self.main_grid().set_query(query.text if query else "", query.matches if query else None)

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._show_selected()

    def _show_selected(self) -> None:
        """Show the selected change or why there is none; the reason may change while nothing is selected."""
        change, detail = self.main_grid().selected(), self.query_one(RecordedDetail)
        if change is None:
            detail.show_nothing(self.main_grid().why_none)
        else:
            detail.show_change(change)


class RecordedChangesScreen(RecordedPair):
    """Shows every change of the recording."""

    mode: ClassVar[str] = "changes"

    def body(self) -> Iterable[Widget]:
        return (RecordedChanges(self.recording, "Changes"), RecordedDetail())


class RecordedTableScreen(FactsScreen, RecordedPair):
    """Shows one table as of the position, and its changes."""

    def changes_pair(self) -> Iterable[Widget]:
        return (RecordedChanges(self.recording, "Changes", table=self.table), RecordedDetail())


@lru_cache(8)
def columns_of(schemas: tuple[SchemaEntry, ...]) -> tuple[str, ...]:
    """Return the distinct column names of these schemas."""
    names: dict[str, None] = {}
    for entry in schemas:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            names |= dict.fromkeys(str(field["name"]) for field in json.loads(entry.schema)["fields"])
    return tuple(names)
