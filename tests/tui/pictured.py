"""Pictures of screens, kept as text: a diff shows the effect of a change of layout or colours.

``snapshots/NAME.txt`` has the characters, which are the same in every theme, and ``snapshots/NAME.light`` how
the light theme paints them. ``BWTUI_UPDATE_SNAPSHOTS=1 pytest tests/tui`` rewrites them.
"""

import os
import re
from pathlib import Path
from typing import Any, Protocol

from textual.app import App

from bwtui.tui.base.theme import LIGHT, contrast
from tests.tui.cells import colours, of_16, painted, painting
from tests.tui.picture import text

FOLDER = Path(__file__).parent / "snapshots"
#: Minimum contrast between text and background, as WCAG computes it.
READABLE = 2.9


class Settling(Protocol):
    """A stage whose app is pictured."""

    app: Any

    async def settle(self) -> None:
        """Wait until the stage is idle."""


async def compare(stage: Settling, name: str) -> None:
    """Compare the screen with the picture of that name, in both themes, and keep the light theme."""
    shown = await steady(stage)
    compare_text(f"{name}.txt", shown)
    stage.app.theme = LIGHT.name
    assert without_thumbs(await steady(stage)) == without_thumbs(shown), "a theme changes colours alone"
    if not stage.app.screen.is_modal:
        # Text behind a dialog is dimmed.
        can_be_read(stage.app)
    compare_text(f"{name}.light", painting(stage.app))


def can_be_read(app: App[Any]) -> None:
    """Check that every text has enough contrast with its background, with all colours and with sixteen."""
    for cell in {cell.style: cell for line in painted(app) for cell in line if cell.is_text}.values():
        assert contrast(*colours(cell)) >= READABLE, (app.theme, cell)
        front, back = of_16(cell)
        assert front != back, f"{app.theme}: {cell} can't be seen in 16 colours"


def compare_text(name: str, now: str) -> None:
    """Compare a text with the file of that name among the snapshots, or rewrite the file."""
    path = FOLDER / name
    if os.environ.get("BWTUI_UPDATE_SNAPSHOTS"):
        path.write_text(now)
    assert without_thumbs(now) == without_thumbs(path.read_text())


def without_thumbs(shown: str) -> str:
    """Remove the end of a scrollbar's thumb, in eighths of a line: it differs between runs."""
    return re.sub("[▁▂▃▄▅▆▇](?=│)", " ", shown)


async def steady(stage: Settling) -> str:
    """Return the screen once it no longer changes."""
    shown, same = "", 0
    for _ in range(50):
        await stage.settle()
        now = text(stage.app) + "\n"
        same = same + 1 if now == shown else 0
        shown = now
        if same == 3:
            break
    return shown
