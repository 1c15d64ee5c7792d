"""The available keys in the last line: one widget, where Textual's footer creates one per key."""

from textual import events
from textual.screen import Screen

from bwtui.tui.plain import Content
from bwtui.tui.widgets.line import Line


class KeyLine(Line):
    """Follows the bindings of its screen; a click on a key presses it."""

    def __init__(self) -> None:
        super().__init__(id="keys")
        #: Start and end of each key in the line, the key itself, and its description.
        self._places: list[tuple[int, int, str, str]] = []

    def on_mount(self) -> None:
        """Subscribe to changes of the screen's bindings."""
        self.screen.bindings_updated_signal.subscribe(self, self._follow)
        self.call_next(self._follow, self.screen)

    def _follow(self, screen: Screen[object]) -> None:
        if not self.is_attached or screen is not self.screen or not screen.app.app_focus:
            return
        parts: list[tuple[str, str]] = []
        self._places, at = [], 0
        shown = {
            one.binding.action: one for one in reversed(screen.active_bindings.values()) if one.binding.show
        }
        for _, binding, enabled, tooltip in reversed(shown.values()):
            key = self.app.get_key_display(binding)
            text = f" {binding.description} "
            tone = "" if enabled else "dim "
            parts += [
                (key, f"{tone}bold $footer-key-foreground"),
                (text, f"{tone}$footer-description-foreground"),
            ]
            end = at + Content(key + text).cell_length
            if enabled:
                self._places.append((at, end, binding.key, tooltip or binding.description))
            at = end
        self.put(Content.assemble(*parts))

    def on_click(self, event: events.Click) -> None:
        """Press the clicked key."""
        if place := self._at(event.x):
            self.app.simulate_key(place[0])

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show a description of the key under the mouse."""
        place = self._at(event.x)
        self.tooltip = Content(place[1]) if place else None

    def _at(self, x: int) -> tuple[str, str] | None:
        return next(((key, text) for begin, end, key, text in self._places if begin <= x < end), None)
