"""The line where a place in the recording is typed."""

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Label

from bwtui.errors import BwtuiError
from bwtui.recording.target import FORMS


class SeekBar(Horizontal):
    """Hidden until ``:``; stays open, and says why, when the text is no place in the recording."""

    @dataclass
    class Submitted(Message):
        """The user wants to go somewhere."""

        text: str

    class Closed(Message):
        """The user is done."""

    def compose(self) -> ComposeResult:
        """Make the input and the room for a complaint."""
        yield Label(":", id="colon")
        yield Input(placeholder=FORMS, compact=True, select_on_focus=True)
        yield Label("", id="complaint", markup=False)

    def on_mount(self) -> None:
        """Start hidden."""
        self.display = False

    def open(self) -> None:
        """Show the line and type."""
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
            self._complain(error.message + (f": {error.hint}" if error.hint else ""))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Take the complaint back while the text is mended."""
        event.stop()
        self._complain("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go there."""
        event.stop()
        if event.value.strip():
            self.post_message(self.Submitted(event.value))
        else:
            self.close()

    def _complain(self, text: str) -> None:
        self.query_one("#complaint", Label).update(text)
