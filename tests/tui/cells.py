"""The screen cell by cell: each character with its colours, as it goes to the terminal."""

import string
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.style import Style
from textual.app import App
from textual.color import Color

#: Characters that draw frames, lines and bars do not count as text.
_DRAWN = frozenset("─│├┤┬┴┼╭╮╰╯━┃┏┓┗┛═║▁▂▃▄▅▆▇█▉▊▋▌▍▎▏▔▕░▒▓┄┊╌╎·▐▀")
#: A letter for each colour of a theme; equal colours share the first letter.
TONES = {
    "foreground": ".",
    "primary": "p",
    "success": "s",
    "warning": "w",
    "error": "e",
    "quiet": "q",
    "background": "b",
    "line": "-",
}


@dataclass(frozen=True)
class Cell:
    """A character with its colours and style."""

    text: str
    style: Style

    @property
    def is_text(self) -> bool:
        """Return whether the cell contains readable text."""
        letter = self.text[0]
        return not self.text.isspace() and letter not in _DRAWN and not "\u2800" <= letter <= "\u28ff"


def painted(app: App[Any]) -> list[list[Cell]]:
    """Return the terminal's cells line by line; a wide character is one cell here."""
    shown = []
    for strip in app.screen._compositor.render_strips():
        segments = list(strip)
        for line_filter in app.get_line_filters():
            segments = line_filter.apply(segments, app.screen.styles.background)
        shown.append([Cell(c, s.style or Style()) for s in segments for c in clusters(s.text)])
    return shown


def clusters(text: str) -> list[str]:
    """Return the characters of a text, each with its zero-width marks."""
    found: list[str] = []
    for character in text:
        if found and not cell_len(character):
            found[-1] += character
        else:
            found.append(character)
    return found


def colours(cell: Cell) -> tuple[Color, Color]:
    """Return the foreground and background colours."""
    assert cell.style.color is not None and cell.style.bgcolor is not None, cell
    front, back = Color.from_rich_color(cell.style.color), Color.from_rich_color(cell.style.bgcolor)
    return (back, front) if cell.style.reverse else (front, back)


def of_16(cell: Cell) -> tuple[int | None, int | None]:
    """Return the numbers of both colours on a terminal with sixteen colours."""
    assert cell.style.color is not None and cell.style.bgcolor is not None
    front, back = (c.downgrade(ColorSystem.STANDARD).number for c in (cell.style.color, cell.style.bgcolor))
    return (back, front) if cell.style.reverse else (front, back)


def tones(app: App[Any]) -> list[str]:
    """Return each character's theme colour, as letters of `TONES`; "~" for a mixture."""
    variables = app.theme_variables
    names = [(Color.parse(variables[name]), letter) for name, letter in TONES.items()]
    lines = []
    for cells in painted(app):
        letters = (_tone(colours(cell)[0], names) if cell.is_text else " " for cell in cells)
        lines.append("".join(letters).rstrip())
    return lines


def _tone(colour: Color, names: list[tuple[Color, str]]) -> str:
    """Return the letter of a colour; Textual's arithmetic may be off by one or two."""
    for known, letter in names:
        if max(abs(one - other) for one, other in zip(colour.rgb, known.rgb, strict=True)) <= 2:
            return letter
    return "~"


def painting(app: App[Any]) -> str:
    """Return the styles of the screen: each style under a letter, then the runs of these, line by line.

    The length of the last run follows from the width. For blanks only the visible part of the style counts.
    """
    letters = (first + last for first in ("", *string.ascii_letters) for last in string.ascii_letters)
    names: dict[str, str] = {}
    lines = []
    for cells in painted(app):
        styles: list[str] = []
        for cell in cells:
            before = styles[-1] if styles else ""
            style = _unseen(cell, before) or _said(cell)
            styles += [style] * cell_len(cell.text)
        runs = [(style, len(list(run))) for style, run in groupby(styles)]
        named = [(names.get(style) or names.setdefault(style, next(letters)), n) for style, n in runs]
        lines.append(" ".join([*(f"{letter}{length}" for letter, length in named[:-1]), named[-1][0]]))
    legend = [f"{letter} {style}" for style, letter in names.items()]
    return "\n".join([*legend, "", *lines, ""])


def _said(cell: Cell) -> str:
    """Return the style of a cell, in words."""
    if cell.style.color is None:
        assert not cell.text.strip() and not cell.style.reverse and cell.style.bgcolor is not None, cell
        return f"blank on {Color.from_rich_color(cell.style.bgcolor).hex6}"
    front, back = colours(cell)
    marks = [name for name in ("bold", "dim", "italic", "underline", "strike") if getattr(cell.style, name)]
    return " ".join([f"{front.hex6} on {back.hex6}", *marks])


def _unseen(cell: Cell, before: str) -> str:
    """Return the style before a blank if it looks the same in the blank, otherwise an empty text."""
    said = _said(cell)
    is_same = said.split()[2] == before.split()[2] if before else False
    return before if is_same and not cell.text.strip() and "underline" not in said + before else ""
