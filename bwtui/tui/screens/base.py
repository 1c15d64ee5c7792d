"""The base of every screen: header, filter line, footer, and the actions on the selected row."""

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rich.cells import cell_len
from textual import events
from textual._compositor import ChopsUpdate, Compositor
from textual.app import ComposeResult
from textual.binding import ActiveBinding, BindingType
from textual.containers import Container
from textual.geometry import Offset, Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from bwtui.errors import BwtuiError, UsageError
from bwtui.model.service_views import LookName
from bwtui.model.status import ChangeSample
from bwtui.recording.change import Change
from bwtui.recording.explain import RowKey, key_of
from bwtui.recording.export import opened
from bwtui.tui.audit.report import ReportFinding
from bwtui.tui.base.actions import makes_sense, names, why_nothing
from bwtui.tui.base.keys import bindings, key_for, rebind
from bwtui.tui.base.plain import Content, with_hint
from bwtui.tui.screens.dialogs import HelpScreen, JumpScreen, JumpTarget
from bwtui.tui.sources.host import RecordingHost, ScreenHost
from bwtui.tui.sources.model import Playhead, ScreenSnapshot
from bwtui.tui.sources.recorded_model import Command
from bwtui.tui.widgets.filter_bar import Filter, FilterBar
from bwtui.tui.widgets.grid import Grid, GridRow, ItemList
from bwtui.tui.widgets.header import Header
from bwtui.tui.widgets.line import Detail, KeyLine
from bwtui.tui.widgets.transport import SeekBar, Timeline, Transport

#: Actions that the footer omits if space is short, the first one first; help still lists them.
SPARE = (
    *("copy", "sort", "maximise", "errors_only", "replay", "verify"),
    *("open_details('letters')", "try_ddl", "open_details('versions')"),
)
#: The same on the screens of an audit.
AUDIT_SPARE = (
    "copy",
    "sort",
    "maximise",
    "open_details('rows')",
    "open_details('journey')",
    "open_details('transaction')",
    "seek",
    "play",
    "replay",
)

_Bindings = dict[str, ActiveBinding]


def _fitted(active: _Bindings, spare: Sequence[str], width: int) -> _Bindings:
    """Return the bindings, with those of ``spare`` hidden from the footer that do not fit."""
    hidden: set[str] = set()
    needed = _width(active)
    for action in spare:
        if needed <= width:
            break
        hidden.add(action)
        needed -= sum(_room(one) for one in active.values() if _is_shown(one, (action,)))
    return {
        key: one._replace(binding=replace(one.binding, show=False)) if _is_shown(one, hidden) else one
        for key, one in active.items()
    }


def _with_shown(active: _Bindings, keys: AbstractSet[str]) -> _Bindings:
    """Return the bindings, with the screen's own actions shown in the footer too."""
    return {
        key: one._replace(binding=replace(one.binding, show=True)) if one.binding.action in keys else one
        for key, one in active.items()
    }


def _typing(active: _Bindings, enter: str, escape: str) -> _Bindings:
    """Return the bindings, with only Enter and Esc shown in the footer, labelled for the typed line."""
    labels = {"enter": ("Enter", enter), "escape": ("Esc", escape)}
    labelled: _Bindings = {}
    # Enter comes first, as everywhere.
    for key in sorted(active, key=lambda key: key != "enter"):
        binding = replace(active[key].binding, show=key in labels)
        if key in labels:
            binding = replace(binding, key_display=labels[key][0], description=labels[key][1])
        labelled[key] = active[key]._replace(binding=binding)
    return labelled


def _is_shown(one: ActiveBinding, actions: Sequence[str] | set[str]) -> bool:
    return one.binding.show and one.binding.action in actions


def _room(one: ActiveBinding) -> int:
    """Return the number of cells that a key takes: its name, its label, and a gap after each."""
    return cell_len(one.binding.key_display or one.binding.key) + cell_len(one.binding.description) + 2


def _width(active: _Bindings) -> int:
    return sum(_room(one) for one in active.values() if one.binding.show)


class PartialCompositor(Compositor):
    """Textual's own compositor renders each widget between the first and the last change, which may be all.

    A changed cell belongs to the topmost widget there. So widgets without a changed cell contribute nothing
    to the painting, and the others contribute only the lines with such cells.
    """

    #: The changed regions; None while the whole screen is painted.
    _changed: tuple[Region, ...] | None = None

    def render_partial_update(self) -> ChopsUpdate | None:
        self._changed = tuple(self._dirty_regions)
        try:
            return super().render_partial_update()
        finally:
            self._changed = None

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        if self._changed is None:
            yield from super()._get_renders(crop)
            return
        for widget, (region, clip) in self.visible_widgets.items():
            visible = region.intersection(clip)
            lines = [
                (part.y, part.bottom) for one in self._changed if (part := visible.intersection(one)).area
            ]
            if lines:
                top = min(first for first, _ in lines)
                part = Region(visible.x, top, visible.width, max(last for _, last in lines) - top)
                yield part, clip, widget.render_lines(part.translate(-region.offset))


class TransportScreen(Screen[None]):
    """The base of every screen; the actions that move a recording are called only for a recording."""

    #: The main list is not the recording's but the screen's own, such as a transaction.
    own_list: ClassVar[bool] = False

    def __init__(self, host: ScreenHost) -> None:
        super().__init__()
        self.host = host
        self._compositor = PartialCompositor()

    @property
    def recording(self) -> RecordingHost:
        """The host of the recording; never used for a relay."""
        recording = self.host.recording
        assert recording is not None
        return recording

    # Methods for subclasses to override.

    def main_grid(self) -> Grid:
        """Return the list that filter, sort and copy act on."""
        raise NotImplementedError

    def selected_change(self) -> Change | None:
        """Return the selected change; by default the last one at the recording's position."""
        head = self.host.model.snapshot.playhead
        return None if head is None else head.change

    def selected_table(self) -> str | None:
        """Return the selected table; by default the selected change's."""
        change = self.selected_change()
        return None if change is None else change.table

    def selected_key(self) -> RowKey | str:
        """Return the selected key, or why there is none; by default the selected change's."""
        change = self.selected_change()
        if change is None:
            return "No change is selected"
        return key_of(change) or f"{change.table} has no key, so its rows can't be distinguished"

    def selected_sample(self) -> ChangeSample | None:
        """Return the selected change of a running relay, on a screen that has one."""
        return None

    def selected_subject(self) -> str | None:
        """Return the selected subject; by default that of the selected table's values."""
        table, schemas = self.selected_table(), self.host.model.snapshot.schemas
        entries = [one for one in schemas if one.table == table and one.part == "value"]
        return entries[-1].subject if entries else None

    # Moving.

    def action_play(self) -> None:
        self.drive(lambda player: player.toggle())

    def action_step(self, changes: int) -> None:
        self.drive(lambda player: player.step(changes))

    def action_step_transaction(self, direction: int) -> None:
        self.drive(lambda player: player.step_transaction(direction))

    def action_speed(self, steps: int) -> None:
        self.drive(lambda player: player.change_speed(steps))

    def action_travel(self, end: int) -> None:
        """Go to the recording's beginning or end."""
        length = self.recording.source.view.length
        self.drive(lambda player: player.seek(length if end else 0))

    def action_error(self, direction: int) -> None:
        """Go to the next or previous error."""
        self.drive(lambda player: player.seek_error(direction))

    def action_seek(self) -> None:
        """Open the line in which a position is typed."""
        head = self.host.model.snapshot.playhead
        self.query_one(SeekBar).open(() if head is None else places(head))

    def on_timeline_clicked(self, event: Timeline.Clicked) -> None:
        self.drive(lambda player: player.seek_time(event.micros))

    def seek_text(self, text: str) -> None:
        """Go to the typed position, or show why that is impossible."""
        self.recording.drive(lambda player: player.seek_text(text), self.query_one(SeekBar).answer)

    def close_seek_bar(self) -> bool:
        """Close the line in which a position is typed; return whether it was open."""
        bars = self.query(SeekBar)
        if not bars or not bars.first().display:
            return False
        bars.first().close()
        return True

    def focus_list(self) -> None:
        """Focus the main list; unlike `Widget.focus`, this takes effect before the next key."""
        self.set_focus(self.main_grid())

    def drive(self, command: Command) -> int:
        """Make the player carry out a command; show its error, if any."""
        return self.recording.drive(command, self._say_error)

    # Detail screens.

    def action_open_details(self, name: str) -> None:
        """Open a detail screen about the selection."""
        self.host.open_details(name, self)

    # Audits.

    def action_replay(self) -> None:
        """Ask what to replay, and into which topics."""
        self.recording.ask_to_replay(mend=False)

    def action_mend(self) -> None:
        """Replay what the audit found missing."""
        report = self.host.audit.report
        if report is None:
            self._warn(f"There is no audit yet; {key_for('verify')} verifies this recording")
        elif not report.missing:
            self._warn("The audit found nothing missing, so there is nothing to replay")
        else:
            self.recording.ask_to_replay(mend=True)

    def go_to_place(self, finding: ReportFinding | None, change: Change | None = None) -> None:
        """Go to a finding's change in the list of all changes, or to the finding's LSN."""
        position = change.position if change is not None else finding.position if finding else None
        if finding is None:
            self._warn("No finding is selected")
        elif position is not None:
            self.host.show_mode("changes")
            self.drive(lambda player: player.seek(position + 1))
        elif finding.lsn:
            lsn = finding.lsn
            self.host.show_mode("changes")
            self.drive(lambda player: player.seek_text(lsn))
        else:
            self._warn("The finding has no position in the recording: no recorded message equals it")

    def _say_error(self, error: BwtuiError | None) -> None:
        if error is not None:
            self._warn(with_hint(error))

    def _warn(self, text: str) -> None:
        self.notify(text, severity="warning", timeout=4, markup=False)


def places(head: Playhead) -> list[str]:
    """Return examples of all forms of a position, for the present one."""
    moment = datetime.fromtimestamp(head.time / 1_000_000)
    change = head.change
    xid = change.xid if change is not None and change.in_transaction else ""
    here = [f"xid {xid}", *([change.lsn_text] if change is not None else [])]
    now = [f"{moment:%H:%M:%S}", f"{moment:%Y-%m-%d %H:%M:%S}"]
    return ["start", "end", *now, "+30s", "-5m", *here, "50%", f"#{max(head.position - 1, 0)}"]


_ODD = re.compile(r"[^A-Za-z0-9._-]+")
#: Maximum characters of a name in a file name.
_LONGEST = 60

Objects = Iterable[Mapping[str, Any]]


class ExportingScreen(TransportScreen):
    """A screen that can export the selected row of its list, or all rows that match."""

    def crumbs(self) -> tuple[str, ...]:
        """Return the path to this screen."""
        raise NotImplementedError

    def action_export(self) -> None:
        """Write the selected row to a file."""
        self.export(list(self.selected_objects()))

    def action_export_all(self) -> None:
        """Write all rows that match to a file."""
        self.export(list(self.all_objects()), self.main_grid().remark)

    def selected_objects(self) -> Objects:
        """Return the selected row."""
        grid = self.main_grid()
        return row_objects(grid, grid.rows[grid.cursor_row :][:1])

    def all_objects(self) -> Objects:
        """Return every row that matches the filter."""
        grid = self.main_grid()
        return row_objects(grid, grid.rows)

    def export(self, objects: Objects, remark: str = "") -> None:
        """Write objects to a new file in the background; ``remark`` is a note about them."""
        # A worker of the screen would be cancelled with it, while its thread continues to write the file.
        self.app.run_worker(self.write(objects, remark), group="export", exit_on_error=True)

    async def write(self, objects: Objects, remark: str = "") -> None:
        """Write objects to a new file, and show its name, or why writing failed."""
        name = " ".join((self.host.model.name, *self.crumbs()))
        try:
            path, count = await asyncio.to_thread(write_objects, name, self.host.model.clock(), objects)
        except BwtuiError as error:
            self._warn(with_hint(error))
            return
        lines = "1 line" if count == 1 else f"{count:,} lines"
        self.notify(f"./{path}" + (f" · {remark}" if remark else ""), title=f"Exported {lines}", timeout=8)


def row_objects(grid: Grid, rows: Sequence[GridRow]) -> Iterator[dict[str, str]]:
    """Return rows as displayed, by the titles of their columns, including columns that do not fit."""
    for row in rows:
        cells = {
            c.title or c.key: cell.text.strip() for c, cell in zip(grid.columns, row.cells, strict=False)
        }
        yield {title: text for title, text in cells.items() if title != "mark" or text}


def write_objects(name: str, moment: float, objects: Objects) -> tuple[Path, int]:
    """Write one line per object, and return the file and their number; ``moment`` is in Unix seconds.

    Raises BwtuiError, and whatever ``objects`` raises; in both cases no file remains.
    """
    path = _new_path(name, moment)
    count = 0
    with opened(path, force=False) as file:
        for one in objects:
            # Lone surrogates become JSON's own escapes.
            file.write(json.dumps(one, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
            count += 1
        if not count:
            raise UsageError("there is nothing to export", "select a row, or change the filter")
    return path, count


def _new_path(name: str, moment: float) -> Path:
    """Return the name of a file that does not exist yet."""
    when = datetime.fromtimestamp(moment).strftime("%Y%m%d-%H%M%S")
    stem = f"bwtui-{_ODD.sub('-', name)[:_LONGEST].strip('-.')}-{when}"
    path, number = Path(f"{stem}.jsonl"), 1
    while path.exists() or path.is_symlink():
        number += 1
        path = Path(f"{stem}-{number}.jsonl")
    return path


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
    required_view: ClassVar[LookName | None] = None
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
            yield SeekBar(self.seek_text, self.focus_list)
            yield Transport()
        yield KeyLine()

    # Methods for subclasses to override.

    def body(self) -> Iterable[Widget]:
        """Return the widgets of the body."""
        raise NotImplementedError

    def paint(self, snapshot: ScreenSnapshot) -> None:
        """Show a status snapshot, updating only what changed."""
        raise NotImplementedError

    def filter_bar(self) -> FilterBar:
        """Return the line in which a filter is typed."""
        return FilterBar(self.apply_filter, self.focus_list, self.names)

    def names(self) -> Iterable[str]:
        """Return the names that complete a filter."""
        status = self.host.model.snapshot.status
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

    def view_subjects(self) -> tuple[str, ...]:
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
        self.set_focus(self.first_focus())
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
        if model.snapshot.playhead is not None:
            self.query_one(Transport).show(model.snapshot.playhead)
        self.paint(model.snapshot)
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
        for sibling in self.query("#body .panel, #body .folder"):
            sibling.set_class(sibling not in keep, "-folded")

    def action_back(self) -> None:
        """Undo one step: focus on a detail, filter, maximised panel, or screen."""
        bar = self.query_one(FilterBar)
        if self.close_seek_bar():
            return
        if isinstance(self.focused, Detail):
            self.focus_list()
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
            return _typing(active, *bar.words)
        active = _with_shown(active, self.own_keys & names(self.host.model.kind))
        return _fitted(active, AUDIT_SPARE if self.audits else SPARE, self.app.size.width)

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


class DetailedList(RelayScreen):
    """A list of items, and the selected one in full."""

    #: Shown while none is selected.
    nothing: ClassVar[str] = "nothing selected"

    def describe(self, entry: Any) -> tuple[object, Content]:
        """Return an entry in full, and before it a value that changes with it."""
        raise NotImplementedError

    def selected_entry(self) -> Any:
        """Return the selected entry, or None."""
        grid = self.main_grid()
        return grid.selected_entry if isinstance(grid, ItemList) else None

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self.show_selected()

    def show_selected(self) -> None:
        """Show the selected entry, if it has changed."""
        detail, entry = self.query_one(Detail), self.selected_entry()
        if entry is None:
            detail.show(None, Content.styled(self.nothing, "$quiet"))
        else:
            detail.show(*self.describe(entry))
