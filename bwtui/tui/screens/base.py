"""The base of every screen: header, filter line, footer, and the actions on the selected row."""

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import ActiveBinding, BindingType
from textual.containers import Container
from textual.geometry import Offset
from textual.widget import Widget
from textual.widgets import Input

from bwtui.model.service_views import LookName
from bwtui.tui import footer
from bwtui.tui.actions import makes_sense, names, why_nothing
from bwtui.tui.filtering import Filter
from bwtui.tui.host import ScreenHost
from bwtui.tui.keys import bindings, rebind
from bwtui.tui.screens.dialogs import HelpScreen
from bwtui.tui.screens.exporting import ExportingScreen
from bwtui.tui.screens.jump import JumpScreen, JumpTarget
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.filter_bar import FilterBar
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.header import Header
from bwtui.tui.widgets.item_list import ItemList
from bwtui.tui.widgets.key_line import KeyLine
from bwtui.tui.widgets.recording.seek_bar import SeekBar
from bwtui.tui.widgets.recording.transport import Transport

#: Actions that are available only on the screens that list them in ``own_keys``.
OWN = frozenset(("send_all_again", "pause_sending", "cancel_sending"))


class RelayScreen(ExportingScreen):
    """A screen that shows a status snapshot; subclasses provide the body and paint it."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("screen")]
    # Textual declares both as instance variables.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (150, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (34, "-tall")]  # noqa: RUF012
    #: The mode of the screen; its tab is highlighted.
    mode: ClassVar[str] = ""
    wants_changes: bool = False
    #: The service view that the relay polls while this screen is shown.
    wants_look: ClassVar[LookName | None] = None
    #: Service views that are polled at the slower rate, because they are only a part of the screen.
    glances: tuple[LookName, ...] = ()
    #: Actions that the footer shows on this screen, though not elsewhere.
    own_keys: ClassVar[frozenset[str]] = frozenset()
    #: The screen shows the findings of an audit.
    audits: ClassVar[bool] = False
    #: The screen shows a key or dead letters, which can be sent again.
    sends_again: ClassVar[bool] = False
    #: Actions on lists that have no meaning here.
    without: ClassVar[frozenset[str]] = frozenset()
    #: The widgets are mounted, so that the screen can be painted.
    ready: bool = False
    #: The theme of the last painting.
    _painted_in: str = ""

    def __init__(self, host: ScreenHost) -> None:
        super().__init__(host)
        rebind(self, "screen")

    def compose(self) -> ComposeResult:
        """Create header, body, filter line and footer, and a recording's transport bar above the footer."""
        width, height = self.app.size
        breakpoints = (
            *self._get_breakpoint_classes(width, self.HORIZONTAL_BREAKPOINTS),
            *self._get_breakpoint_classes(height, self.VERTICAL_BREAKPOINTS),
        )
        # Set these classes before anything is styled: changing them later would style everything again.
        self.add_class(*breakpoints, update=False)
        yield Header()
        with Container(id="body"):
            yield from self.body()
        yield self.filter_bar()
        if self.host.model.recorded:
            yield SeekBar()
            yield Transport()
        yield KeyLine()

    # Methods for subclasses to override.

    def body(self) -> Iterable[Widget]:
        """Return the widgets of the body."""
        raise NotImplementedError

    def paint(self, picture: ScreenSnapshot) -> None:
        """Show a status snapshot, updating only what changed."""
        raise NotImplementedError

    def filter_bar(self) -> FilterBar:
        """Return the line in which a filter is typed."""
        return FilterBar(self.names)

    def names(self) -> Iterable[str]:
        """Return the names that complete a filter."""
        status = self.host.model.picture.status
        return status.tables if status is not None else ()

    def main_grid(self) -> Grid:
        """Return the list that filter, sort and copy act on."""
        return self.query_one(ItemList)

    def first_focus(self) -> Widget:
        """Return the widget that has the focus first."""
        return self.main_grid()

    def crumbs(self) -> tuple[str, ...]:
        """Return the path to this screen."""
        return (self.mode.capitalize(),)

    def look_about(self) -> tuple[str, ...]:
        """Return the subjects of the service view, if there are several of that name."""
        return ()

    @property
    def hurries(self) -> bool:
        """True while requested data is missing, so that it is requested again soon."""
        return False

    def row_text(self) -> str:
        """Return the selected row as text to copy: its cells, separated by tabs."""
        grid = self.main_grid()
        if grid.cursor_key is None:
            return ""
        return "\t".join(cell.text.strip() for cell in grid.rows[grid.cursor_row].cells)

    # Showing.

    def on_mount(self) -> None:
        """Paint the available data, and focus the main list."""
        self.ready = True
        self.set_class(self.host.model.recorded, "-recorded")
        for grid in self.query(Grid):
            grid.has_ends = self.own_list or not self.host.model.recorded
        self.first_focus().focus()
        self._painted_in = self.app.theme
        self.refresh_picture()

    def on_screen_resume(self) -> None:
        """Catch up with the changes while a different screen was shown."""
        self.refresh_picture()

    def on_resize(self) -> None:
        """Choose the keys that fit into the footer."""
        self.refresh_bindings()

    def refresh_picture(self) -> None:
        """Paint header and body."""
        if not self.ready:
            return
        model = self.host.model
        self.set_class(model.link in ("gone", "stale"), "-stale")
        self.set_class(model.paused is not None, "-paused")
        self.query_one(Header).show(model, self.mode, self.crumbs(), self.host.stopping)
        if model.picture.playhead is not None:
            self.query_one(Transport).show(model.picture.playhead)
        self.paint(model.picture)
        if self.app.theme != self._painted_in:
            # Details have their own colours, and are created when a row is selected.
            self._painted_in = self.app.theme
            for grid in self.query(Grid):
                grid.post_message(Grid.Highlighted(grid, grid.cursor_key))

    def on_key(self, event: events.Key) -> None:
        """Explain why a key has no effect, if it has one elsewhere."""
        model = self.host.model
        if (why := why_nothing(event.key, model.kind, readonly=model.readonly)) is not None:
            self.notify(why, timeout=4)

    # Actions: views.

    def action_show(self, mode: str) -> None:
        self.host.show_mode(mode)

    def action_pause(self) -> None:
        """Freeze the view, or resume it."""
        self.host.model.toggle_pause()
        self.refresh_picture()

    def action_theme(self) -> None:
        self.host.next_theme()

    def action_help(self) -> None:
        model = self.host.model
        self.app.push_screen(HelpScreen(model.kind, readonly=model.readonly))

    def action_palette(self) -> None:
        self.app.action_command_palette()

    def action_fleet(self) -> None:
        self.host.leave_to_fleet(by_escape=False)

    def action_leave(self) -> None:
        self.host.ask_to_leave()

    def action_verify(self) -> None:
        self.host.ask_to_verify()

    def action_try_ddl(self) -> None:
        self.host.ask_to_try_ddl()

    def action_snapshot_table(self) -> None:
        self.host.ask_to_send_table(self.selected_table())

    def action_jump(self) -> None:
        """Put a letter over each panel and tab."""
        panels = [
            JumpTarget(widget.region.offset + Offset(2, 0), widget.focus)
            for widget in self.focus_chain
            if widget.region and self.region.contains_region(widget.region)
        ]
        tabs = [
            JumpTarget(offset, partial(self.host.show_mode, mode))
            for mode, offset in self.query_one(Header).places()
        ]
        self.app.push_screen(JumpScreen([*panels, *tabs]), lambda place: place.go() if place else None)

    def action_next_panel(self) -> None:
        self.focus_next()

    def action_previous_panel(self) -> None:
        self.focus_previous()

    def action_maximise(self) -> None:
        """Show the focused panel alone, or all panels again."""
        if self.has_class("-maximised"):
            self._restore()
            return
        panel = next((node for node in self._focus_path() if node.has_class("panel")), self.main_grid())
        self.add_class("-maximised")
        # Containers of the panel stay, or the panel would be hidden with them.
        keep = {panel, *panel.ancestors}
        for other in self.query("#body .panel, #body .folder"):
            other.set_class(other not in keep, "-folded")

    def action_back(self) -> None:
        """Undo one step: focus on a detail, filter, maximised panel, or screen."""
        bar = self.query_one(FilterBar)
        if self.close_seek_bar():
            return
        if isinstance(self.focused, Detail):
            self.main_grid().focus()
        elif bar.display or self.is_filtered():
            bar.clear()
        elif self.has_class("-maximised"):
            self._restore()
        else:
            self.go_back()

    def go_back(self) -> None:
        """Return to the screen that opened this one; from the first one of a mode, go to the list of relays.

        That is possible only if the user came from the list.
        """
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()
        else:
            self.host.leave_to_fleet(by_escape=True)

    def on_grid_opened(self, event: Grid.Opened) -> None:
        self.open_row(event.grid)

    def open_row(self, grid: Grid) -> None:
        """Focus the selected row's detail."""
        self.query(Detail).last().focus()

    @property
    def active_bindings(self) -> dict[str, ActiveBinding]:
        """The active bindings; the footer omits some if space is short."""
        active = super().active_bindings
        if isinstance(self.focused, Input):
            bar = next(a for a in self.focused.ancestors if isinstance(a, FilterBar | SeekBar))
            return footer.typing(active, *bar.words)
        active = footer.with_own(active, self.own_keys & names(self.host.model.kind))
        return footer.fitted(active, footer.AUDIT_SPARE if self.audits else footer.SPARE, self.app.size.width)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions that are available only live, or only in a recording, or only with write access."""
        if action in self.without or (action == "send_again" and not self.sends_again):
            return False
        if action in OWN and action not in self.own_keys:
            return False
        model = self.host.model
        return makes_sense(action, parameters, model.kind, audits=self.audits, readonly=model.readonly)

    # Actions: lists.

    def action_filter(self) -> None:
        self.query_one(FilterBar).open()

    def current_filter(self) -> Filter:
        """Return the filter of the main list."""
        grid = self.main_grid()
        return grid.filter if isinstance(grid, ItemList) else Filter()

    def is_filtered(self) -> bool:
        """Return whether a filter is active."""
        return bool(self.current_filter())

    def apply_filter(self, new: Filter) -> None:
        """Filter the main list."""
        grid = self.main_grid()
        if isinstance(grid, ItemList):
            grid.set_filter(new)

    def on_filter_bar_changed(self, event: FilterBar.Changed) -> None:
        self.apply_filter(event.filter)

    def on_filter_bar_closed(self) -> None:
        """Return the focus to the list."""
        self.main_grid().focus()

    def action_errors_only(self) -> None:
        """Show only rows with errors, or all."""
        grid = self.main_grid()
        if isinstance(grid, ItemList):
            grid.toggle_errors_only()

    def action_sort(self) -> None:
        grid = self.main_grid()
        if isinstance(grid, ItemList):
            grid.sort_next()

    def action_reverse(self) -> None:
        grid = self.main_grid()
        if isinstance(grid, ItemList):
            grid.sort_by(grid.sort_column)

    def action_copy(self) -> None:
        text = self.row_text()
        if text:
            self.app.copy_to_clipboard(text)
            self.notify("Copied the selected row", timeout=2)

    def _restore(self) -> None:
        self.remove_class("-maximised")
        self.query(".-folded").remove_class("-folded")

    def _focus_path(self) -> list[Widget]:
        focused = self.focused
        if focused is None:
            return []
        return [focused, *(node for node in focused.ancestors if isinstance(node, Widget))]
