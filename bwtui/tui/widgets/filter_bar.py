"""The line in which a filter is typed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Label

from bwtui.tui.filtering import Filter, completed
from bwtui.tui.plain import Content
from bwtui.tui.widgets.completing_input import CompletingInput


class FilterBar(Horizontal):
    """Hidden until ``/``; filters during typing, and reports an invalid regex; Enter keeps the filter."""

    #: The effects of Enter and Esc, for the footer.
    words: ClassVar[tuple[str, str]] = ("Keep", "Clear")

    @dataclass
    class Changed(Message):
        """The filter has changed."""

        filter: Filter

    class Closed(Message):
        """The user has finished typing."""

    def __init__(self, names: Callable[[], Iterable[str]] = tuple) -> None:
        super().__init__()
        self._names = names

    def complete(self, text: str) -> str | None:
        """Return a completion of the text."""
        return completed(text, self._names())

    def compose(self) -> ComposeResult:
        """Create the input, and the label for a complaint."""
        yield Label("/", id="slash")
        placeholder = "regex, or !regex for all others"
        yield CompletingInput(self.complete, placeholder=placeholder, select_on_focus=False)
        yield Label("", id="complaint", markup=False)

    def on_mount(self) -> None:
        self.display = False

    def open(self) -> None:
        """Show the line, and focus it."""
        self.display = True
        self.query_one(Input).focus()

    def close(self) -> None:
        """Hide the line; the filter stays active."""
        self.display = False
        self.post_message(self.Closed())

    def clear(self) -> None:
        """Remove the filter, and hide the line."""
        self.query_one(Input).value = ""
        self.close()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter by the text typed so far."""
        event.stop()
        parsed = Filter.parse(event.value)
        self.query_one("#complaint", Label).update(Content(parsed.complaint))
        self.post_message(self.Changed(parsed))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.close()
