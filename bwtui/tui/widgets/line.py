"""Text that is painted line by line: lines, panels, details, and the line with the keys."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.console import RenderableType
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.geometry import Region
from textual.message import Message
from textual.screen import Screen
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget
from textual.widgets import Static

from bwtui.tui.base.keys import bindings, rebind
from bwtui.tui.base.plain import Content, printable
from bwtui.tui.sources.model import ScreenSnapshot


class Line(Widget):
    """Renders and paints only the lines that differ.

    Textual's Static repaints all of its lines and its border: with seven boxes in the pipeline that was half
    of the UI's work.
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None, links: bool = False) -> None:
        """``links``: the text contains parts with an action on click."""
        super().__init__(id=id, classes=classes)
        self.set_reactive(Widget.auto_links, links)
        self._put: object = None
        self._lines: Sequence[Content] = []
        #: The rendered lines by their number, and the width and style that they were rendered for.
        self._strips: dict[int, Strip] = {}
        self._rendered_for: object = None

    def put(self, content: Content | list[Content], *, layout: bool = False) -> None:
        """Show a content or lines; set ``layout`` if its size matters to neighbouring widgets."""
        if content is self._put:
            return
        self._put = content
        new = content if isinstance(content, list) else content.split("\n", allow_blank=True)
        old = self._lines
        changed = [y for y, line in enumerate(new) if y >= len(old) or not line.is_same(old[y])]
        if not changed and len(old) == len(new):
            return
        self._lines = new
        if layout or len(old) != len(new):
            self._strips.clear()
            self.refresh(layout=layout)
            return
        for y in changed:
            self._strips.pop(y, None)
        self.refresh(*(Region(0, y, self.content_size.width, 1) for y in changed))

    def render(self) -> Content:
        return Content("\n").join(self._lines)

    def render_line(self, y: int) -> Strip:
        """Render a line, unless it is cached; wrapped lines are rendered together with all others."""
        if self.styles.text_wrap != "nowrap" or self.text_selection is not None:
            self._strips.clear()
            return super().render_line(y)
        width, style = self.size.width, self.visual_style
        if (width, style) != self._rendered_for:
            self._rendered_for = (width, style)
            self._strips.clear()
        self._dirty_regions.clear()
        strip = self._strips.get(y)
        if strip is None:
            line = self._lines[y] if y < len(self._lines) else Content("")
            (strip,) = Visual.to_strips(self, line, width, 1, style) or (
                Strip.blank(width, style.rich_style),
            )
            self._strips[y] = strip
        return strip

    def notify_style_update(self) -> None:
        """Discard the rendered lines, because they contain the theme's colours."""
        self._strips.clear()
        super().notify_style_update()


class Panel(Line, can_focus=True):
    """Can be maximised; Enter opens the screen with more details, if there is one."""

    BINDINGS: ClassVar[list[BindingType]] = [one for one in bindings("list") if one.action == "drill"]
    #: The mode of that screen.
    leads_to: ClassVar[str] = ""

    @dataclass
    class Opened(Message):
        """Enter was pressed."""

        mode: str

    def __init__(self, title: str, *, id: str) -> None:
        super().__init__(id=id, classes="panel")
        rebind(self, "list", "drill")
        self.border_title = Content(title)
        self._snapshot: ScreenSnapshot | None = None
        self._drawn: object = None
        self._remark = ""

    def show(self, snapshot: ScreenSnapshot) -> None:
        """Draw the snapshot if something changed and there is space."""
        self._snapshot = snapshot
        width, height = self.content_size
        drawn = (self.shown_of(snapshot), width, height)
        if drawn != self._drawn and width > 0 and height > 0:
            self._drawn = drawn
            self.draw(snapshot, width, height)

    def shown_of(self, snapshot: ScreenSnapshot) -> object:
        """Return everything that the drawing depends on, apart from its size."""
        raise NotImplementedError

    def draw(self, snapshot: ScreenSnapshot, width: int, height: int) -> None:
        """Draw in the given number of cells and lines."""
        raise NotImplementedError

    def on_resize(self) -> None:
        if self._snapshot is not None:
            self.show(self._snapshot)

    def set_remark(self, text: str) -> None:
        """Set the remark in the lower border; Textual would repaint everything even for the same text."""
        if text != self._remark:
            self._remark = text
            self.border_subtitle = Content(text)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable Enter if there is no screen with more details."""
        return action != "drill" or bool(self.leads_to)

    def action_drill(self) -> None:
        """Open the screen with more details."""
        self.post_message(self.Opened(self.leads_to))


class Detail(VerticalScroll, can_focus=True):
    """Scrollable text about the selected row; painted only when its content changes."""

    def __init__(self, *, id: str, title: str) -> None:
        super().__init__(id=id, classes="panel")
        self.border_title = Content(title)
        self._shown: object = self

    def compose(self) -> ComposeResult:
        yield Static("", markup=False)

    def show(self, identity: object, content: "RenderableType | Content") -> None:
        """Show a content, unless ``identity`` is the same as for the present one."""
        if identity == self._shown:
            return
        self._shown = identity
        self.query_one(Static).update(content)
        self.scroll_home(animate=False)


class KeyLine(Line):
    """Follows the bindings of its screen; a click on a key presses it."""

    def __init__(self) -> None:
        super().__init__(id="keys")
        #: Start and end of each key in the line, the key itself, and its description.
        self._places: list[tuple[int, int, str, str]] = []

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._follow)
        self.call_next(self._follow, self.screen)

    def _follow(self, screen: Screen[object]) -> None:
        if not self.is_attached or screen is not self.screen or not screen.app.app_focus:
            return
        parts: list[tuple[str, str]] = []
        self._places, at = [], 0
        shown = {
            one.binding.action: one for one in reversed(screen.active_bindings.values()) if one.binding.show
        }
        for _, binding, enabled, tooltip in reversed(shown.values()):
            key = self.app.get_key_display(binding)
            text = f" {binding.description} "
            tone = "" if enabled else "dim "
            parts += [
                (key, f"{tone}bold $footer-key-foreground"),
                (text, f"{tone}$footer-description-foreground"),
            ]
            end = at + Content(key + text).cell_length
            if enabled:
                self._places.append((at, end, binding.key, tooltip or binding.description))
            at = end
        self.put(Content.assemble(*parts))

    def on_click(self, event: events.Click) -> None:
        if place := self._at(event.x):
            self.app.simulate_key(place[0])

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show a description of the key under the mouse."""
        place = self._at(event.x)
        self.tooltip = Content(place[1]) if place else None

    def _at(self, x: int) -> tuple[str, str] | None:
        return next(((key, text) for begin, end, key, text in self._places if begin <= x < end), None)


def joined(parts: list[Content], width: int) -> Content:
    """Join as many parts as fit, omitting parts from the end."""
    line = parts[0]
    for part in parts[1:]:
        if line.cell_length + 2 + part.cell_length > width:
            break
        line = line + "  " + part
    return line


def wrapped(text: str, width: int, style: str) -> Iterator[Content]:
    """Yield a text in as many lines as it needs, all but the first indented."""
    for number, line in enumerate(textwrap.wrap(printable(text), max(width - 2, 10))):
        yield Content.styled(f"  {line}" if number else line, style)


def pair(name: str, value: str, width: int, tone: str = "") -> Content:
    """Return a name, and its value at the right edge."""
    gap = max(width - len(name) - len(value), 1)
    return Content.assemble((name, "$quiet"), " " * gap, (value, tone))
