"""The filter line of the overview, in which a key can be typed too."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from textual.message import Message
from textual.widgets import Input, Label

from bwtui.recording.reading.explain import RowKey
from bwtui.tui.filtering import Filter
from bwtui.tui.plain import Content, fitted
from bwtui.tui.widgets.filter_bar import FilterBar

#: Maximum cells of a key in the line.
_ROOM = 40


class KeyBar(FilterBar):
    """Filters while the user types; for a text that names a key, Enter opens the key's journey."""

    @dataclass
    class KeyAsked(Message):
        """The user wants to see the journey of a key."""

        key: RowKey

    def __init__(self, understand: Callable[[str], RowKey | str | None], *more: Any) -> None:
        """``understand`` returns the key that a text names, what is wrong with it, or None for a filter."""
        super().__init__(*more)
        self._understand = understand

    def on_mount(self) -> None:
        self.query_one(Input).placeholder = "regex of tables, or a key: orders id=42"

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter by the text typed so far, or show which key it names."""
        # Otherwise Textual would call the base class's handler as well.
        event.prevent_default().stop()
        named = self._understand(event.value)
        parsed = Filter.parse("" if named is not None else event.value)
        said = parsed.complaint
        if isinstance(named, RowKey):
            said = f"Enter: the journey of {fitted(f'{named.table} {named}', _ROOM)}"
        elif named is not None:
            said = named
        self.query_one("#complaint", Label).update(Content(said))
        self.post_message(self.Changed(parsed))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.prevent_default().stop()
        named = self._understand(event.value)
        if isinstance(named, RowKey):
            self.clear()
            self.post_message(self.KeyAsked(named))
        elif named is None:
            self.close()
