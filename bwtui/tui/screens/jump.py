"""Jump mode: a letter over each panel and tab, and the letter goes there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Offset, Size
from textual.screen import ModalScreen
from textual.widgets import Label, Static

#: The home row first.
_LETTERS = "asdfghjklqwertyuiopzxcvbnm"


@dataclass(frozen=True)
class Place:
    """Where a letter stands, and what it does."""

    offset: Offset
    go: Callable[[], object]


class JumpScreen(ModalScreen[Place | None]):
    """Lies over a screen until a letter is typed; Esc leaves, and so does a change of the terminal's size."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Leave")]

    def __init__(self, places: Sequence[Place]) -> None:
        super().__init__()
        self.places = dict(zip(_LETTERS, places, strict=False))
        self._laid_out_for: Size | None = None

    def compose(self) -> ComposeResult:
        """Make the letters, and the line that says what they are for."""
        for letter, place in self.places.items():
            label = Label(f" {letter} ", classes="letter", markup=False)
            label.styles.offset = place.offset
            yield label
        yield Static("a letter goes there · Esc leaves", id="how", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Go where the letter stands; any other key does nothing."""
        if event.key == "escape":
            return
        event.stop()
        place = self.places.get(event.key)
        if place is not None:
            self.dismiss(place)

    def on_click(self) -> None:
        """The mouse needs no letters."""
        self.dismiss(None)

    def on_resize(self, event: events.Resize) -> None:
        """Leave when the letters would stand beside their panels."""
        if self._laid_out_for not in (None, event.size):
            self.dismiss(None)
        self._laid_out_for = event.size
