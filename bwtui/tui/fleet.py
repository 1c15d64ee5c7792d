"""All relays of this user: their states, the list of them, and the app that shows it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.model.status import Status
from bwtui.relay.process import last_status
from bwtui.relay.process.control import (
    ControlClient,
    RelayInTransition,
    RelayUnresponsive,
    does_not_answer,
    is_likely,
)
from bwtui.relay.process.lock import is_held
from bwtui.state_folder import relay_names
from bwtui.tui.app import RelayApp, run_app
from bwtui.tui.audit.session import AuditSession
from bwtui.tui.base import assessment, figures
from bwtui.tui.base.actions import Kind
from bwtui.tui.base.assessment import Assessment
from bwtui.tui.base.choices import Choices
from bwtui.tui.base.keys import key_for
from bwtui.tui.base.plain import Content, with_hint
from bwtui.tui.base.theme import TONES
from bwtui.tui.screens.base import DetailedList, RelayScreen
from bwtui.tui.sources.host import ScreenHost
from bwtui.tui.sources.model import Model, ScreenSnapshot, ViewSettings
from bwtui.tui.widgets.grid import Cell, Grid, GridColumn, Item, ItemList
from bwtui.tui.widgets.line import Detail

#: Timeout in seconds after which a relay counts as not answering.
PATIENCE = 2.0
#: Maximum seconds that a snapshot waits for answers; later answers are in the next one.
_AT_ONCE = 0.3
#: Seconds for which a relay is shown that failed or was killed before this list saw it running.
RECENT = 86_400.0


@dataclass(frozen=True, slots=True)
class RelayEntry:
    """One relay and its last known status."""

    name: str
    #: Its present status, the last one received, or the final one of a relay that has ended.
    status: Status | None = None
    runs: bool = False
    #: Why a running relay gives no status.
    silence: BwtuiError | None = None


async def status_of(name: str) -> Status:
    """Request a relay's status. Raises RelayUnresponsive, or ConnectionFailed if it is not running."""
    client = ControlClient(name)
    try:
        return await asyncio.wait_for(client.status(), PATIENCE)
    except TimeoutError as error:
        raise does_not_answer(name) from error
    finally:
        await client.close()


@dataclass(frozen=True, slots=True)
class Relays:
    """Functions that find relays and their states; tests replace them."""

    names: Callable[[], list[str]] = relay_names
    #: Returns whether a relay may be running; others are not polled.
    is_likely: Callable[[str], bool] = is_likely
    ask: Callable[[str], Awaitable[Status]] = status_of
    #: The final status of a relay that has ended.
    ended: Callable[[str], Status | None] = last_status.of_ended
    #: Returns whether a relay's process exists, with or without a socket.
    is_held: Callable[[str], bool] = is_held


class FleetModel(Model):
    """Polls every relay once per second; a slow one does not delay the others."""

    kind: Kind = "fleet"

    def __init__(self, relays: Relays | None = None, clock: Callable[[], float] = time.time) -> None:
        super().__init__("relays", clock)
        self._relays = relays or Relays()
        self._asking: dict[str, asyncio.Task[RelayEntry]] = {}
        self._entries: dict[str, RelayEntry] = {}
        #: Relays that were not running when they were first polled; None if there is nothing to show.
        self._old: dict[str, RelayEntry | None] = {}

    @property
    def relays(self) -> list[RelayEntry]:
        """Return the relays found so far, by name."""
        old = (entry for entry in self._old.values() if entry is not None)
        return sorted([*self._entries.values(), *old], key=lambda entry: entry.name)

    async def sample_status(self) -> None:
        """Poll the relays that have no pending request; collect the answers that have arrived."""
        for name in self._relays.names():
            if name in self._asking:
                continue
            if name in self._entries or self._relays.is_likely(name):
                self._asking[name] = asyncio.create_task(self._ask(name))
            elif name not in self._old:
                self._old[name] = self._recently_ended(name)
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=_AT_ONCE)
        for name, task in list(self._asking.items()):
            if task.done():
                del self._asking[name]
                self._take(task.result())
        self.remark = self._summary()
        self.live = replace(self.live, received=self.clock())

    def close(self) -> None:
        """Cancel all requests."""
        for task in self._asking.values():
            task.cancel()

    async def _ask(self, name: str) -> RelayEntry:
        before = self._entries.get(name)
        try:
            return RelayEntry(name, await self._relays.ask(name), runs=True)
        except RelayUnresponsive as error:
            return RelayEntry(name, before.status if before else None, runs=True, silence=error)
        except (BwtuiError, ValueError, TypeError, KeyError):
            if self._relays.is_held(name):
                # A relay that is ending may leave a truncated answer.
                silence = RelayInTransition(name, "the screens try again every second")
                return RelayEntry(name, before.status if before else None, runs=True, silence=silence)
            return RelayEntry(name, self._relays.ended(name))

    def _take(self, entry: RelayEntry) -> None:
        if not entry.runs and entry.name not in self._entries and self._recently_ended(entry.name) is None:
            # The socket is a leftover of a relay that ended long ago.
            self._old[entry.name] = None
            return
        self._old.pop(entry.name, None)
        self._entries[entry.name] = entry

    def _recently_ended(self, name: str) -> RelayEntry | None:
        """Return a relay that failed or was killed recently; a stopped one needs no attention."""
        status = self._relays.ended(name)
        if status is None or status.state == "stopped" or self.clock() - status.time > RECENT:
            return None
        return RelayEntry(name, status)

    def _summary(self) -> str:
        running = [entry for entry in self._entries.values() if entry.runs]
        silent = sum(entry.silence is not None for entry in running)
        stalled = sum(
            entry.silence is None and entry.status is not None and entry.status.state == "stalled"
            for entry in running
        )
        ended = len(self.relays) - len(running)
        counts = (
            (len(running), "running"),
            (stalled, "stalled"),
            (silent, "without an answer"),
            (ended, "not running"),
        )
        return ", ".join(f"{number} {state}" for number, state in counts if number) or "no relay is running"


COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("relay", "Relay", 14, grow=40),
    GridColumn("state", "State", 9),
    GridColumn("rate", "Rows/s", 6, "right"),
    GridColumn("behind", "Behind", 8, "right"),
    GridColumn("lag", "Lag", 7, "right"),
    GridColumn("retained", "Retains", 7, "right"),
    GridColumn("since", "Since", 8, "right"),
    GridColumn("slot", "Slot", 12, drop=1, grow=40),
    GridColumn("verdict", "Status", 30, drop=2, grow=160),
)
#: Relays that need attention come first.
_ORDER = ("bad", "warn", "good", "plain", "muted")
_DAY = 86_400.0


class FleetScreen(DetailedList):
    """Shows one row per relay and the details of the selected one; Enter attaches."""

    mode: ClassVar[str] = "fleet"

    def body(self) -> Iterable[Widget]:
        sortable = ("state", "relay", "rate", "behind", "lag", "retained", "since")
        listing = ItemList(COLUMNS, sortable, id="relays", noun="relays", title="Relays")
        listing.say_why_empty(
            f"no relay is running: start one with 'bwtui connect'; {key_for('leave')} quits"
        )
        return (listing, Detail(id="relay", title="Relay"))

    def crumbs(self) -> tuple[str, ...]:
        return ("Relays",)

    def paint(self, snapshot: ScreenSnapshot) -> None:
        entries = self._model.relays
        listing = self.query_one("#relays", ItemList)
        listing.set_items([_relay_item(entry, snapshot.received) for entry in entries], snapshot.received)
        self.show_selected()

    def open_row(self, grid: Grid) -> None:
        """Attach to the selected relay, or show why that is impossible."""
        entry: RelayEntry | None = self.selected_entry()
        if entry is None:
            return
        if entry.silence is not None:
            self._warn(with_hint(entry.silence))
        elif not entry.runs:
            self._warn(f"{entry.name} is not running, so there is nothing to attach to")
        else:
            self.host.attach(entry.name)

    @property
    def _model(self) -> FleetModel:
        model = self.host.model
        assert isinstance(model, FleetModel)
        return model

    def describe(self, entry: RelayEntry) -> tuple[object, Content]:
        content = _facts(entry)
        return content.markup, content


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
        return "it ended without reporting how"
    return entry.status.verdict.sentence or entry.status.detail


def _relay_item(entry: RelayEntry, now: float) -> Item:
    verdict, status = judge(entry), entry.status
    is_fresh = entry.runs and entry.silence is None
    tone = "" if is_fresh else "muted"
    rate = sum(table.rows_per_second for table in status.tables.values()) if status and is_fresh else 0.0
    since, seconds, lag, retained = _since(entry), 0.0, 0, 0
    if status is not None:
        seconds, lag, retained = status.wal_lag_seconds, status.wal_lag_bytes, status.retained_wal_bytes
    late = status is not None and is_fresh and assessment.of_lag(status).tone == "warn"
    cells = (
        Cell(verdict.mark, verdict.tone if verdict.tone != "plain" else ""),
        Cell(entry.name, "strong" if is_fresh else ""),
        Cell(
            verdict.word,
            verdict.tone if verdict.tone != "plain" else "",
            (_ORDER.index(verdict.tone), entry.name),
        ),
        Cell(figures.rate(rate) if is_fresh else figures.NONE, tone, rate),
        Cell(figures.duration(seconds) if status else figures.NONE, "warn" if late else tone, seconds),
        Cell(figures.size(lag) if status else figures.NONE, "warn" if late else tone, lag),
        Cell(assessment.retained(status) if status else figures.NONE, tone, retained),
        Cell(_when(since, now), "muted", since),
        Cell(status.slot if status else figures.NONE, "muted"),
        Cell(sentence_of(entry), verdict.tone if verdict.tone in ("warn", "bad") else "muted"),
    )
    search = f"{entry.name} {verdict.word} {status.slot if status else ''} {sentence_of(entry)}"
    return Item(entry.name, cells, search, verdict.tone in ("warn", "bad"), entry)


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
    label = "running since" if entry.runs and entry.silence is None else "last answer"
    lines.append(
        Content.assemble(
            (f"{label} {figures.moment(_since(entry))}, pid {status.pid}, ", "$quiet"),
            f"{status.database} → {status.broker or 'no Kafka'}",
        )
    )
    standing = [error for error in status.errors if not error.is_over]
    tables = f"slot {status.slot}, {len(status.tables):,} tables"
    wal = f"retains {assessment.retained(status)} of WAL ({status.wal_status or 'unknown'})"
    errors = f"{sum(error.count for error in standing):,} unresolved errors and warnings" if standing else ""
    lines.append(Content.assemble((f"{tables}, {wal}  ", "$quiet"), (errors, "$warning")))
    return Content("\n").join(lines)


class FleetApp(RelayApp):
    """Shows the list of relays; ends with the name of the chosen relay, or with none."""

    MODE_SCREENS: ClassVar[Mapping[str, Callable[[ScreenHost], RelayScreen]]] = {"fleet": FleetScreen}
    DEFAULT_MODE = "fleet"
    # Textual resolves the path relative to this file.
    CSS_PATH = "bwtui.tcss"

    def __init__(
        self, model: FleetModel, selected: str | None = None, choices: Choices | None = None
    ) -> None:
        """``selected`` is the relay to select first, such as the one that was just left."""
        super().__init__(model, ViewSettings(rate=1, choices=choices or Choices()), AuditSession())
        self.fleet = model
        self.chosen: str | None = None
        self._selected = selected

    async def sample(self) -> None:
        """Take a sample; select the initial relay once the list contains it."""
        await super().sample()
        if self._selected is not None and self.front is not None and self.front.ready:
            self.front.main_grid().move_to_key(self._selected)
            self._selected = None

    def attach(self, name: str) -> None:
        self.chosen = name
        self.exit("attach")

    def on_unmount(self) -> None:
        self.fleet.close()

    def ask_to_leave(self) -> None:
        """Leave without a question, because the relays keep running."""
        self.exit("quit")


def choose(selected: str | None = None, choices: Choices | None = None) -> str | None:
    """Show all relays until the user attaches to one, and return its name, or None if the user leaves.

    Raises BwtuiError if the screens ended with an error.
    """
    app = FleetApp(FleetModel(), selected, choices)
    run_app(app, "the relays were not changed: 'bwtui status' lists them")
    if app.return_code:
        raise BwtuiError("the screens failed", "'bwtui status' lists the relays")
    return app.chosen
