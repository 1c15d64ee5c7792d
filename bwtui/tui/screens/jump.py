"""Jump mode: a letter over each panel and tab; typing the letter goes there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Offset, Size
from textual.screen import ModalScreen
from textual.widgets import Label, Static

#: The home row comes first.
_LETTERS = "asdfghjklqwertyuiopzxcvbnm"


@dataclass(frozen=True)
class JumpTarget:
    """The position of a letter, and its action."""

    offset: Offset
    go: Callable[[], object]


class JumpScreen(ModalScreen[JumpTarget | None]):
    """Covers a screen until a letter is typed; Esc or a change of the terminal's size closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Leave")]

    def __init__(self, places: Sequence[JumpTarget]) -> None:
        super().__init__()
        self.places = dict(zip(_LETTERS, places, strict=False))
        self._laid_out_for: Size | None = None

    def compose(self) -> ComposeResult:
        """Create the letters, and a line that explains them."""
        for letter, place in self.places.items():
            label = Label(f" {letter} ", classes="letter", markup=False)
            label.styles.offset = place.offset
            yield label
        yield Static("type a letter to go there · Esc closes", id="how", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Go to the letter's target; other keys have no effect."""
        if event.key == "escape":
            return
        event.stop()
        place = self.places.get(event.key)
        if place is not None:
            self.dismiss(place)

    def on_click(self) -> None:
        """Close, because the mouse needs no letters."""
        self.dismiss(None)

    def on_resize(self, event: events.Resize) -> None:
        """Close if the letters would no longer be over their panels."""
        if self._laid_out_for not in (None, event.size):
            self.dismiss(None)
        self._laid_out_for = event.size
