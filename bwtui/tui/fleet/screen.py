"""The list of all relays."""

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget

from bwtui.relay.process.control import RelayUnresponsive
from bwtui.tui import assessment, figures
from bwtui.tui.assessment import Assessment
from bwtui.tui.fleet.model import FleetModel, RelayEntry
from bwtui.tui.keys import key_for
from bwtui.tui.plain import Content, with_hint
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.theme import TONES
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.item_list import Item, ItemList

COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("relay", "Relay", 14, grow=40),
    GridColumn("state", "State", 9),
    GridColumn("rate", "Rows/s", 6, "right"),
    GridColumn("behind", "Behind", 8, "right"),
    GridColumn("lag", "Lag", 7, "right"),
    GridColumn("kept", "Keeps", 7, "right"),
    GridColumn("since", "Since", 8, "right"),
    GridColumn("slot", "Slot", 12, drop=1, grow=40),
    GridColumn("verdict", "How it is", 30, drop=2, grow=160),
)
#: Relays that need attention come first.
_ORDER = ("bad", "warn", "good", "plain", "muted")
_DAY = 86_400.0


class FleetScreen(RelayScreen):
    """Shows one row per relay and the details of the selected one; Enter attaches."""

    mode: ClassVar[str] = "fleet"

    def body(self) -> Iterable[Widget]:
        """Return the list and the details of the selected relay."""
        sortable = ("state", "relay", "rate", "behind", "lag", "kept", "since")
        listing = ItemList(COLUMNS, sortable, id="relays", noun="relays")
        listing.border_title = "Relays"
        listing.say_why_empty(
            f"no relay is running: start one with 'bwtui connect'; {key_for('leave')} leaves"
        )
        return (listing, Detail(id="relay", title="Relay"))

    def crumbs(self) -> tuple[str, ...]:
        return ("Relays",)

    def paint(self, picture: ScreenSnapshot) -> None:
        entries = self._model.relays
        listing = self.query_one("#relays", ItemList)
        listing.set_items([_item(entry, picture.received) for entry in entries], picture.received)
        self._show_selected()

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._show_selected()

    def open_row(self, grid: Grid) -> None:
        """Attach to the selected relay, or show why that is impossible."""
        entry = self._selected()
        if entry is None:
            return
        if entry.silence is not None:
            self._warn(with_hint(entry.silence))
        elif not entry.runs:
            self._warn(f"{entry.name} is not running: there is nothing to attach to")
        else:
            self.host.attach(entry.name)

    @property
    def _model(self) -> FleetModel:
        model = self.host.model
        assert isinstance(model, FleetModel)
        return model

    def _selected(self) -> RelayEntry | None:
        key = self.main_grid().cursor_key
        return next((entry for entry in self._model.relays if entry.name == key), None)

    def _show_selected(self) -> None:
        entry, detail = self._selected(), self.query_one("#relay", Detail)
        if entry is None:
            detail.show(None, Content.styled("nothing selected", "$quiet"))
        else:
            content = _facts(entry)
            detail.show(content.markup, content)


def judge(entry: RelayEntry) -> Assessment:
    """Return the verdict on a relay in one word."""
    if entry.silence is not None:
        is_deaf = isinstance(entry.silence, RelayUnresponsive)
        return Assessment("bad", "NO ANSWER") if is_deaf else Assessment("warn", "CHANGING")
    return Assessment("muted", "ENDED") if entry.status is None else assessment.of_status(entry.status)


def sentence_of(entry: RelayEntry) -> str:
    """Return the state of a relay as a sentence."""
    if entry.silence is not None:
        return entry.silence.message
    if entry.status is None:
        return "it runs no more, and has not said how it ended"
    return entry.status.verdict.sentence or entry.status.detail


def _item(entry: RelayEntry, now: float) -> Item:
    verdict, status = judge(entry), entry.status
    is_fresh = entry.runs and entry.silence is None
    tone = "" if is_fresh else "muted"
    rate = sum(table.rows_per_second for table in status.tables.values()) if status and is_fresh else 0.0
    since = _since(entry)
    late = status is not None and is_fresh and assessment.of_lag(status).tone == "warn"
    cells = (
        Cell(verdict.mark, verdict.tone if verdict.tone != "plain" else ""),
        Cell(entry.name, "strong" if is_fresh else ""),
        Cell(verdict.word, verdict.tone if verdict.tone != "plain" else ""),
        Cell(figures.rate(rate) if is_fresh else figures.NONE, tone),
        Cell(figures.duration(status.wal_lag_seconds) if status else figures.NONE, "warn" if late else tone),
        Cell(figures.size(status.wal_lag_bytes) if status else figures.NONE, "warn" if late else tone),
        Cell(assessment.retained(status) if status else figures.NONE, tone),
        Cell(_when(since, now), "muted"),
        Cell(status.slot if status else figures.NONE, "muted"),
        Cell(sentence_of(entry), verdict.tone if verdict.tone in ("warn", "bad") else "muted"),
    )
    values = {
        "state": (_ORDER.index(verdict.tone), entry.name),
        "relay": entry.name,
        "rate": rate,
        "behind": status.wal_lag_seconds if status else 0.0,
        "lag": status.wal_lag_bytes if status else 0,
        "kept": status.retained_wal_bytes if status else 0,
        "since": since,
    }
    search = f"{entry.name} {verdict.word} {status.slot if status else ''} {sentence_of(entry)}"
    return Item(entry.name, cells, values, search, verdict.tone in ("warn", "bad"))


def _since(entry: RelayEntry) -> float:
    """Return the start time of a running relay; otherwise the time of its last status."""
    if entry.status is None:
        return 0.0
    return entry.status.started if entry.runs and entry.silence is None else entry.status.time


def _when(moment: float, now: float) -> str:
    if not moment:
        return figures.NONE
    return figures.clock(moment) if abs(now - moment) < _DAY else figures.moment(moment)[2:10]


def _facts(entry: RelayEntry) -> Content:
    verdict, status = judge(entry), entry.status
    lines = [
        Content.assemble(
            (f"{verdict.mark} {verdict.word}  ", f"bold {TONES[verdict.tone]}"), (sentence_of(entry), "bold")
        )
    ]
    hint = entry.silence.hint if entry.silence is not None else status.verdict.hint if status else ""
    if hint:
        lines.append(Content.styled(f"→ {hint}", "$warning"))
    if status is None:
        return Content("\n").join(lines)
    what = "running since" if entry.runs and entry.silence is None else "last answer"
    lines.append(
        Content.assemble(
            (f"{what} {figures.moment(_since(entry))}, pid {status.pid}, ", "$quiet"),
            f"{status.database} → {status.broker or 'no Kafka'}",
        )
    )
    standing = [error for error in status.errors if not error.is_over]
    tables = f"slot {status.slot}, {len(status.tables):,} tables"
    wal = f"retains {assessment.retained(status)} of WAL ({status.wal_status or 'unknown'})"
    errors = f"{sum(error.count for error in standing):,} errors and warnings stand" if standing else ""
    lines.append(Content.assemble((f"{tables}, {wal}  ", "$quiet"), (errors, "$warning")))
    return Content("\n").join(lines)
