"""A panel of text that can have the focus."""

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message

from bwtui.tui.keys import bindings, rebind
from bwtui.tui.plain import Content
from bwtui.tui.state import Picture
from bwtui.tui.widgets.line import Line


class Panel(Line, can_focus=True):
    """The key that maximises gives it the screen; Enter goes to the screen that has more of it, if any."""

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
        self._picture: Picture | None = None
        self._drawn: object = None
        self._remark = ""

    def show(self, picture: Picture) -> None:
        """Paint what changed, if there is any room."""
        self._picture = picture
        width, height = self.content_size
        drawn = (self.shown_of(picture), width, height)
        if drawn != self._drawn and width > 0 and height > 0:
            self._drawn = drawn
            self.draw(picture, width, height)

    def shown_of(self, picture: Picture) -> object:
        """Return all that a drawing depends on, besides its size."""
        raise NotImplementedError

    def draw(self, picture: Picture, width: int, height: int) -> None:
        """Draw in so many cells and lines."""
        raise NotImplementedError

    def on_resize(self) -> None:
        """Draw for the new size at once."""
        if self._picture is not None:
            self.show(self._picture)

    def set_remark(self, text: str) -> None:
        """Put a remark into the lower border; Textual would paint everything anew for the same text, too."""
        if text != self._remark:
            self._remark = text
            self.border_subtitle = Content(text)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave Enter out where it leads nowhere."""
        return action != "drill" or bool(self.leads_to)

    def action_drill(self) -> None:
        """Go where more of it stands."""
        self.post_message(self.Opened(self.leads_to))
