"""Text of one or a few lines that is painted line by line."""

from textual.geometry import Region
from textual.widget import Widget

from bwtui.tui.plain import Content


class Line(Widget):
    """Paints only the lines that differ.

    Textual's Static paints all of its lines and its border anew: with seven boxes in the pipeline that was
    half of the UI's work.
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._text = Content("")
        self._lines: list[Content] = []

    def put(self, content: Content, *, layout: bool = False) -> None:
        """Show a content; ``layout`` if its size matters to its neighbours."""
        old, new = self._lines, content.split("\n", allow_blank=True)
        changed = [y for y, line in enumerate(new) if y >= len(old) or not line.is_same(old[y])]
        if not changed and len(old) == len(new):
            return
        self._text, self._lines = content, new
        if layout or len(old) != len(new):
            self.refresh(layout=layout)
        else:
            self.refresh(*(Region(0, y, self.content_size.width, 1) for y in changed))

    def render(self) -> Content:
        return self._text
