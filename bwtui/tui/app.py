"""The application: samples the relay, feeds the screens, and says how it ended."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from textual.app import App
from textual.binding import BindingType
from textual.command import Provider
from textual.filter import LineFilter
from textual.screen import Screen
from textual.worker import Worker

from bwtui.console import say
from bwtui.errors import BwtuiError
from bwtui.model.looks import LookName
from bwtui.relay.process.control import ControlClient
from bwtui.shown import shown, shown_lines
from bwtui.tui.action import choose_keys
from bwtui.tui.actions import why_absent
from bwtui.tui.audit.kafka import KafkaSide
from bwtui.tui.audit.session import AuditSession, RelayAuditSession
from bwtui.tui.choices.chosen import Choices
from bwtui.tui.choices.themes import cycle
from bwtui.tui.host import Host, Opener, RecordingHost, Selection
from bwtui.tui.keys import key_for
from bwtui.tui.palette import ActionProvider
from bwtui.tui.plain import LastWord
from bwtui.tui.running import run_app
from bwtui.tui.screens.audit.relay import RelayAuditing
from bwtui.tui.screens.audit.report import ReportScreen
from bwtui.tui.screens.backfills import BackfillsScreen, ask_to_send
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.screens.changes import ChangesScreen
from bwtui.tui.screens.commands import CommandsScreen
from bwtui.tui.screens.consumers import ConsumersScreen
from bwtui.tui.screens.dialogs import Ending, LeaveScreen
from bwtui.tui.screens.errors import ErrorsScreen
from bwtui.tui.screens.journey.live import LiveJourney
from bwtui.tui.screens.letters import LettersScreen
from bwtui.tui.screens.overview import OverviewScreen
from bwtui.tui.screens.registry import RegistryScreen
from bwtui.tui.screens.settings import SettingsScreen
from bwtui.tui.screens.slots import SlotsScreen
from bwtui.tui.screens.table import TableScreen
from bwtui.tui.screens.transactions import TransactionsScreen
from bwtui.tui.screens.versions import VersionsScreen
from bwtui.tui.state import DataSource, Fleet, Model, RelayModel, Session
from bwtui.tui.theme import WithoutColours, named

#: Seconds between two looks at the sample of changes, which is larger than a status.
CHANGES_EVERY = 0.5
#: The same while another screen is shown: often enough that the relay still holds every one of them.
CHANGES_ASIDE_EVERY = 3.0
#: Seconds between two questions for what a screen shows of the services, and for what it glances at.
LOOK_EVERY, GLANCE_EVERY = 1.0, 5.0
#: The first while it lacks something that was asked for.
LOOK_SOON = 0.25
#: Seconds between two pictures of nothing but other figures: twice a second is as fast as people read.
PAINT_EVERY = 0.45
#: So long the screens wait for figures before they are drawn without any.
FIRST_SECONDS = 0.5
#: Seconds between attempts to find a relay that is gone.
RETRY_EVERY = 1.0
#: So long nothing is drawn once another screen was chosen, which has caught up by then; Textual waits 50 ms.
SWITCH_SECONDS = 0.005


class RelayApp(RelayAuditing):
    """The screens over a relay; returns how the user left."""

    TITLE = "bwtui"
    CSS_PATH = "bwtui.tcss"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {ActionProvider}
    BINDINGS: ClassVar[list[BindingType]] = []
    #: Screens by the name of their mode; the key of each is in `bwtui.tui.actions`.
    MODE_SCREENS: ClassVar[Mapping[str, Callable[[Host], RelayScreen]]] = {
        "overview": OverviewScreen,
        "changes": ChangesScreen,
        "registry": RegistryScreen,
        "errors": ErrorsScreen,
        "audit": ReportScreen,
        "slots": SlotsScreen,
        "consumers": ConsumersScreen,
        "log": CommandsScreen,
        "settings": SettingsScreen,
        "transactions": TransactionsScreen,
    }
    #: Screens that look closer at what is selected.
    OPENERS: ClassVar[Mapping[str, Opener]] = {
        "table": TableScreen.of,
        "versions": VersionsScreen.of,
        "letters": LettersScreen.of,
        "journey": LiveJourney.of,
        "backfills": BackfillsScreen.of,
    }
    DEFAULT_MODE = "overview"

    #: The screen to begin with, if it is not the overview.
    first_mode = ""
    _last_word = LastWord()
    _without_colours = WithoutColours()

    def __init__(
        self,
        model: Model,
        session: Session | None = None,
        audit: AuditSession | None = None,
    ) -> None:
        super().__init__()
        self.session = session or Session()
        self.model = model
        model.readonly = self.session.choices.readonly
        choose_keys(self.session.choices.keys)
        self.audit = audit or RelayAuditSession(model.name)
        self.stopping = False
        self._asked_changes = self._asked_look = float("-inf")
        self._asked_status = float("-inf")
        self._glanced: dict[LookName, float] = {}
        self._painted = float("-inf")
        self._told: object = None
        self._sampling: Worker[None] | None = None
        self._leaving: Worker[None] | None = None
        for mode, screen in self.MODE_SCREENS.items():
            self.add_mode(mode, partial(screen, self))
        first = self.session.choices.theme or named(self.session.theme)
        self._themes = cycle(first)
        for theme in self._themes:
            self.register_theme(theme)
        self._begin_with(first.name)

    def _begin_with(self, theme: str) -> None:
        """Take a theme before anything is styled; a later one has the whole style sheet read again."""
        self.set_reactive(App.theme, theme)
        dark = self.current_theme.dark
        classes = {f"-theme-{theme}": True, "-dark-mode": dark, "-light-mode": not dark}
        self.update_classes(classes, update=False)
        self._refresh_truecolor_filter(self.ansi_theme)
        self.stylesheet.set_variables(self.get_css_variables())

    def delay_update(self, delay: float = SWITCH_SECONDS) -> None:
        """See Textual's, whose screens would flicker without; ours are painted before they are shown."""
        super().delay_update(min(delay, SWITCH_SECONDS))

    @property
    def recording(self) -> RecordingHost | None:
        """None: a relay is shown."""
        return None

    async def on_load(self) -> None:
        """Have figures for the first picture, where they come soon; else it says what it waits for."""
        # From Python 3.12 on Textual has tasks begin at once: a widget is then mounted before its screen is
        # on the stack, and an Input ends the app.
        asyncio.get_running_loop().set_task_factory(None)
        first = asyncio.create_task(self.model.sample_status())
        await asyncio.wait({first}, timeout=FIRST_SECONDS)

    def on_mount(self) -> None:
        if self.first_mode:
            self.switch_mode(self.first_mode)
        self.ticking = self.set_interval(1 / min(max(self.session.rate, 1), 10), self.tick)
        self.tick()

    def tick(self) -> None:
        """Sample, unless the last answer is still awaited; and let ages grow on screen meanwhile."""
        if self._sampling is None or self._sampling.is_finished:
            now = self.model.clock()
            if self.model.failure is None or abs(now - self._asked_status) >= RETRY_EVERY:
                self._asked_status = now
                # The method, not its coroutine: one that the end of the app never starts would be warned of.
                self._sampling = self.run_worker(self.sample, exit_on_error=True)
                return
        self.refresh_screens()

    async def sample(self) -> None:
        """Take one sample and show it."""
        self.show_background()
        model, screen = self.model, self.front
        await model.sample_status()
        if model.failure is None:
            now = model.clock()
            is_seen = screen is not None and screen.wants_changes
            if abs(now - self._asked_changes) >= (CHANGES_EVERY if is_seen else CHANGES_ASIDE_EVERY):
                self._asked_changes = now
                await model.sample_changes()
            await self._sample_look(screen)
            await model.sample_schemas()
        if self._is_worth_painting():
            self.refresh_screens()
        self._leave_when_stopped()

    def _is_worth_painting(self) -> bool:
        """Tell whether the relay is another way than it was, or figures were painted long enough ago."""
        model = self.model
        now, status = model.clock(), model.live.status
        told: object = (model.link, model.failure)
        if status is not None:
            verdict = status.verdict
            how = (verdict.condition, verdict.cause, verdict.dependency, verdict.stage, status.exit_code)
            told = (model.link, model.failure, status.state, status.pid, len(status.errors), *how)
        if told == self._told and 0 < now - self._painted < PAINT_EVERY:
            return False
        self._told, self._painted = told, now
        return True

    async def _sample_look(self, screen: RelayScreen | None) -> None:
        """Ask for what the screen shows of the services; nobody else has them asked."""
        if screen is None:
            return
        now = self.model.clock()
        every = LOOK_SOON if screen.hurries else LOOK_EVERY
        if screen.wants_look is not None and abs(now - self._asked_look) >= every:
            self._asked_look = now
            await self.model.sample_look(screen.wants_look, screen.look_about())
        for name in screen.glances:
            known = self.model.live.looks.get(name)
            is_fresh = known is not None and now - known.time < 2 * GLANCE_EVERY
            if abs(now - self._glanced.get(name, float("-inf"))) >= (
                GLANCE_EVERY if is_fresh else LOOK_EVERY
            ):
                self._glanced[name] = now
                await self.model.sample_look(name, glance=True)

    @property
    def front(self) -> RelayScreen | None:
        """The screen that shows the relay, also while a dialog lies over it."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, RelayScreen):
                return screen
        return None

    def refresh_screens(self) -> None:
        """Paint the screen that is seen; the others catch up when they are."""
        if self.is_running and self.front is not None:
            self.front.refresh_picture()

    # What may reach the terminal.

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Look at every line once more before it goes out."""
        colours = (self._without_colours,) if self.no_color else ()
        return (*super().get_line_filters(), self._last_word, *colours)

    def notify(self, message: str, *, title: str = "", **more: Any) -> None:
        """Show a notice; nothing in it is markup, whatever the caller says."""
        super().notify(shown_lines(message), title=shown(title), **{**more, "markup": False})

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text as it is; for what is no character a terminal has no bytes."""
        super().copy_to_clipboard(text.encode("utf-8", "replace").decode())

    # What the screens ask for.

    def next_theme(self) -> None:
        """Go on to the next theme."""
        names = [theme.name for theme in self._themes]
        self.theme = names[(names.index(self.theme) + 1) % len(names)]

    def watch_theme(self) -> None:
        """Paint what has colours of its own, however the theme was chosen."""
        # Its colours are known once the style sheet was read again, which stands in this queue already.
        self.call_next(self.refresh_screens)

    def show_mode(self, mode: str) -> None:
        """Go to a screen, or say why it isn't there; from deeper inside the same one, back to its start."""
        if mode not in self.MODE_SCREENS:
            self.notify(why_absent(mode), severity="warning", timeout=4)
            return
        if mode == self.current_mode:
            while len(self.screen_stack) > 1:
                self.pop_screen()
        else:
            self.switch_mode(mode)
        # A screen that needs changes or a look should not wait for the next turn.
        self._asked_changes = self._asked_look = self._painted = float("-inf")

    def ask_to_send_table(self, table: str | None) -> None:
        """Ask whether all rows of a table are to be sent again."""
        ask_to_send(self, self.model.name, table, self.model.picture.status)

    def look_closer(self, name: str, selection: Selection) -> None:
        """Open a screen about what is selected, or say why that can't be."""
        closer = self.OPENERS[name](self, selection)
        if isinstance(closer, str):
            self.notify(closer, severity="warning", timeout=4)
        elif isinstance(closer, Screen):
            self.push_screen(closer)
        else:
            self.run_worker(self._push_later(closer), exit_on_error=True)

    async def _push_later(self, closer: Awaitable[Screen[None]]) -> None:
        self.push_screen(await closer)

    async def action_quit(self) -> None:
        """Textual's own way out asks as well."""
        self.ask_to_leave()

    def action_help_quit(self) -> None:
        """So does Ctrl+C where nothing is selected."""
        self.ask_to_leave()

    def leave_to_fleet(self, *, by_escape: bool) -> None:
        """Go to the list of all relays, or say why not; by Escape only where the user came from there."""
        fleet = self.session.fleet
        if by_escape and fleet != "listed":
            return
        if fleet == "no":
            text = "This terminal started the relay: 'bwtui attach' in another one shows all that run"
            self.notify(text, timeout=4)
        elif self.audit.job is not None:
            running = f"{self.audit.job.title} is still running, and would end"
            text = f"{running}: {key_for('verify')} shows how far it is"
            self.notify(text, severity="warning", timeout=4)
        else:
            self.exit("fleet")

    def attach(self, name: str) -> None:
        """Attach to a relay of that list; only the list does."""

    def ask_to_leave(self) -> None:
        """Ask how to leave; where nothing may be changed, there is only one way."""
        if isinstance(self.screen, LeaveScreen):
            return
        model = self.model
        running = model.link in ("live", "stale") and not self.stopping
        if model.readonly:
            self._end_with("detach" if running else "quit")
            return
        self.push_screen(LeaveScreen(model.name, self.session, running=running), self._leave)

    def _leave(self, ending: Ending | None) -> None:
        if ending == "stop":
            self.stopping = True
            self.run_worker(self._stop(), exit_on_error=True)
        elif ending is not None:
            self._end_with(ending)

    def _end_with(self, ending: Ending) -> None:
        """Leave, once what runs beside the screens has ended with them."""
        if self.audit.job is None:
            self.exit(ending)
        elif self._leaving is None:
            self._leaving = self.run_worker(self._end_and_leave(ending), exit_on_error=True)

    async def _end_and_leave(self, ending: Ending) -> None:
        await self.end_job()
        self.exit(ending)

    async def _stop(self) -> None:
        try:
            await self.model.stop()
        except BwtuiError as error:
            self.stopping = False
            self.notify(str(error), severity="error")
        self.refresh_screens()

    def _leave_when_stopped(self) -> None:
        status = self.model.live.status
        ended = status is not None and status.state in ("stopped", "failed")
        if self.stopping and (ended or self.model.link == "gone"):
            self._end_with("stop")


def run(
    name: str,
    *,
    owned: bool,
    fleet: Fleet = "no",
    rate: float = 4.0,
    theme: str = "dark",
    kafka: Callable[[], KafkaSide] | None = None,
    choices: Choices | None = None,
) -> int | None:
    """Show the relay called ``name`` until the user leaves, and return the exit code for this command.

    None: to the list of all relays. ``owned`` says that this terminal started the relay. ``rate`` is in
    samples a second, at most 10. ``kafka`` makes what reads single records, for the report of an audit;
    ``choices`` are the user's.
    """
    session = Session(owned=owned, fleet=fleet, rate=rate, theme=theme, choices=choices or Choices())
    return run_source(ControlClient(name), session, RelayAuditSession(name, kafka))


def run_source(source: DataSource, session: Session, audit: RelayAuditSession | None = None) -> int | None:
    """Show a relay until the user leaves, and return the exit code; None: to the list of all relays."""
    app = RelayApp(RelayModel(source), session, audit)
    name = source.name
    ways = f"'bwtui attach {name}' shows it, 'bwtui stop {name}' ends it"
    ending = run_app(app, f"relay {name} was left as it was: {ways}")
    if app.return_code:
        return app.return_code
    if ending == "fleet":
        return None
    status = app.model.live.status
    if ending == "detach":
        say(f"bwtui: relay {name} runs on: {ways}", err=True)
        return 0
    return status.exit_code or 0 if status is not None else 0
