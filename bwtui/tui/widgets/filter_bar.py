"""The / filter, the line in which it is typed, and that line's input with completions."""

import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.suggester import Suggester
from textual.widgets import Input, Label

from bwtui.tui.base.plain import Content

Mode = Literal["off", "regex", "fuzzy"]
_PLAIN = re.compile(r"[\w.]+")


@dataclass(frozen=True)
class Filter:
    """A filter over lines of text; the empty filter matches every line."""

    text: str = ""
    mode: Mode = "off"
    inverse: bool = False
    #: Why the text is not a valid regex; set only if the mode is "fuzzy".
    complaint: str = ""
    _pattern: re.Pattern[str] | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str) -> "Filter":
        """Parse the typed text: a leading ``!`` inverts; case matters only if it has a capital letter."""
        inverse = text.startswith("!")
        body = text[1:] if inverse else text
        if not body:
            return cls(text)
        flags = re.IGNORECASE if body.islower() or not any(c.isalpha() for c in body) else 0
        try:
            with warnings.catch_warnings():
                # Ignore warnings that a later Python may read a pattern such as [[ differently: the user
                # can't act on them.
                warnings.simplefilter("ignore", FutureWarning)
                return cls(text, "regex", inverse, "", re.compile(body, flags))
        except re.error as error:
            letters = ".*?".join(re.escape(letter) for letter in body if not letter.isspace())
            complaint = f"invalid regex ({error.msg}): matching its letters in order"
            return cls(text, "fuzzy", inverse, complaint, re.compile(letters, re.IGNORECASE))

    def __bool__(self) -> bool:
        return self._pattern is not None

    def passes(self, line: str) -> bool:
        """Return whether a line matches."""
        if self._pattern is None:
            return True
        return (self._pattern.search(line) is None) == self.inverse

    def describe(self) -> str:
        """Describe the filter in a few words, for a panel's border."""
        if self._pattern is None:
            return ""
        return f"/{self.text}" + (" (letters in order)" if self.mode == "fuzzy" else "")


def completed(text: str, names: Iterable[str]) -> str | None:
    """Return the filter completed to one of ``names``, or None; skip names that are not plain words."""
    inverse, typed = ("!", text[1:]) if text.startswith("!") else ("", text)
    for name in names:
        # A table's name also completes without its schema.
        for part in (name, name.rpartition(".")[2]):
            if typed and len(part) > len(typed) and part.startswith(typed) and _PLAIN.fullmatch(part):
                return inverse + part
    return None


#: Returns a text that begins with the typed one, or None.
Complete = Callable[[str], str | None]
#: Takes the typed text.
TakeText = Callable[[str], object]


class CompletingInput(Input):
    """Shows a completion after the cursor; → and Tab accept it.

    The typed text is passed on at once, not in a message: the next key may be meant for its result.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "accept", show=False)]

    def __init__(self, complete: Complete, typed: TakeText, submitted: TakeText, **more: Any) -> None:
        super().__init__(suggester=_Completion(complete), compact=True, **more)
        self._complete, self._typed, self._submitted = complete, typed, submitted

    @property
    def completion(self) -> str | None:
        """The completion of the text, if the cursor is at its end."""
        return self._complete(self.value) if self.value and self.cursor_at_end else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave Tab to the screen if there is no completion."""
        return self.completion is not None if action == "accept" else True

    def action_accept(self) -> None:
        """Accept the completion."""
        if (completion := self.completion) is not None:
            self.value = completion
            self.action_end()

    def watch_value(self, value: str) -> None:
        self._typed(value)

    async def action_submit(self) -> None:
        self._submitted(self.value)


class _Completion(Suggester):
    """Textual's interface for completions; nothing is cached, because names come and go."""

    def __init__(self, complete: Complete) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        return self._complete(value)


class FilterBar(Horizontal):
    """Hidden until ``/``; filters during typing, and reports an invalid regex; Enter keeps the filter."""

    #: The effects of Enter and Esc, for the footer.
    words: ClassVar[tuple[str, str]] = ("Keep", "Clear")
    #: Shown while the line is empty.
    example: ClassVar[str] = "regex, or !regex for all others"

    def __init__(
        self,
        apply: Callable[[Filter], object],
        leave: Callable[[], object],
        names: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """``apply`` takes every filter, ``leave`` returns the focus, ``names`` complete a filter."""
        super().__init__()
        self._apply, self._leave, self._names = apply, leave, names
        self.display = False

    def complete(self, text: str) -> str | None:
        """Return a completion of the text."""
        return completed(text, self._names())

    def input(self) -> Input:
        """Return a new input of this line."""
        return CompletingInput(
            self.complete, self.typed, self.submitted, placeholder=self.example, select_on_focus=False
        )

    def compose(self) -> ComposeResult:
        yield Label("/", id="slash")
        yield self.input()
        yield Label("", id="complaint", markup=False)

    def open(self) -> None:
        """Show the line, and focus it."""
        self.display = True
        # Unlike `Widget.focus`, this takes effect before the next key.
        self.screen.set_focus(self.query_one(Input))

    def close(self) -> None:
        """Hide the line; the filter stays active."""
        self.display = False
        self._leave()

    def clear(self) -> None:
        """Remove the filter, and hide the line."""
        self.query_one(Input).value = ""
        self.close()

    def typed(self, text: str) -> None:
        """Filter by the text typed so far."""
        parsed = Filter.parse(text)
        self.query_one("#complaint", Label).update(Content(parsed.complaint))
        self._apply(parsed)

    def submitted(self, text: str) -> None:
        """Keep the filter."""
        self.close()
