"""Text for the screens that is shown literally, never parsed as markup.

Textual and rich parse a str as markup in many places: titles, labels, table cells, notices. Row values, names
and error texts therefore use `Text`, `Content`, `Table` and `Group` of this module, which escape unprintable
characters. tests/unit/test_sources.py finds code that does not.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rich.cells
import rich.console
import rich.table
import rich.text
import textual.content
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from bwtui.errors import BwtuiError
from bwtui.escaping import escape, escape_lines, is_plain

#: Maximum characters shown of a text: longer texts are not readable, and a value may be a gigabyte.
LIMIT = 8_192


def printable(text: str, show: Callable[[str], str] = escape) -> str:
    """Return the printable form of ``text`` in one line; only spaces and line breaks stay unchanged."""
    if text.isspace() and not text.strip("\n "):
        return text
    if len(text) > LIMIT:
        return show(text[:LIMIT]) + f"… ({len(text):,} characters)"
    return show(text)


class PrintableText(str):
    """A text that is already printable and has intended line breaks."""


def block(text: str, indent: int = 0) -> PrintableText:
    """Return the printable form of ``text`` with its line breaks, all lines but the first indented.

    The lines of a value are thus aligned, and none of them can pass for a label in the column before.
    """
    return PrintableText(printable(text, escape_lines).replace("\n", "\n" + " " * indent))


def fitted(text: str, width: int) -> str:
    """Return ``text`` in at most ``width`` cells; a cut is marked with … and never splits an escape."""
    if text.isascii() and text.isprintable():
        return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
    # Combining accents have no width; of a text with more of them than this, the rest is left out.
    head = text[: 4 * width + 4]
    whole = escape(head)
    if len(head) == len(text) and rich.cells.cell_len(whole) <= width:
        return whole
    fitting = ""
    for character in head:
        more = fitting + escape(character)
        if rich.cells.cell_len(more) > width - 1:
            break
        fitting = more
    return fitting.rstrip() + "…"


def fact(name: str, value: str, tone: str = "", *, width: int) -> "Content":
    """Return a named value; names of ``width`` cells align the values of several facts."""
    return Content.assemble((f"{name:<{width}}", "$quiet"), (value, tone))


def with_hint(error: BwtuiError) -> str:
    """Return an error and its hint in one line."""
    return error.message + (f": {error.hint}" if error.hint else "")


if TYPE_CHECKING:
    from rich.console import Group as Group
    from rich.table import Table as Table
    from rich.text import Text as Text
    from textual.content import Content as Content
else:

    class Text(rich.text.Text):
        """A rich text that shows its content literally."""

        def __init__(self, text: str = "", *rest: Any, **more: Any) -> None:
            super().__init__(text if isinstance(text, PrintableText) else printable(text), *rest, **more)

        def append(self, text: Any, style: Any = None) -> "Text":
            """Append a text literally."""
            return super().append(_printable_part(text), style)

    class Content(textual.content.Content):
        """Textual's text class, which shows its content literally."""

        def __init__(self, text: str = "", spans: Any = None, *rest: Any, **more: Any) -> None:
            # A text with spans is already printable.
            super().__init__(printable(text) if spans is None else text, spans, *rest, **more)

        @classmethod
        def styled(cls, text: str, *rest: Any, **more: Any) -> textual.content.Content:
            """Return a text, shown literally, in one style."""
            return super().styled(_printable_part(text), *rest, **more)

        @classmethod
        def assemble(cls, *parts: Any, **more: Any) -> textual.content.Content:
            """Return several texts, shown literally, as one."""
            return super().assemble(*map(_printable_part, parts), **more)

    class Table(rich.table.Table):
        """A table that shows its cells and titles literally."""

        def add_column(self, header: Any = "", *rest: Any, **more: Any) -> None:
            super().add_column(_as_text(header), *rest, **more)

        def add_row(self, *cells: Any, **more: Any) -> None:
            super().add_row(*map(_as_text, cells), **more)

    class Group(rich.console.Group):
        """A group of parts below each other that shows strings literally."""

        def __init__(self, *parts: Any, **more: Any) -> None:
            super().__init__(*map(_as_text, parts), **more)


def _printable_part(part: Any) -> Any:
    if isinstance(part, tuple):
        return (_printable_part(part[0]), *part[1:])
    return printable(part) if isinstance(part, str) and not isinstance(part, PrintableText) else part


def _as_text(part: Any) -> Any:
    return Text(part) if isinstance(part, str) else part


class PrintableFilter(LineFilter):
    """Replaces unprintable characters that remain, such as typed ones, in every line for the terminal."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Replace each such character by dots of the same width; most of them have no width."""
        if all(is_plain(segment.text) for segment in segments):
            return segments
        return [segment._replace(text="".join(map(_dotted, segment.text))) for segment in segments]


def _dotted(character: str) -> str:
    return character if escape(character) == character else "·" * rich.cells.cell_len(character)
