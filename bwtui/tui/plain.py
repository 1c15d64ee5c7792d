"""What the screens make of text: it is shown, and never markup.

Textual and rich take a str for markup in many places: titles, labels, cells of tables, notices. Row values,
names and error texts come as `Text`, `Content`, `Table` and `Group` of this module instead, which have
what isn't printable as escapes. tests/unit/test_plain_sources.py finds what does not.
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
from bwtui.shown import is_plain, shown, shown_lines

#: Longer texts are cut: nobody reads on, and a value may have a gigabyte.
LIMIT = 8_192


def seen(text: str, show: Callable[[str], str] = shown) -> str:
    """Return what is shown of ``text``, in one line; a text of nothing but line breaks and spaces stays."""
    if text.isspace() and not text.strip("\n "):
        return text
    if len(text) > LIMIT:
        return show(text[:LIMIT]) + f"… ({len(text):,} characters)"
    return show(text)


class Block(str):
    """A text that was seen, with line breaks that are meant."""


def block(text: str, indent: int = 0) -> Block:
    """Return what is shown of ``text`` in as many lines as it has, all but the first one indented.

    So a value's lines stand under each other, and none of them where something is said of the value.
    """
    return Block(seen(text, shown_lines).replace("\n", "\n" + " " * indent))


def fitted(text: str, width: int) -> str:
    """Return ``text`` in at most ``width`` cells, with … where it is cut, which is never within an escape."""
    if text.isascii() and text.isprintable():
        return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
    # Accents take no cell of their own; where there are more of them than this the rest is left out.
    head = text[: 4 * width + 4]
    whole = shown(head)
    if len(head) == len(text) and rich.cells.cell_len(whole) <= width:
        return whole
    fitting = ""
    for character in head:
        more = fitting + shown(character)
        if rich.cells.cell_len(more) > width - 1:
            break
        fitting = more
    return fitting.rstrip() + "…"


def with_hint(error: BwtuiError) -> str:
    """Return an error in one line, with what to do about it."""
    return error.message + (f": {error.hint}" if error.hint else "")


if TYPE_CHECKING:
    from rich.console import Group as Group
    from rich.table import Table as Table
    from rich.text import Text as Text
    from textual.content import Content as Content
else:

    class Text(rich.text.Text):
        """A rich text of what is shown."""

        def __init__(self, text: str = "", *rest: Any, **more: Any) -> None:
            super().__init__(text if isinstance(text, Block) else seen(text), *rest, **more)

        def append(self, text: Any, style: Any = None) -> "Text":
            """Add what is shown of a text."""
            return super().append(_seen_part(text), style)

    class Content(textual.content.Content):
        """Textual's own kind of text, of what is shown."""

        def __init__(self, text: str = "", spans: Any = None, *rest: Any, **more: Any) -> None:
            # With spans the text was seen before.
            super().__init__(seen(text) if spans is None else text, spans, *rest, **more)

        @classmethod
        def styled(cls, text: str, *rest: Any, **more: Any) -> textual.content.Content:
            """Return what is shown of a text, in one style."""
            return super().styled(_seen_part(text), *rest, **more)

        @classmethod
        def assemble(cls, *parts: Any, **more: Any) -> textual.content.Content:
            """Return what is shown of several texts."""
            return super().assemble(*map(_seen_part, parts), **more)

    class Table(rich.table.Table):
        """A table whose cells and titles are texts."""

        def add_column(self, header: Any = "", *rest: Any, **more: Any) -> None:
            super().add_column(_as_text(header), *rest, **more)

        def add_row(self, *cells: Any, **more: Any) -> None:
            super().add_row(*map(_as_text, cells), **more)

    class Group(rich.console.Group):
        """What stands under each other."""

        def __init__(self, *parts: Any, **more: Any) -> None:
            super().__init__(*map(_as_text, parts), **more)


def _seen_part(part: Any) -> Any:
    if isinstance(part, tuple):
        return (_seen_part(part[0]), *part[1:])
    return seen(part) if isinstance(part, str) and not isinstance(part, Block) else part


def _as_text(part: Any) -> Any:
    return Text(part) if isinstance(part, str) else part


class LastWord(LineFilter):
    """Takes out of every line that goes to the terminal what still is not printable, as what one types."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Put dots in as many cells as it has; most of it has none."""
        if all(is_plain(segment.text) for segment in segments):
            return segments
        return [segment._replace(text="".join(map(_dotted, segment.text))) for segment in segments]


def _dotted(character: str) -> str:
    return character if shown(character) == character else "·" * rich.cells.cell_len(character)
