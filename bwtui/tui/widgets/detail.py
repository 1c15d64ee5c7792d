"""A panel that shows one thing in full."""

from rich.console import RenderableType
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from bwtui.tui.plain import Content


class Detail(VerticalScroll, can_focus=True):
    """Scrollable text about the selected row; painted only when its content changes."""

    def __init__(self, *, id: str, title: str) -> None:
        super().__init__(id=id, classes="panel")
        self.border_title = Content(title)
        self._shown: object = self

    def compose(self) -> ComposeResult:
        yield Static("", markup=False)

    def show(self, identity: object, content: "RenderableType | Content") -> None:
        """Show a content, unless ``identity`` is the same as for the present one."""
        if identity == self._shown:
            return
        self._shown = identity
        self.query_one(Static).update(content)
        self.scroll_home(animate=False)
