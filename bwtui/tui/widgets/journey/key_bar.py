"""The filter line of the overview, where a key can be typed as well."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from textual.message import Message
from textual.widgets import Input, Label

from bwtui.recording.reading.explain import Key
from bwtui.tui.filtering import Filter
from bwtui.tui.plain import Content, fitted
from bwtui.tui.widgets.filter_bar import FilterBar

#: Cells of a key that the line has room for.
_ROOM = 40


class KeyBar(FilterBar):
    """Filters while typing; of a text that names a key it says so, and Enter goes to the key's journey."""

    @dataclass
    class KeyAsked(Message):
        """The journey of a key is wanted."""

        key: Key

    def __init__(self, understand: Callable[[str], Key | str | None], *more: Any) -> None:
        """``understand`` returns the key that a text names, what is wrong with it, or None of a filter."""
        super().__init__(*more)
        self._understand = understand

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(Input).placeholder = "regex of tables, or a key: orders id=42"

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter by what is typed so far, or say which key it names."""
        # Textual would call the plain filter's handler as well.
        event.prevent_default().stop()
        named = self._understand(event.value)
        parsed = Filter.parse("" if named is not None else event.value)
        said = parsed.complaint
        if isinstance(named, Key):
            said = f"Enter: the journey of {fitted(f'{named.table} {named}', _ROOM)}"
        elif named is not None:
            said = named
        self.query_one("#complaint", Label).update(Content(said))
        self.post_message(self.Changed(parsed))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.prevent_default().stop()
        named = self._understand(event.value)
        if isinstance(named, Key):
            self.clear()
            self.post_message(self.KeyAsked(named))
        elif named is None:
            self.close()
