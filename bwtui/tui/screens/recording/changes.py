"""The screens with a recording's changes: all of them, those of a table, and those of a transaction."""

import contextlib
import json
import threading
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any, ClassVar

from textual.containers import Container
from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.model.status import SchemaEntry
from bwtui.recording.change import Change
from bwtui.recording.export.jsonl import change_object
from bwtui.recording.query.completion import QueryNames
from bwtui.recording.reading.transaction import TransactionCounts, counted
from bwtui.recording.reading.window import Matches, WindowBounds
from bwtui.tui import figures
from bwtui.tui.host import Closer, RecordingHost, ScreenHost, ScreenSelection
from bwtui.tui.plain import Content
from bwtui.tui.screens.changes import ChangesPair
from bwtui.tui.screens.exporting import Objects
from bwtui.tui.screens.table import FactsScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.filter_bar import FilterBar
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.recording.change import RecordedDetail
from bwtui.tui.widgets.recording.changes import RecordedChanges
from bwtui.tui.widgets.recording.query_bar import QueryBar
from bwtui.tui.widgets.recording.transport import moment

#: Maximum changes of a transaction that are counted for its heading.
_COUNTED = 20_000
#: Titles of changes that belong to no transaction.
_ALONE = {"snapshot": "Snapshot row", "backfill": "Row put into the stream", "cleanup": "Tombstone"}


class RecordedPair(ChangesPair):
    """Shows a list of recorded changes, and the selected one in full."""

    def __init__(self, host: ScreenHost, *rest: Any, **more: Any) -> None:
        super().__init__(host, *rest, **more)
        self._is_left = threading.Event()

    def filter_bar(self) -> FilterBar:
        """Return the line in which a query is typed."""
        return QueryBar(self.recording.source.view.last_time, self._names)

    def _names(self) -> QueryNames:
        """Return the names of tables and columns for queries."""
        picture = self.host.model.picture
        tables = picture.status.tables if picture.status is not None else ()
        columns = {**self.main_grid().columns_at_hand, **dict.fromkeys(columns_of(picture.schemas))}
        return QueryNames(tuple(tables), tuple(columns))

    def paint(self, picture: ScreenSnapshot) -> None:
        self.main_grid().show(picture)
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
        self.notify("Exporting: the recording is read for it", timeout=2)
        self.export(self._matching(*self.main_grid().asked))

    def _matching(self, bounds: WindowBounds, matches: Matches | None) -> Objects:
        """Yield the exported changes; runs in its own thread with its own view."""
        with contextlib.closing(self.recording.source.reopen()) as view:
            for change in view.changes(bounds.start, bounds.stop):
                if self._is_left.is_set():
                    raise BwtuiError(
                        "the export was stopped because its screen was closed", "stay until it is done"
                    )
                if matches is None or matches(change):
                    yield change_object(change)

    def on_unmount(self) -> None:
        """Stop the export."""
        self._is_left.set()

    def action_back(self) -> None:
        """Stop a search first."""
        if not self.main_grid().stop_searching():
            super().action_back()

    def action_errors_only(self) -> None:
        """Show only changes that were dropped, refused or never confirmed, or all."""
        self.main_grid().toggle_errors_only()

    def on_query_bar_asked(self, event: QueryBar.Asked) -> None:
        query = event.query
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


class TransactionScreen(RecordedPair):
    """Shows all changes of one transaction in order; Esc goes back."""

    mode: ClassVar[str] = "changes"
    own_list = True

    def __init__(self, host: ScreenHost, change: Change, bounds: WindowBounds) -> None:
        super().__init__(host)
        self.change = change
        self._bounds = bounds

    @classmethod
    def of(cls, host: ScreenHost, selection: ScreenSelection) -> Closer:
        """Return the screen of the selected change's transaction."""
        change, recording = selection.selected_change(), host.recording
        if change is None or recording is None:
            return "No change is selected"
        return cls._around(host, recording, change)

    @classmethod
    async def _around(cls, host: ScreenHost, recording: RecordingHost, change: Change) -> "TransactionScreen":
        start, stop = await recording.source.transaction(change.position)
        return cls(host, change, WindowBounds(start, stop))

    def body(self) -> Iterable[Widget]:
        pair = Container(
            RecordedChanges(self.recording, "Its changes", self._bounds),
            RecordedDetail(),
            id="changes-pair",
            classes="folder",
        )
        return (Detail(id="facts", title=self._called), pair)

    def on_mount(self) -> None:
        self.query_one("#facts", Detail).show(None, Content.styled("counting…", "$quiet"))
        self.run_worker(self._count(), exit_on_error=True)

    def crumbs(self) -> tuple[str, ...]:
        return ("Changes", self._called[0].lower() + self._called[1:])

    @property
    def _called(self) -> str:
        return _ALONE.get(self.change.operation, f"Transaction {self.change.xid}")

    async def _count(self) -> None:
        bounds = self._bounds
        stop = min(bounds.stop, bounds.start + _COUNTED)
        try:
            found = await self.recording.source.study(partial(counted, start=bounds.start, stop=stop))
        except BwtuiError as error:
            self.query_one("#facts", Detail).show(None, Content.styled(error.message, "$error"))
            return
        self.query_one("#facts", Detail).show(0, self._heading(bounds, stop, found))

    def _heading(self, bounds: WindowBounds, stop: int, found: TransactionCounts) -> Content:
        change, number = self.change, bounds.stop - bounds.start
        more = "" if stop == bounds.stop else f" (the first {stop - bounds.start:,} are counted here)"
        shown = list(found.by_table.items())[:8]
        width = max(len(name) for name in ("committed", *(table for table, _ in shown)))
        when = f"{moment(change.commit_time)}  lsn {change.lsn_text}  pass {change.pass_number}"
        place = (
            f"position {bounds.start:,}"
            if number == 1
            else f"positions {bounds.start:,} to {bounds.stop - 1:,}"
        )
        where = f"{number:,}{more}, {place}"
        lines = [
            _fact("committed", when, width),
            _fact("changes", where, width),
            *(_fact(table, ", ".join(words), width) for table, words in shown),
            _fact("messages", ", ".join(f"{figures.count(n)} {s}" for s, n in found.messages.items()), width),
        ]
        if change.is_repeat:
            lines.append(Content.styled("sent again: an earlier pass recorded it already", "$warning"))
        return Content("\n").join(lines)


def _fact(name: str, value: str, width: int) -> Content:
    return Content.assemble((f"{name:<{width}}  ", "$quiet"), value)


@lru_cache(8)
def columns_of(schemas: tuple[SchemaEntry, ...]) -> tuple[str, ...]:
    """Return the distinct column names of these schemas."""
    names: dict[str, None] = {}
    for entry in schemas:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            names |= dict.fromkeys(str(field["name"]) for field in json.loads(entry.schema)["fields"])
    return tuple(names)
