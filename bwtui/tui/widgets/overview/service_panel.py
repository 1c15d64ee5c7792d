"""The base of panels about service views that are polled at the slower rate."""

import textwrap
from collections.abc import Iterator

from bwtui.model.service_views import Look
from bwtui.tui import figures
from bwtui.tui.keys import key_for
from bwtui.tui.plain import Content, seen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.panel import Panel

#: Age in seconds from which on an answer is reported as old; these service views are polled every five.
OLD_AFTER = 20.0
#: Seconds without being shown after which a panel starts to wait for an answer again.
_AWAY = 3.0


class ServicePanel(Panel):
    """Reports an old answer, but only if it has been polled for long enough."""

    _since = _last = float("-inf")

    def age(self, look: Look, picture: ScreenSnapshot) -> str:
        """Return the remark on an old answer, with its age in whole seconds; "" for a fresh one."""
        if picture.absence:
            return f"▲ as of {figures.clock(look.time)}: the relay {picture.absence}"
        now = picture.received
        if now - self._last > _AWAY or now < self._last:
            self._since = now
        self._last = now
        old = now - look.time
        if old <= OLD_AFTER:
            return ""
        if now - self._since <= OLD_AFTER:
            return f"· {figures.duration(old)} old; querying again"
        return f"▲ no answer for {figures.duration(old)}: this is how it was then"

    def put_lines(self, lines: list[Content], height: int) -> None:
        """Show as many lines as fit, and the number of the others."""
        if len(lines) > height > 1:
            more = f"and {len(lines) - height + 1} more: {key_for('drill')} shows all"
            lines = [*lines[: height - 1], Content.styled(more, "$quiet")]
        self.put(lines)


def asked(picture: ScreenSnapshot, whom: str) -> Content:
    """Return what the relay polls, or that it polls nothing."""
    if picture.absence:
        return Content.styled(f"· not asked: the relay {picture.absence}", "$warning")
    return Content.styled(f"· the relay asks {whom}…", "$quiet")


def wrapped(text: str, width: int, style: str) -> Iterator[Content]:
    """Yield a text in as many lines as it needs, all but the first indented."""
    for number, line in enumerate(textwrap.wrap(seen(text), max(width - 2, 10))):
        yield Content.styled(f"  {line}" if number else line, style)
