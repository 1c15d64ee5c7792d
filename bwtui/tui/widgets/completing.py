"""A line that completes what is typed in it."""

from collections.abc import Callable
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.suggester import Suggester
from textual.widgets import Input

#: Returns a text that begins with what was typed, or None.
Complete = Callable[[str], str | None]


class CompletingInput(Input):
    """Shows behind the cursor how the text could go on; → takes it, and so does Tab."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "accept", show=False)]

    def __init__(self, complete: Complete, **more: Any) -> None:
        super().__init__(suggester=_Completion(complete), compact=True, **more)
        self._complete = complete

    @property
    def completion(self) -> str | None:
        """How the text could go on from its end."""
        return self._complete(self.value) if self.value and self.cursor_at_end else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave Tab to the screen where there is nothing to take."""
        return self.completion is not None if action == "accept" else True

    def action_accept(self) -> None:
        """Take what is shown behind the cursor."""
        if (completion := self.completion) is not None:
            self.value = completion
            self.action_end()


class _Completion(Suggester):
    """Textual's interface to it; names come and go, so nothing is kept."""

    def __init__(self, complete: Complete) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        return self._complete(value)
