"""The line in which a position of the recording is typed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Label

from bwtui.errors import BwtuiError
from bwtui.recording.reading.seek_target import FORMS
from bwtui.tui.plain import Content, with_hint
from bwtui.tui.widgets.completing_input import CompletingInput


class SeekBar(Vertical):
    """Hidden until ``:``; stays open, with a complaint, if the text is not a position of the recording.

    Below the input are the accepted forms, or the complaint, in as many lines as needed.
    """

    #: The effects of Enter and Esc, for the footer.
    words: ClassVar[tuple[str, str]] = ("Go", "Close")

    @dataclass
    class Submitted(Message):
        """The user wants to go to a position."""

        text: str

    class Closed(Message):
        """The user has finished typing."""

    #: Examples of all accepted forms, for the present position.
    _places: Sequence[str] = ()

    def compose(self) -> ComposeResult:
        """Create the input, and the label for a complaint."""
        with Horizontal():
            yield Label(":", id="colon")
            yield CompletingInput(self._completed, placeholder="go to?", select_on_focus=True)
        yield Label(FORMS, id="forms", markup=False)

    def on_mount(self) -> None:
        self.display = False

    def open(self, places: Sequence[str] = ()) -> None:
        """Show the line, and focus it; ``places`` are its completions."""
        self._places = places
        self.display = True
        self._complain("")
        self.query_one(Input).focus()

    def close(self) -> None:
        """Hide the line."""
        self.display = False
        self.post_message(self.Closed())

    def answer(self, error: BwtuiError | None) -> None:
        """Close, or show why the position can't be found."""
        if error is None:
            self.close()
        else:
            self._complain(with_hint(error))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Remove the complaint while the user corrects the text."""
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
