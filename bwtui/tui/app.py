"""The app over a relay: samples the relay, updates the screens, and returns how the user left."""

import asyncio
import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from textual import events
from textual.app import App
from textual.binding import BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.filter import LineFilter
from textual.screen import Screen
from textual.widgets import Input
from textual.worker import Worker

from bwtui import terminal
from bwtui.console import say
from bwtui.errors import BwtuiError, Interrupted
from bwtui.escaping import escape, escape_lines
from bwtui.model.service_views import LookName
from bwtui.relay.process.control import ControlClient
from bwtui.tui.audit.records import SingleRecordReader
from bwtui.tui.audit.session import AuditSession, RelayAuditSession
from bwtui.tui.base.actions import Action, actions, choose_keys, why_absent
from bwtui.tui.base.choices import Choices, cycle
from bwtui.tui.base.keys import key_for, key_text
from bwtui.tui.base.plain import PrintableFilter
from bwtui.tui.base.theme import NoColourFilter, named
from bwtui.tui.screens.audit import ReportScreen
from bwtui.tui.screens.backfills import BackfillsScreen, ask_to_send
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.screens.changes import ChangesScreen, TableScreen
from bwtui.tui.screens.dialogs import Ending, LeaveScreen
from bwtui.tui.screens.errors import DeadLettersScreen, ErrorsScreen
from bwtui.tui.screens.jobs import JobsApp, RelayAuditing
from bwtui.tui.screens.journey import LiveJourney
from bwtui.tui.screens.overview import OverviewScreen
from bwtui.tui.screens.registry import RegistryScreen, VersionsScreen
from bwtui.tui.screens.services import CommandsScreen, ConsumersScreen, SettingsScreen, SlotsScreen
from bwtui.tui.screens.transactions import TransactionsScreen
from bwtui.tui.sources.host import Opener, RecordingHost, ScreenHost, ScreenSelection
from bwtui.tui.sources.model import Fleet, Model, ViewSettings
from bwtui.tui.sources.relay_model import DataSource, RelayModel

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Maximum seconds that screens may take to close after a signal.
_CLOSE_SECONDS = 10.0


T = TypeVar("T")


def run_app(app: App[T], hint: str) -> T | None:
    """Run ``app`` until the user leaves, and return its result.

    Raises Interrupted with ``hint`` after a signal.
    """
    # A worker created while the screens end may never start; Python would print a warning about it.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    with _closed_by_signals(app) as interrupted:
        ending = app.run()
    if interrupted.is_set():
        raise Interrupted("interrupted", hint)
    return ending


@contextlib.contextmanager
def _closed_by_signals(app: App[Any]) -> Iterator[threading.Event]:
    """Close the app on a signal; yield an event that the signal sets."""
    put_back, interrupted = terminal.restorer(), threading.Event()

    def end() -> None:
        put_back()
        os._exit(Interrupted.exit_code)

    last = threading.Timer(_CLOSE_SECONDS, end)
    last.daemon = True

    def close(*_: object) -> None:
        if interrupted.is_set() or terminal.is_closed():
            end()
        interrupted.set()
        last.start()
        with contextlib.suppress(RuntimeError):
            # Without a running loop the app has ended or not started yet; the timer then ends the process.
            asyncio.get_running_loop().call_soon_threadsafe(app.exit)

    before = {number: signal.signal(number, close) for number in _SIGNALS}
    try:
        yield interrupted
    finally:
        last.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


class ActionProvider(Provider):
    """Offers every action by its label and description."""

    async def discover(self) -> Hits:
        for action in self._actions():
            yield DiscoveryHit(_title(action), self._runner(action), help=action.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in self._actions():
            text = f"{_title(action)} {action.help}"
            score = matcher.match(text)
            if score > 0:
                yield Hit(score, matcher.highlight(_title(action)), self._runner(action), help=action.help)

    def _actions(self) -> list[Action]:
        assert isinstance(self.app, JobsApp)
        return actions(self.app.model.kind, readonly=self.app.model.readonly)

    def _runner(self, action: Action) -> Callable[[], object]:
        namespace = self.screen if action.scope == "screen" else self.focused
        return partial(self.app.run_action, action.name, namespace)


def _title(action: Action) -> str:
    return f"{action.label}  ({key_text(action)})"


#: Seconds between two requests for the sample of changes, which is larger than a status.
CHANGES_EVERY = 0.5
#: The same while a different screen is shown: often enough that the relay still holds every sampled change.
CHANGES_ASIDE_EVERY = 3.0
#: Seconds between two polls of the service view that a screen shows, and of those that it polls at the slower
#: rate.
LOOK_EVERY, GLANCE_EVERY = 1.0, 5.0
#: Seconds between polls while the screen still lacks requested data.
LOOK_SOON = 0.25
#: Minimum seconds between two paintings in which only figures differ: people can't read faster changes.
PAINT_EVERY = 0.45
#: Maximum seconds to wait for the first figures; after that the screens are drawn without any.
FIRST_SECONDS = 0.5
#: Seconds between attempts to reach a relay that does not answer.
RETRY_EVERY = 1.0
#: Seconds without drawing after a change of screen, while the new screen is painted; Textual waits 50 ms.
SWITCH_SECONDS = 0.005


class RelayApp(RelayAuditing):
    """Shows the screens over a relay; returns how the user left."""

    TITLE = "bwtui"
    CSS_PATH = "bwtui.tcss"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {ActionProvider}
    BINDINGS: ClassVar[list[BindingType]] = []
    #: Screens by the name of their mode; `bwtui.tui.base.actions` has the key of each.
    MODE_SCREENS: ClassVar[Mapping[str, Callable[[ScreenHost], RelayScreen]]] = {
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
    #: Detail screens about the selected row.
    OPENERS: ClassVar[Mapping[str, Opener]] = {
        "table": TableScreen.of,
        "versions": VersionsScreen.of,
        "letters": DeadLettersScreen.of,
        "journey": LiveJourney.of,
        "backfills": BackfillsScreen.of,
    }
    DEFAULT_MODE = "overview"

    #: The mode to start in, if not the overview.
    first_mode = ""
    _printable = PrintableFilter()
    _without_colours = NoColourFilter()

    def __init__(
        self, model: Model, session: ViewSettings | None = None, audit: AuditSession | None = None
    ) -> None:
        super().__init__()
        self.session = session or ViewSettings()
        self.model = model
        model.readonly = self.session.choices.readonly
        choose_keys(self.session.choices.keys)
        self.audit = audit or RelayAuditSession(model.name)
        self.stopping = False
        self._changes_queried = self._view_queried = float("-inf")
        self._status_queried = float("-inf")
        self._glanced: dict[LookName, float] = {}
        self._painted = float("-inf")
        self._painted_state: object = None
        self._sampling: Worker[None] | None = None
        self._leaving: Worker[None] | None = None
        #: Keys that were typed before their screen was shown.
        self._typed_ahead: list[events.Key] = []
        for mode, screen in self.MODE_SCREENS.items():
            self.add_mode(mode, partial(screen, self))
        first = self.session.choices.theme or named(self.session.theme)
        self._themes = cycle(first)
        for theme in self._themes:
            self.register_theme(theme)
        self._begin_with(first.name)

    def _begin_with(self, theme: str) -> None:
        """Set a theme before anything is styled; later, Textual would parse the style sheet again."""
        self.set_reactive(App.theme, theme)
        dark = self.current_theme.dark
        classes = {f"-theme-{theme}": True, "-dark-mode": dark, "-light-mode": not dark}
        self.update_classes(classes, update=False)
        self._refresh_truecolor_filter(self.ansi_theme)
        self.stylesheet.set_variables(self.get_css_variables())

    async def on_event(self, event: events.Event) -> None:
        """Handle a key before the next one, so that the next one goes to what this one opens.

        Textual sends a key through the queues of the focused widget and its parents, and keys that are typed
        meanwhile after it.
        """
        if not isinstance(event, events.Key) or event.is_forwarded:
            await super().on_event(event)
        elif self._typed_ahead or not self.screen.stack_updates:
            self._hold(event)
        elif isinstance(self.focused, Input) and event.is_printable:
            self.app_focus = True
            await self.focused.on_event(event)
        elif await self._check_bindings(event.key, priority=True) or await self._check_bindings(event.key):
            self.app_focus = True
        else:
            await super().on_event(event)

    def _hold(self, key: events.Key) -> None:
        """Keep a key until the screen for which it was typed has been shown and has its focus."""
        if not self._typed_ahead:
            self.screen.call_later(self.call_later, self._handle_typed_ahead)
        self._typed_ahead.append(key)

    async def _handle_typed_ahead(self) -> None:
        keys, self._typed_ahead = self._typed_ahead, []
        for key in keys:
            await self.on_event(key)

    def delay_update(self, delay: float = SWITCH_SECONDS) -> None:
        """Shorten Textual's delay against flicker: these screens are painted before they are shown."""
        super().delay_update(min(delay, SWITCH_SECONDS))

    @property
    def recording(self) -> RecordingHost | None:
        """None, because a relay is shown."""
        return None

    async def on_load(self) -> None:
        """Wait briefly for the first figures; without them the first painting says what it waits for."""
        # From Python 3.12 on, Textual starts tasks eagerly: a widget is then mounted before its screen is on
        # the stack, and an Input ends the app.
        asyncio.get_running_loop().set_task_factory(None)
        first = asyncio.create_task(self.model.sample_status())
        await asyncio.wait({first}, timeout=FIRST_SECONDS)

    def on_mount(self) -> None:
        if self.first_mode:
            self.switch_mode(self.first_mode)
        self.ticking = self.set_interval(1 / min(max(self.session.rate, 1), 10), self.tick)
        self.tick()

    def tick(self) -> None:
        """Take a sample if the last one has finished; otherwise repaint, so that ages grow on screen."""
        if self._sampling is None or self._sampling.is_finished:
            now = self.model.clock()
            if self.model.failure is None or abs(now - self._status_queried) >= RETRY_EVERY:
                self._status_queried = now
                # Pass the method, not its coroutine: if the app ended first, Python would warn that the
                # coroutine was never awaited.
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
            if abs(now - self._changes_queried) >= (CHANGES_EVERY if is_seen else CHANGES_ASIDE_EVERY):
                self._changes_queried = now
                await model.sample_changes()
            await self._sample_view(screen)
            await model.sample_schemas()
        if self._is_worth_painting():
            self.refresh_screens()
        self._leave_when_stopped()

    def _is_worth_painting(self) -> bool:
        """Return whether the relay's condition has changed, or the last painting is old enough."""
        model = self.model
        now, status = model.clock(), model.live.status
        shown: object = (model.link, model.failure)
        if status is not None:
            verdict = status.verdict
            condition = (
                verdict.condition,
                verdict.cause,
                verdict.dependency,
                verdict.stage,
                status.exit_code,
            )
            shown = (model.link, model.failure, status.state, status.pid, len(status.errors), *condition)
        if shown == self._painted_state and 0 < now - self._painted < PAINT_EVERY:
            return False
        self._painted_state, self._painted = shown, now
        return True

    async def _sample_view(self, screen: RelayScreen | None) -> None:
        """Poll the service views of the screen; those of other screens are not polled."""
        if screen is None:
            return
        now = self.model.clock()
        every = LOOK_SOON if screen.hurries else LOOK_EVERY
        if screen.required_view is not None and abs(now - self._view_queried) >= every:
            self._view_queried = now
            await self.model.sample_view(screen.required_view, screen.view_subjects())
        for name in screen.glances:
            last = self.model.live.views.get(name)
            is_fresh = last is not None and now - last.time < 2 * GLANCE_EVERY
            if abs(now - self._glanced.get(name, float("-inf"))) >= (
                GLANCE_EVERY if is_fresh else LOOK_EVERY
            ):
                self._glanced[name] = now
                await self.model.sample_view(name, glance=True)

    @property
    def front(self) -> RelayScreen | None:
        """The screen that shows the relay, even if a dialog covers it."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, RelayScreen):
                return screen
        return None

    def refresh_screens(self) -> None:
        """Paint the visible screen; hidden screens catch up when they are shown."""
        if self.is_running and self.front is not None:
            self.front.refresh_picture()

    # Filters of everything that reaches the terminal.

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Add filters that check every line before it is written."""
        colours = (self._without_colours,) if self.no_color else ()
        return (*super().get_line_filters(), self._printable, *colours)

    def notify(self, message: str, *, title: str = "", **more: Any) -> None:
        """Show a notice; its text is never markup, whatever the caller passes."""
        super().notify(escape_lines(message), title=escape(title), **{**more, "markup": False})

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text unchanged, except that lone surrogates are replaced: UTF-8 can't encode them."""
        super().copy_to_clipboard(text.encode("utf-8", "replace").decode())

    # Requests from the screens.

    def next_theme(self) -> None:
        """Switch to the next theme."""
        names = [theme.name for theme in self._themes]
        self.theme = names[(names.index(self.theme) + 1) % len(names)]

    def watch_theme(self) -> None:
        """Repaint what has its own colours, whichever way the theme was chosen."""
        # The new colours are available only after the style sheet has been parsed again, which is already in
        # this queue.
        self.call_next(self.refresh_screens)

    def show_mode(self, mode: str) -> None:
        """Switch to a mode, or explain why it is missing; from a detail screen of the mode, return to it."""
        if mode not in self.MODE_SCREENS:
            self.notify(why_absent(mode), severity="warning", timeout=4)
            return
        if mode == self.current_mode:
            while len(self.screen_stack) > 1:
                self.pop_screen()
        else:
            self.switch_mode(mode)
        # A screen that needs changes or a service view should not wait for the next interval.
        self._changes_queried = self._view_queried = self._painted = float("-inf")

    def ask_to_send_table(self, table: str | None) -> None:
        """Ask whether to send all rows of a table again."""
        ask_to_send(self, self.model.name, table, self.model.snapshot.status)

    def open_details(self, name: str, selection: ScreenSelection) -> None:
        """Open a detail screen about the selection, or show why that is impossible."""
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
        """Ask how to leave, also when Textual's own quit action is used."""
        self.ask_to_leave()

    def action_help_quit(self) -> None:
        """Ask how to leave when Ctrl+C is pressed and nothing is selected."""
        self.ask_to_leave()

    def leave_to_fleet(self, *, by_escape: bool) -> None:
        """Go to the list of all relays, or show why not; Escape does so only if the user came from there."""
        fleet = self.session.fleet
        if by_escape and fleet != "listed":
            return
        if fleet == "no":
            text = "This terminal started the relay; in a different one, 'bwtui attach' lists all relays"
            self.notify(text, timeout=4)
        elif self.audit.job is not None:
            running = f"{self.audit.job.title} is still running, and would end"
            text = f"{running}: {key_for('verify')} shows its progress"
            self.notify(text, severity="warning", timeout=4)
        else:
            self.exit("fleet")

    def attach(self, name: str) -> None:
        """Do nothing: only the app with the list of relays attaches."""

    def ask_to_leave(self) -> None:
        """Ask how to leave; in read-only mode leave at once, because there is only one way."""
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
        """Leave after the child process of the screens has ended."""
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
    kafka: Callable[[], SingleRecordReader] | None = None,
    choices: Choices | None = None,
) -> int | None:
    """Show the relay called ``name`` until the user leaves, and return the exit code for this command.

    Return None to switch to the list of all relays. ``owned``: this terminal started the relay. ``rate`` is
    in samples per second, at most 10. ``kafka`` creates the reader of single records for the audit report;
    ``choices`` are the user's.
    """
    session = ViewSettings(owned=owned, fleet=fleet, rate=rate, theme=theme, choices=choices or Choices())
    return run_source(ControlClient(name), session, RelayAuditSession(name, kafka))


def run_source(
    source: DataSource, session: ViewSettings, audit: RelayAuditSession | None = None
) -> int | None:
    """Show a relay until the user leaves, and return the exit code.

    Return None to switch to the list of all relays.
    """
    app = RelayApp(RelayModel(source), session, audit)
    name = source.name
    ways = f"'bwtui attach {name}' shows it, 'bwtui stop {name}' ends it"
    ending = run_app(app, f"relay {name} is not affected: {ways}")
    if app.return_code:
        return app.return_code
    if ending == "fleet":
        return None
    status = app.model.live.status
    if ending == "detach":
        say(f"bwtui: relay {name} is still running: {ways}", err=True)
        return 0
    return status.exit_code or 0 if status is not None else 0
