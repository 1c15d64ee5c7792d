"""The bar of a recording: its timeline and position, and the lines for a typed position or query."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Label

from bwtui.errors import BwtuiError
from bwtui.model.lsn import format_lsn
from bwtui.model.status import RecordingStatus
from bwtui.recording.playback import FORMS, MICROS
from bwtui.recording.query_completion import QueryNames, completed, parse_row_query
from bwtui.recording.query_language import Query, QueryError, parse
from bwtui.tui.base import figures
from bwtui.tui.base.plain import Content, with_hint
from bwtui.tui.sources.model import Playhead
from bwtui.tui.widgets.filter_bar import CompletingInput, FilterBar
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
    def buckets_needed(self) -> int | None:
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
            ("position ", "$quiet"), (position.rjust(len(last)), "bold"), (f" of {last}", "$quiet")
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


class SeekBar(Vertical):
    """Hidden until ``:``; stays open, with a complaint, if the text is not a position of the recording.

    Below the input are the accepted forms, or the complaint, in as many lines as needed.
    """

    #: The effects of Enter and Esc, for the footer.
    words: ClassVar[tuple[str, str]] = ("Go", "Close")
    #: Examples of all accepted forms, for the present position.
    _places: Sequence[str] = ()

    def __init__(self, go: Callable[[str], object], leave: Callable[[], object]) -> None:
        """``go`` takes the position to go to; ``leave`` returns the focus."""
        super().__init__()
        self._go, self._leave = go, leave
        self.display = False

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Label(":", id="colon")
            yield CompletingInput(
                self._completed, self._typed, self._submitted, placeholder="go to?", select_on_focus=True
            )
        yield Label(FORMS, id="forms", markup=False)

    def open(self, places: Sequence[str] = ()) -> None:
        """Show the line, and focus it; ``places`` are its completions."""
        self._places = places
        self.display = True
        self._complain("")
        self.screen.set_focus(self.query_one(Input))

    def close(self) -> None:
        """Hide the line."""
        self.display = False
        self._leave()

    def answer(self, error: BwtuiError | None) -> None:
        """Close, or show why the position can't be found."""
        if error is None:
            self.close()
        else:
            self._complain(with_hint(error))

    def _typed(self, text: str) -> None:
        """Remove the complaint while the user corrects the text."""
        self._complain("")

    def _submitted(self, text: str) -> None:
        if text.strip():
            self._go(text)
        else:
            self.close()

    def _completed(self, text: str) -> str | None:
        typed = text.lower()
        longer = (place for place in self._places if len(place) > len(text))
        return next((place for place in longer if place.lower().startswith(typed)), None)

    def _complain(self, text: str) -> None:
        below = self.query_one("#forms", Label)
        below.set_class(bool(text), "-complaint")
        below.update(Content(text or FORMS))


EXAMPLE = "table = orders and op = update and after.status = 'paid'"
ROW_EXAMPLE = "after.status = 'paid' and key.id > 100"


class QueryBar(FilterBar):
    """Points at mistakes while the user types; searches on Enter, because that may take a while."""

    words: ClassVar[tuple[str, str]] = ("Search", "Clear")
    example: ClassVar[str] = EXAMPLE

    def __init__(
        self, search: Callable[[Query | None], object], end: int, names: Callable[[], QueryNames], *more: Any
    ) -> None:
        """``search`` takes the query, or None for all changes; ``names`` complete it."""
        super().__init__(*more)
        self._search, self._end, self._of_recording = search, end, names

    def complete(self, text: str) -> str | None:
        return completed(text, self._of_recording())

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Label("/", id="slash")
            yield self.input()
        yield Label("", id="pointer", markup=False)

    def clear(self) -> None:
        super().clear()
        self._search(None)

    def typed(self, text: str) -> None:
        """Show the first mistake in the text typed so far."""
        self._understand(text)

    def submitted(self, text: str) -> None:
        """Search, unless the query has a mistake."""
        if not text.strip():
            self.clear()
        elif (query := self._understand(text)) is not None:
            self.close()
            self._search(query)

    def on_resize(self, event: events.Resize) -> None:
        """Point at the same character after a change of size."""
        self._understand(self.query_one(Input).value)

    def _understand(self, text: str) -> Query | None:
        pointer = self.query_one("#pointer", Label)
        pointer.display = False
        if not text.strip():
            return None
        try:
            return self.parse(text)
        except QueryError as error:
            pointer.display = True
            pointer.update(
                pointed(error.problem, error.column, self._column(text, error.column), self.size.width)
            )
            return None

    def parse(self, text: str) -> Query:
        """Return the typed query. Raises QueryError."""
        return parse(text, self._end)

    def _column(self, text: str, column: int) -> int:
        """Return the column on screen of a character of the text."""
        typed = self.query_one(Input)
        return typed.region.x - self.region.x + cell_len(text[:column]) - typed.scroll_offset.x


class RowQueryBar(QueryBar):
    """The same for a query over the rows of a table."""

    example: ClassVar[str] = ROW_EXAMPLE

    def parse(self, text: str) -> Query:
        return parse_row_query(text)


def pointed(message: str, column: int, x: int, width: int) -> str:
    """Return a line that points at ``x``, with the message on the side where it fits."""
    if x < 0 or x >= width:
        return f"column {column + 1}: {message}"[:width]
    if x + 2 + len(message) <= width:
        return " " * x + "^ " + message
    if len(message) + 1 <= x:
        return message.rjust(x - 1) + " ^"
    return (" " * x + "^ " + message)[:width] if x < width // 2 else f"column {column + 1}: {message}"[:width]


#: Remaining seconds of disk space at the present rate below which a warning is shown.
_LITTLE_TIME = 3600.0
_LITTLE_ROOM = 1 << 30


class RecordingLine(Line):
    """Shows rate, size and free disk space; hidden if nothing is recorded."""

    def show(self, recording: RecordingStatus | None) -> None:
        """Paint what changed."""
        self.display = recording is not None
        if self.parent is not None:
            self.parent.set_class(recording is not None, "-recording")
        if recording is not None:
            self.put(recording_content(recording, self.content_size.width))


def recording_content(recording: RecordingStatus, width: int) -> Content:
    """Return the line for ``width`` cells, without the least important parts if space is short."""
    if recording.state == "recording":
        mark = Content.styled("● REC", "bold $error")
    else:
        label = "✗ RECORDING STOPPED" if recording.state == "stopped" else "✗ RECORDING FAILED"
        mark = Content.styled(label, "bold $error")
    rate = f"{figures.size(round(recording.bytes_per_second))}/s"
    parts = [mark]
    if recording.state == "recording":
        parts.append(Content(rate))
    parts.append(Content.assemble((f"{figures.size(recording.bytes)}", ""), (" written", "$quiet")))
    parts.append(_room(recording))
    parts.append(Content.styled(_files(recording), "$quiet"))
    parts.append(Content.styled(Path(recording.path).name, "$quiet"))
    while len(parts) > 2 and sum(part.cell_length for part in parts) + 2 * (len(parts) - 1) > width:
        parts.pop()
    return Content("  ").join(parts)


def _room(recording: RecordingStatus) -> Content:
    time_left, free = recording.seconds_left, recording.free_bytes
    time = "" if time_left is None else f" ≈ {figures.duration(time_left)}"
    is_short = (free is not None and free < _LITTLE_ROOM) or (
        time_left is not None and time_left < _LITTLE_TIME
    )
    text = f"{'▲ ' if is_short else ''}free {figures.NONE if free is None else figures.size(free)}{time}"
    return Content.styled(text, "$warning" if is_short else "")


def _files(recording: RecordingStatus) -> str:
    return f"{recording.segments} file{'s' if recording.segments != 1 else ''}"
