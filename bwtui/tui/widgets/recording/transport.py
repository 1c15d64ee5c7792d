"""The transport bar of a recording: the timeline, the position, and the playback."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from bwtui.model.lsn import format_lsn
from bwtui.recording.reading.seek_target import MICROS
from bwtui.tui import figures
from bwtui.tui.plain import Content
from bwtui.tui.state import Playhead
from bwtui.tui.widgets.line import Line

_BARS = "▁▂▃▄▅▆▇█"
PAUSED, PLAYING = "❚❚", "▶ "
_SPEEDS = {0.25: "×¼", 0.5: "×½"}


class Timeline(Widget):
    """Shows the whole recording as bars with marks for errors; a click goes to that moment.

    The height of a bar is the logarithm of its rate, so that a snapshot does not flatten everything else. The
    marks are in a second line if there is space; otherwise they replace bars.
    """

    COMPONENT_CLASSES = {  # noqa: RUF012  # Textual declares it as an instance variable.
        "timeline--played",
        "timeline--coming",
        "timeline--error",
        "timeline--head",
    }

    @dataclass
    class Clicked(Message):
        """A moment was clicked, in Unix microseconds."""

        micros: int

    def __init__(self) -> None:
        super().__init__()
        self._buckets: Sequence[tuple[int, int]] = ()
        self._ends = (0, 1)
        self._head = -1
        self._dragging = False

    @property
    def wanted(self) -> int | None:
        """The number of buckets needed, or None if they are available."""
        width = self.content_size.width
        return width if width and len(self._buckets) != width else None

    def set_buckets(self, buckets: Sequence[tuple[int, int]]) -> None:
        """Show the numbers of changes and errors in intervals of time."""
        width = max(self.content_size.width, 1)
        # A short recording may have fewer intervals than there are cells.
        count = max(len(buckets), 1)
        self._buckets = [buckets[i * count // width] if buckets else (0, 0) for i in range(width)]
        self.refresh()

    def show(self, head: Playhead) -> None:
        """Move the head."""
        self._ends = (head.first_time, max(head.last_time, head.first_time + 1))
        share = (head.time - self._ends[0]) / (self._ends[1] - self._ends[0])
        # At the very beginning nothing has been played, but the head is on the first cell.
        place = min(int(share * self.content_size.width), self.content_size.width - 1)
        if place != self._head:
            self._head = place
            self.refresh()

    def render_line(self, y: int) -> Strip:
        width, base = self.content_size.width, self.rich_style
        if len(self._buckets) != width:
            return Strip([Segment(" " * width, base)])
        two = self.content_size.height > 1
        if two and y == 0:
            return Strip([self._mark(x, base) for x in range(width)])
        top = math.log1p(max(changes for changes, _ in self._buckets))
        return Strip([self._bar(x, top, base, not two) for x in range(width)])

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Go to a moment, and follow the mouse while the button is held."""
        self._dragging = True
        self.capture_mouse()
        self._go(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._dragging:
            self._go(event.x)

    def on_mouse_up(self) -> None:
        self._dragging = False
        self.release_mouse()

    def _go(self, x: int) -> None:
        width = max(self.content_size.width, 1)
        x = min(max(x, 0), width - 1)
        first, last = self._ends
        # The last cell is exactly the end.
        share = 1.0 if x == width - 1 else x / width
        self.post_message(self.Clicked(first + round((last - first) * share)))

    def _mark(self, x: int, base: Style) -> Segment:
        if self._buckets[x][1]:
            return Segment("✗", base + self._tone("error"))
        return Segment("▼" if x == self._head else " ", base + self._tone("head"))

    def _bar(self, x: int, top: float, base: Style, with_marks: bool) -> Segment:
        changes, errors = self._buckets[x]
        style = base + self._tone("played" if x <= self._head else "coming")
        text = _BARS[min(int(math.log1p(changes) / top * 7.999), 7)] if changes else "·"
        if with_marks and errors:
            style, text = base + self._tone("error"), "✗"
        if x == self._head:
            # In one line the head is only reversed; in two lines it also has a sign above it.
            style += Style(reverse=True)
        return Segment(text, style)

    def _tone(self, name: str) -> Style:
        return self.get_component_rich_style(f"timeline--{name}", partial=True)


class Transport(Vertical):
    """The timeline, and a line about the present position."""

    def compose(self) -> ComposeResult:
        yield Timeline()
        yield Line(id="place")

    def show(self, head: Playhead) -> None:
        """Paint what changed."""
        self.query_one(Timeline).show(head)
        self.query_one("#place", Line).put(place_text(head, self.content_size.width))


def speed_text(speed: float) -> str:
    """Return a speed as shown to people."""
    return _SPEEDS.get(speed, f"×{speed:.0f}")


def moment(micros: int) -> str:
    """Return the local time of day of a recorded moment, with milliseconds."""
    return datetime.fromtimestamp(micros / MICROS).strftime("%H:%M:%S.") + f"{micros // 1000 % 1000:03}"


def day(micros: int) -> str:
    """Return the local date of a recorded moment."""
    return datetime.fromtimestamp(micros / MICROS).strftime("%Y-%m-%d")


def place_text(head: Playhead, width: int) -> Content:
    """Return the second line, with as much as fits into ``width``."""
    state = PLAYING if head.playing else PAUSED
    # The position as queries, exports and reports count it: the number of the last change so far.
    last = f"{max(head.length - 1, 0):,}"
    position = f"{head.position - 1:,}" if head.position else figures.NONE
    parts = [
        Content.assemble(
            (f" {state} ", "bold $success" if head.playing else "bold $warning"),
            (f"{speed_text(head.speed):<4}", "bold"),
            (moment(head.time), "bold"),
        ),
        Content.assemble(
            ("position ", "$quiet"),
            (position.rjust(len(last)), "bold"),
            (f" of {last}", "$quiet"),
        )
        if head.length
        else Content.styled("no changes", "$quiet"),
    ]
    if head.skipping:
        shown = figures.duration(head.skipping / MICROS)
        parts.append(Content.styled(f"▸▸ nothing for {shown}, shortened to 2 s", "$warning"))
    elif head.position >= head.length and head.length:
        parts.append(Content.styled("end", "$quiet"))
    elif not head.position:
        parts.append(Content.styled("beginning", "$quiet"))
    if head.change is not None:
        parts.append(Content.assemble(("lsn ", "$quiet"), format_lsn(head.change.lsn).ljust(11)))
        xid = str(head.change.xid) if head.change.in_transaction else head.change.operation
        parts.append(Content.assemble(("xid ", "$quiet"), xid))
    parts.append(Content.styled(day(head.time), "$quiet"))
    line = parts[0]
    for part in parts[1:]:
        if line.cell_length + 2 + part.cell_length <= width:
            line = line + "  " + part
    return line
