"""The line where a place in the recording is typed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Label

from bwtui.errors import BwtuiError
from bwtui.recording.reading.target import FORMS
from bwtui.tui.plain import Content, with_hint
from bwtui.tui.widgets.completing import CompletingInput


class SeekBar(Vertical):
    """Hidden until ``:``; stays open, and says why, when the text is no place in the recording.

    Below the line stands what may be typed, or the complaint, in as many lines as that needs.
    """

    #: What Enter and Esc do, for the footer.
    words: ClassVar[tuple[str, str]] = ("Go", "Close")

    @dataclass
    class Submitted(Message):
        """The user wants to go somewhere."""

        text: str

    class Closed(Message):
        """The user is done."""

    #: What may be typed, with what it would be at the present place.
    _places: Sequence[str] = ()

    def compose(self) -> ComposeResult:
        """Make the input and the room for a complaint."""
        with Horizontal():
            yield Label(":", id="colon")
            yield CompletingInput(self._completed, placeholder="where to?", select_on_focus=True)
        yield Label(FORMS, id="forms", markup=False)

    def on_mount(self) -> None:
        self.display = False

    def open(self, places: Sequence[str] = ()) -> None:
        """Show the line and type; ``places`` are what it completes."""
        self._places = places
        self.display = True
        self._complain("")
        self.query_one(Input).focus()

    def close(self) -> None:
        """Hide the line."""
        self.display = False
        self.post_message(self.Closed())

    def answer(self, error: BwtuiError | None) -> None:
        """Close, or say why the place can't be found."""
        if error is None:
            self.close()
        else:
            self._complain(with_hint(error))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Take the complaint back while the text is mended."""
        event.stop()
        self._complain("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value.strip():
            self.post_message(self.Submitted(event.value))
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
