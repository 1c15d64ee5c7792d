"""A widget for a few lines of text that is painted line by line."""

from collections.abc import Sequence

from textual.geometry import Region
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget

from bwtui.tui.plain import Content


class Line(Widget):
    """Renders and paints only the lines that differ.

    Textual's Static repaints all of its lines and its border: with seven boxes in the pipeline that was half
    of the UI's work.
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None, links: bool = False) -> None:
        """``links``: the text contains parts with an action on click."""
        super().__init__(id=id, classes=classes)
        self.set_reactive(Widget.auto_links, links)
        self._put: object = None
        self._lines: Sequence[Content] = []
        #: The rendered lines by their number, and the width and style that they were rendered for.
        self._strips: dict[int, Strip] = {}
        self._rendered_for: object = None

    def put(self, content: Content | list[Content], *, layout: bool = False) -> None:
        """Show a content or lines; set ``layout`` if its size matters to neighbouring widgets."""
        if content is self._put:
            return
        self._put = content
        new = content if isinstance(content, list) else content.split("\n", allow_blank=True)
        old = self._lines
        changed = [y for y, line in enumerate(new) if y >= len(old) or not line.is_same(old[y])]
        if not changed and len(old) == len(new):
            return
        self._lines = new
        if layout or len(old) != len(new):
            self._strips.clear()
            self.refresh(layout=layout)
            return
        for y in changed:
            self._strips.pop(y, None)
        self.refresh(*(Region(0, y, self.content_size.width, 1) for y in changed))

    def render(self) -> Content:
        return Content("\n").join(self._lines)

    def render_line(self, y: int) -> Strip:
        """Render a line, unless it is cached; wrapped lines are rendered together with all others."""
        if self.styles.text_wrap != "nowrap" or self.text_selection is not None:
            self._strips.clear()
            return super().render_line(y)
        width, style = self.size.width, self.visual_style
        if (width, style) != self._rendered_for:
            self._rendered_for = (width, style)
            self._strips.clear()
        self._dirty_regions.clear()
        strip = self._strips.get(y)
        if strip is None:
            line = self._lines[y] if y < len(self._lines) else Content("")
            (strip,) = Visual.to_strips(self, line, width, 1, style) or (
                Strip.blank(width, style.rich_style),
            )
            self._strips[y] = strip
        return strip

    def notify_style_update(self) -> None:
        """Discard the rendered lines, because they contain the theme's colours."""
        self._strips.clear()
        super().notify_style_update()
