"""Exports from the screens: JSON lines in a new file of the current folder."""

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bwtui.errors import BwtuiError, UsageError
from bwtui.recording.export.target import opened
from bwtui.tui.plain import with_hint
from bwtui.tui.screens.transport import TransportScreen
from bwtui.tui.widgets.columns import GridRow
from bwtui.tui.widgets.grid import Grid

_ODD = re.compile(r"[^A-Za-z0-9._-]+")
#: Maximum characters of a name in a file name.
_LONGEST = 60

Objects = Iterable[Mapping[str, Any]]


class ExportingScreen(TransportScreen):
    """A screen that can export the selected row of its list, or all rows that match."""

    def crumbs(self) -> tuple[str, ...]:
        """Return the path to this screen."""
        raise NotImplementedError

    def action_export(self) -> None:
        """Write the selected row to a file."""
        self.export(list(self.selected_objects()))

    def action_export_all(self) -> None:
        """Write all rows that match to a file."""
        self.export(list(self.all_objects()), self.main_grid().remark)

    def selected_objects(self) -> Objects:
        """Return the selected row."""
        grid = self.main_grid()
        return row_objects(grid, grid.rows[grid.cursor_row :][:1])

    def all_objects(self) -> Objects:
        """Return every row that matches the filter."""
        grid = self.main_grid()
        return row_objects(grid, grid.rows)

    def export(self, objects: Objects, remark: str = "") -> None:
        """Write objects to a new file in the background; ``remark`` is a note about them."""
        # A worker of the screen would be cancelled with it, while its thread continues to write the file.
        self.app.run_worker(self.write(objects, remark), group="export", exit_on_error=True)

    async def write(self, objects: Objects, remark: str = "") -> None:
        """Write objects to a new file, and show its name, or why writing failed."""
        name = " ".join((self.host.model.name, *self.crumbs()))
        try:
            path, count = await asyncio.to_thread(write_objects, name, self.host.model.clock(), objects)
        except BwtuiError as error:
            self._warn(with_hint(error))
            return
        lines = "1 line" if count == 1 else f"{count:,} lines"
        self.notify(f"./{path}" + (f" · {remark}" if remark else ""), title=f"Exported {lines}", timeout=8)


def row_objects(grid: Grid, rows: Sequence[GridRow]) -> Iterator[dict[str, str]]:
    """Return rows as displayed, by the titles of their columns, including columns that do not fit."""
    for row in rows:
        cells = {
            c.title or c.key: cell.text.strip() for c, cell in zip(grid.columns, row.cells, strict=False)
        }
        yield {title: text for title, text in cells.items() if title != "mark" or text}


def write_objects(name: str, moment: float, objects: Objects) -> tuple[Path, int]:
    """Write one line per object, and return the file and their number; ``moment`` is in Unix seconds.

    Raises BwtuiError, and whatever ``objects`` raises; in both cases no file remains.
    """
    path = _new_path(name, moment)
    count = 0
    with opened(path, force=False) as file:
        for one in objects:
            # Lone surrogates become JSON's own escapes.
            file.write(json.dumps(one, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
            count += 1
        if not count:
            raise UsageError("there is nothing to export", "select a row, or ask for something else")
    return path, count


def _new_path(name: str, moment: float) -> Path:
    """Return the name of a file that does not exist yet."""
    when = datetime.fromtimestamp(moment).strftime("%Y%m%d-%H%M%S")
    stem = f"bwtui-{_ODD.sub('-', name)[:_LONGEST].strip('-.')}-{when}"
    path, number = Path(f"{stem}.jsonl"), 1
    while path.exists() or path.is_symlink():
        number += 1
        path = Path(f"{stem}-{number}.jsonl")
    return path
