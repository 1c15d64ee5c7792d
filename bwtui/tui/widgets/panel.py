"""A panel of text that can have the focus."""

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message

from bwtui.tui.keys import bindings, rebind
from bwtui.tui.plain import Content
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.line import Line


class Panel(Line, can_focus=True):
    """Can be maximised; Enter opens the screen with more details, if there is one."""

    BINDINGS: ClassVar[list[BindingType]] = [one for one in bindings("list") if one.action == "drill"]
    #: The mode of that screen.
    leads_to: ClassVar[str] = ""

    @dataclass
    class Opened(Message):
        """Enter was pressed."""

        mode: str

    def __init__(self, title: str, *, id: str) -> None:
        super().__init__(id=id, classes="panel")
        rebind(self, "list", "drill")
        self.border_title = Content(title)
        self._picture: ScreenSnapshot | None = None
        self._drawn: object = None
        self._remark = ""

    def show(self, picture: ScreenSnapshot) -> None:
        """Draw the snapshot if something changed and there is space."""
        self._picture = picture
        width, height = self.content_size
        drawn = (self.shown_of(picture), width, height)
        if drawn != self._drawn and width > 0 and height > 0:
            self._drawn = drawn
            self.draw(picture, width, height)

    def shown_of(self, picture: ScreenSnapshot) -> object:
        """Return everything that the drawing depends on, apart from its size."""
        raise NotImplementedError

    def draw(self, picture: ScreenSnapshot, width: int, height: int) -> None:
        """Draw in the given number of cells and lines."""
        raise NotImplementedError

    def on_resize(self) -> None:
        """Draw at once for the new size."""
        if self._picture is not None:
            self.show(self._picture)

    def set_remark(self, text: str) -> None:
        """Set the remark in the lower border; Textual would repaint everything even for the same text."""
        if text != self._remark:
            self._remark = text
            self.border_subtitle = Content(text)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable Enter if there is no screen with more details."""
        return action != "drill" or bool(self.leads_to)

    def action_drill(self) -> None:
        """Open the screen with more details."""
        self.post_message(self.Opened(self.leads_to))
