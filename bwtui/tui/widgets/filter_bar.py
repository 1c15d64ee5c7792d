"""The line where a filter is typed."""

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Label

from bwtui.tui.filtering import Filter
from bwtui.tui.plain import Content


class FilterBar(Horizontal):
    """Hidden until ``/``; filters while typing, says when the text is no regex, Enter keeps it."""

    #: What Enter and Esc do, for the footer.
    words: ClassVar[tuple[str, str]] = ("Keep", "Clear")

    @dataclass
    class Changed(Message):
        """What is filtered by changed."""

        filter: Filter

    class Closed(Message):
        """The user is done typing."""

    def compose(self) -> ComposeResult:
        """Make the input and the room for a complaint."""
        yield Label("/", id="slash")
        yield Input(placeholder="regex, or !regex for all others", compact=True, select_on_focus=False)
        yield Label("", id="complaint", markup=False)

    def on_mount(self) -> None:
        self.display = False

    def open(self) -> None:
        """Show the line and type."""
        self.display = True
        self.query_one(Input).focus()

    def close(self) -> None:
        """Hide the line; what was typed goes on filtering."""
        self.display = False
        self.post_message(self.Closed())

    def clear(self) -> None:
        """Filter nothing any more, and hide the line."""
        self.query_one(Input).value = ""
        self.close()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter by what is typed so far."""
        event.stop()
        parsed = Filter.parse(event.value)
        self.query_one("#complaint", Label).update(Content(parsed.complaint))
        self.post_message(self.Changed(parsed))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.close()
