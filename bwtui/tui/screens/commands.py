"""Every statement and request of the relay's process, with its duration and result."""

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget

from bwtui.command_log import UNDER_WAY
from bwtui.model.service_views import CommandEntry, Commands, Look, LookName
from bwtui.tui import figures
from bwtui.tui.plain import Content
from bwtui.tui.screens.service_view import ServiceViewScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.item_list import Item, ItemList
from bwtui.tui.widgets.line import Line

#: Seconds from which on a command counts as slow.
SLOW = 1.0
COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("time", "Last", 8),
    GridColumn("count", "Count", 6, "right"),
    GridColumn("service", "Service", 10),
    GridColumn("mean", "Mean ms", 8, "right"),
    GridColumn("slowest", "Slowest", 8, "right", drop=1),
    GridColumn("text", "Statement or request", 24, grow=200),
    GridColumn("result", "Result", 9, grow=24),
)


class CommandsScreen(ServiceViewScreen):
    """Shows the list, newest first, and the selected command in full."""

    mode: ClassVar[str] = "log"
    wants_look: ClassVar[LookName | None] = "commands"
    service: ClassVar[str] = "its own process"

    def body(self) -> Iterable[Widget]:
        sortable = ("time", "count", "service", "mean", "slowest", "text", "result")
        listing = ItemList(COLUMNS, sortable, id="commands", noun="statements and requests")
        listing.border_title = "Log"
        listing.sort_by("time")
        return (Line(id="said"), listing, Detail(id="command", title="Command"))

    def show_look(self, look: Look, picture: ScreenSnapshot) -> Content:
        """Fill the list, and return its summary."""
        assert isinstance(look, Commands)
        self.query_one("#commands", ItemList).set_items(
            [_item(one) for one in look.commands], picture.received
        )
        self._show_selected()
        total = sum(entry.count for entry in look.commands)
        failed = sum(entry.count for entry in look.commands if _failed(entry))
        gone = f", {look.forgotten:,} older entries dropped" if look.forgotten else ""
        return Content.assemble(
            f" {total:,} statements and requests of the relay's process, ",
            (f"{failed:,} failed" if failed else "none failed", "$error" if failed else "$success"),
            (f"{gone}. The same ones are one line; values of rows are left out.", "$quiet"),
        )

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._show_selected()

    def row_text(self) -> str:
        entry = self._selected()
        return "" if entry is None else entry.text

    def _selected(self) -> CommandEntry | None:
        look = self.host.model.picture.looks.get("commands")
        key = self.query_one("#commands", ItemList).cursor_key
        entries = look.commands if isinstance(look, Commands) else ()
        return next((entry for entry in entries if _key(entry) == key), None)

    def _show_selected(self) -> None:
        detail, entry = self.query_one("#command", Detail), self._selected()
        if entry is None:
            detail.show(None, Content.styled("nothing selected", "$quiet"))
        else:
            detail.show(entry, _text(entry))


def _failed(entry: CommandEntry) -> bool:
    # The registry answers 404 when it is asked whether something exists, so that is not a failure.
    return entry.result not in ("", UNDER_WAY, "HTTP 404")


def _key(entry: CommandEntry) -> str:
    return f"{entry.service}\0{entry.text}\0{entry.result}"


def _mean(entry: CommandEntry) -> float:
    return entry.total / max(entry.count, 1)


def _tone(entry: CommandEntry) -> str:
    if _failed(entry):
        return "bad"
    return "warn" if entry.result == UNDER_WAY and entry.seconds >= SLOW else ""


def _item(entry: CommandEntry) -> Item:
    tone = _tone(entry)
    marks = {"bad": "✗", "warn": "▲"}
    cells = (
        Cell(marks.get(tone, " "), tone),
        Cell(figures.clock(entry.time), "muted"),
        Cell(figures.count(entry.count), "" if entry.count > 1 else "muted"),
        Cell(entry.service),
        Cell(figures.milliseconds(_mean(entry)), "warn" if _mean(entry) >= SLOW else ""),
        Cell(figures.milliseconds(entry.slowest), "warn" if entry.slowest >= SLOW else "muted"),
        Cell(entry.text, "strong" if entry.result == UNDER_WAY else ""),
        Cell(entry.result or "✓", tone or ("muted" if entry.result else "good")),
    )
    values = {
        "time": entry.time,
        "count": entry.count,
        "service": entry.service,
        "mean": _mean(entry),
        "slowest": entry.slowest,
        "text": entry.text,
        "result": entry.result,
    }
    return Item(_key(entry), cells, values, f"{entry.service} {entry.text} {entry.result}", tone == "bad")


def _text(entry: CommandEntry) -> Content:
    times = "once" if entry.count == 1 else f"{entry.count:,} times since {figures.clock(entry.first)}"
    took = f"last {figures.milliseconds(entry.seconds)} ms"
    if entry.count > 1:
        mean, slowest = figures.milliseconds(_mean(entry)), figures.milliseconds(entry.slowest)
        took += f", mean {mean} ms, slowest {slowest} ms, together {figures.duration(entry.total)}"
    result = entry.result or "succeeded"
    return Content("\n\n").join(
        [
            Content.styled(entry.text, "bold"),
            Content.styled(f"{entry.service}: {result}", "$error" if _failed(entry) else "$success"),
            Content.styled(f"{times}, last at {figures.precise_clock(entry.time)}; {took}", "$quiet"),
        ]
    )
