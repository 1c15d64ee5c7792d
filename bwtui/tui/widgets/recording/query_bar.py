"""The line in which a query over a recording's changes is typed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Label

from bwtui.recording.query.completion import QueryNames, completed
from bwtui.recording.query.language import Query, QueryError, parse
from bwtui.recording.query.row_query import parse_row_query
from bwtui.tui.widgets.completing_input import CompletingInput
from bwtui.tui.widgets.filter_bar import FilterBar

EXAMPLE = "table = orders and op = update and after.status = 'paid'"
ROW_EXAMPLE = "after.status = 'paid' and key.id > 100"


class QueryBar(FilterBar):
    """Points at mistakes while the user types; searches on Enter, because that may take a while."""

    words: ClassVar[tuple[str, str]] = ("Search", "Clear")
    #: Shown while the line is empty.
    example: ClassVar[str] = EXAMPLE

    @dataclass
    class Asked(Message):
        """The query has changed; None shows all changes."""

        query: Query | None

    def __init__(self, end: int, names: Callable[[], QueryNames] = QueryNames) -> None:
        super().__init__()
        self._end = end
        self._of_recording = names

    def complete(self, text: str) -> str | None:
        """Return a completion of the query."""
        return completed(text, self._of_recording())

    def compose(self) -> ComposeResult:
        """Create the input, and the line that points into it."""
        with Horizontal():
            yield Label("/", id="slash")
            yield CompletingInput(self.complete, placeholder=self.example, select_on_focus=False)
        yield Label("", id="pointer", markup=False)

    def clear(self) -> None:
        """Show all changes again."""
        super().clear()
        self.post_message(self.Asked(None))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show the first mistake in the text typed so far."""
        # Otherwise Textual would call the base class's handler as well.
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
