"""Paints the changed parts of a screen without requesting the lines of every other widget."""

from collections.abc import Iterable

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.strip import Strip


class PartialCompositor(Compositor):
    """Textual's own compositor renders each widget between the first and the last change, which may be all.

    A changed cell belongs to the topmost widget there. So widgets without a changed cell contribute nothing
    to the painting, and the others contribute only the lines with such cells.
    """

    #: The changed regions; None while the whole screen is painted.
    _changed: tuple[Region, ...] | None = None

    def render_partial_update(self) -> ChopsUpdate | None:
        """Render the changed regions, if there are any."""
        self._changed = tuple(self._dirty_regions)
        try:
            return super().render_partial_update()
        finally:
            self._changed = None

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        if self._changed is None:
            yield from super()._get_renders(crop)
            return
        for widget, (region, clip) in self.visible_widgets.items():
            shown = region.intersection(clip)
            lines = [(part.y, part.bottom) for one in self._changed if (part := shown.intersection(one)).area]
            if lines:
                top = min(first for first, _ in lines)
                part = Region(shown.x, top, shown.width, max(last for _, last in lines) - top)
                yield part, clip, widget.render_lines(part.translate(-region.offset))
