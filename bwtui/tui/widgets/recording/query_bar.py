"""The line where a query over a recording's changes is typed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Label

from bwtui.recording.query.completing import Names, completed
from bwtui.recording.query.language import Query, QueryError, parse
from bwtui.recording.query.of_rows import parse_row_query
from bwtui.tui.widgets.completing import CompletingInput
from bwtui.tui.widgets.filter_bar import FilterBar

EXAMPLE = "table = orders and op = update and after.status = 'paid'"
ROW_EXAMPLE = "after.status = 'paid' and key.id > 100"


class QueryBar(FilterBar):
    """Points at what it does not understand while one types; Enter searches, for that may take a while."""

    words: ClassVar[tuple[str, str]] = ("Search", "Clear")
    #: What stands there before anything is typed.
    example: ClassVar[str] = EXAMPLE

    @dataclass
    class Asked(Message):
        """Another query is wanted; None for all changes."""

        query: Query | None

    def __init__(self, end: int, names: Callable[[], Names] = Names) -> None:
        super().__init__()
        self._end = end
        self._of_recording = names

    def complete(self, text: str) -> str | None:
        """Return how the query could go on."""
        return completed(text, self._of_recording())

    def compose(self) -> ComposeResult:
        """Make the input, and the line that points into it."""
        with Horizontal():
            yield Label("/", id="slash")
            yield CompletingInput(self.complete, placeholder=self.example, select_on_focus=False)
        yield Label("", id="pointer", markup=False)

    def clear(self) -> None:
        """Show all changes again."""
        super().clear()
        self.post_message(self.Asked(None))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Say what is not understood so far."""
        # Textual would call the plain filter's handler as well.
        event.prevent_default().stop()
        self._understand(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.prevent_default().stop()
        if not event.value.strip():
            self.clear()
        elif (query := self._understand(event.value)) is not None:
            self.close()
            self.post_message(self.Asked(query))

    def on_resize(self, event: events.Resize) -> None:
        """Point to the same place after a change of size."""
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
        """Return the query that was typed. Raises QueryError."""
        return parse(text, self._end)

    def _column(self, text: str, column: int) -> int:
        """Return where a character of the text stands on the screen."""
        typed = self.query_one(Input)
        return typed.region.x - self.region.x + cell_len(text[:column]) - typed.scroll_offset.x


class RowQueryBar(QueryBar):
    """The same for the rows of a table."""

    example: ClassVar[str] = ROW_EXAMPLE

    def parse(self, text: str) -> Query:
        return parse_row_query(text)


def pointed(message: str, column: int, x: int, width: int) -> str:
    """Return a line that points at ``x``, with the message on the side where there is room."""
    if x < 0 or x >= width:
        return f"column {column + 1}: {message}"[:width]
    if x + 2 + len(message) <= width:
        return " " * x + "^ " + message
    if len(message) + 1 <= x:
        return message.rjust(x - 1) + " ^"
    return (" " * x + "^ " + message)[:width] if x < width // 2 else f"column {column + 1}: {message}"[:width]
