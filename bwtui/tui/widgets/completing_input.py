"""An input line that completes its text."""

from collections.abc import Callable
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.suggester import Suggester
from textual.widgets import Input

#: Returns a text that begins with the typed one, or None.
Complete = Callable[[str], str | None]


class CompletingInput(Input):
    """Shows a completion after the cursor; → and Tab accept it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "accept", show=False)]

    def __init__(self, complete: Complete, **more: Any) -> None:
        super().__init__(suggester=_Completion(complete), compact=True, **more)
        self._complete = complete

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


class _Completion(Suggester):
    """Textual's interface for completions; nothing is cached, because names come and go."""

    def __init__(self, complete: Complete) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        return self._complete(value)
