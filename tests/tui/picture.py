"""The text on the screen."""

import io
from typing import Any

from rich.console import Console
from textual.app import App
from textual.widgets import Static

from bwtui.tui.base.plain import Table


def lines(app: App[Any]) -> list[str]:
    """Return the lines of the screen, dialogs included, without trailing blanks."""
    width, height = app.size
    console = Console(
        width=width, height=height, file=io.StringIO(), force_terminal=True, record=True, legacy_windows=False
    )
    console.print(app.screen._compositor.render_update(full=True))
    return [line.rstrip() for line in console.export_text(styles=False).splitlines()][:height]


def text(app: App[Any]) -> str:
    return "\n".join(lines(app))


def help_cells(app: App[Any]) -> list[str]:
    """Return the keys and texts of the help that is shown."""
    table = app.screen.query_one("#help Static", Static).content
    assert isinstance(table, Table)
    return [str(cell).strip() for column in table.columns for cell in column.cells]
