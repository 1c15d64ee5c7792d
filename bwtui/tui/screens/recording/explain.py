"""Explain a key: what became of one row, change by change."""

import threading
from collections.abc import Iterable
from typing import ClassVar

from textual import work
from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.model.lsn import format_lsn
from bwtui.model.status import FieldChange
from bwtui.recording.change import Change
from bwtui.recording.fields import differences
from bwtui.recording.reading.explain import Key, Step, Story, explain, key_before, key_of, row_before
from bwtui.recording.reading.target import MICROS
from bwtui.recording.view import RecordingView
from bwtui.tui import figures
from bwtui.tui.host import Closer, Host, Selection
from bwtui.tui.plain import Content
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import Picture
from bwtui.tui.widgets.changes import OPERATIONS
from bwtui.tui.widgets.columns import Cell, Column, Row
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.recording.change import RecordedDetail

COLUMNS = (
    Column("mark", "", 1),
    Column("time", "Committed", 12),
    Column("op", "Op", 10),
    Column("fields", "What changed", 18, grow=80),
    Column("lsn", "LSN", 11, "right", drop=2, grow=17),
    Column("xid", "Xid", 8, "right", drop=1),
    Column("place", "Part@offset", 12, "right", drop=3, grow=18),
    Column("schema", "ValId", 5, "right", drop=4),
)


class ExplainScreen(RelayScreen):
    """Filled while the recording is read; Esc stops the reading, and goes back."""

    mode: ClassVar[str] = "changes"
    own_list = True
    without = frozenset(("filter", "errors_only", "sort", "reverse"))

    def __init__(self, host: Host, key: Key) -> None:
        super().__init__(host)
        self.story = Story(key)
        self._cancelled = threading.Event()
        self._failure: BwtuiError | None = None
        self._shown = -1
        self._steps: dict[str, Step] = {}
        self._change: Change | None = None

    @classmethod
    def of(cls, host: Host, selection: Selection) -> Closer:
        """Return the screen of the selected row, or why there is none."""
        change = selection.selected_change()
        if isinstance(selection, ExplainScreen):
            key = selection.other_key()
            return "This change left the key alone" if key is None else cls(host, key)
        if change is None:
            return "No change is selected"
        if change.operation == "truncate":
            return "TRUNCATE empties whole tables: it is about no single row, so there is no key to explain"
        if (key := key_of(change)) is None:
            return f"{change.table} has no key, so its rows can't be told apart"
        return cls(host, key)

    def body(self) -> Iterable[Widget]:
        """Return the steps and the selected one in full."""
        steps = Grid(COLUMNS, id="steps")
        steps.add_class("panel")
        steps.border_title = Content(f"{self.story.key.table} {self.story.key}")
        steps.empty_text = "reading the recording…"
        return (steps, RecordedDetail())

    def on_mount(self) -> None:
        self.run_worker(self._explain(), exit_on_error=True)

    def on_unmount(self) -> None:
        self._cancelled.set()

    def paint(self, picture: Picture) -> None:
        self._fill()

    def main_grid(self) -> Grid:
        return self.query_one("#steps", Grid)

    def crumbs(self) -> tuple[str, ...]:
        return ("Changes", f"{self.story.key.table} {self.story.key}")

    def selected_change(self) -> Change | None:
        """Return the selected step's change, once it was read again."""
        step = self._step()
        change = self._change
        return (
            change if change is not None and step is not None and change.position == step.position else None
        )

    def selected_table(self) -> str | None:
        return self.story.key.table

    def other_key(self) -> Key | None:
        """Return the other key of the selected change, if it changed the key."""
        change = self.selected_change()
        keys = (key_of(change), key_before(change)) if change else ()
        return next((key for key in keys if key not in (None, self.story.key)), None)

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        """Read the selected step again, to show it in full."""
        if (step := self._step()) is not None:
            self._read(step)

    def _step(self) -> Step | None:
        return self._steps.get(self.main_grid().cursor_key or "")

    async def _explain(self) -> None:
        try:
            await self.recording.source.study(lambda view: explain(view, self.story, self._cancelled.is_set))
        except BwtuiError as error:
            self._failure = error
        if self.is_attached:
            self._fill()

    @work(group="step", exclusive=True)
    async def _read(self, step: Step) -> None:
        def read(view: RecordingView) -> tuple[Change, tuple[FieldChange, ...]]:
            change = next(view.changes(step.position, step.position + 1))
            return change, differences(change, row_before(view, step, change))

        try:
            change, fields = await self.recording.source.search(read)
        except BwtuiError as error:
            self.notify(error.message, severity="error", markup=False)
            return
        self._change = change
        self.query_one(RecordedDetail).show_change(change, fields)

    def _fill(self) -> None:
        story, grid = self.story, self.main_grid()
        if story.count != self._shown:
            self._shown = story.count
            steps = list(story.steps)
            self._steps = {str(step.position): step for step in steps}
            grid.set_rows([step_row(step) for step in steps])
        grid.empty_text = self._failure.message if self._failure else "no change of this key"
        if not story.finished and self._failure is None:
            grid.empty_text = "reading the recording…"
        grid.set_remark(self._progress())

    def _progress(self) -> str:
        story = self.story
        parts = [f"{story.count:,} changes" if story.count != 1 else "1 change"]
        if story.count > len(story.steps):
            parts.append(f"the last {len(story.steps):,} are shown")
        if self._failure is not None:
            parts.append(f"✗ {self._failure.message}")
        elif not story.finished:
            parts.append(f"{figures.percent(story.read / max(story.total, 1))} read · Esc stops")
        return " · ".join(parts)


def step_row(step: Step) -> Row:
    """Return a step as a row."""
    sign, tone = OPERATIONS.get(step.operation, (" ", ""))
    bad = step.without == "dropped" or step.state == "refused"
    place = figures.NONE if step.offset is None else f"{step.partition}@{step.offset}"
    schema = figures.NONE if step.value_schema_id is None else str(step.value_schema_id)
    cells = (
        Cell("✗", "bad") if bad else Cell("»", "muted") if step.is_repeat else Cell(""),
        Cell(figures.precise_clock(step.commit_time / MICROS), "muted"),
        Cell(f"{sign} {step.operation}", tone),
        Cell(_story(step), "warn" if step.renamed or step.changed else "muted"),
        Cell(format_lsn(step.lsn), "muted"),
        Cell("" if step.operation == "snapshot" else str(step.xid), "muted"),
        Cell(place, "muted"),
        Cell(schema, "muted"),
    )
    return Row(str(step.position), cells)


def _story(step: Step) -> str:
    """Say what a step did, in a few words."""
    words = {"from": "was another key before: x follows it", "to": "has another key since: x follows it"}
    parts = [words.get(step.renamed, ""), step.changed, "sent again" if step.is_repeat else ""]
    parts.append(f"no message: {step.without}" if step.without else "")
    if step.state in ("refused", "unknown"):
        parts.append(f"delivery {step.state}")
    return " · ".join(part for part in parts if part)
