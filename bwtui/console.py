"""The only way to stdout and stderr: all output passes `escape`, and nothing in it is interpreted as markup.

Only two kinds of output bypass it, since programs read them: that of `say_verbatim`, and the bytes of an
export. On a terminal they are filtered like all other output.
"""

import functools
import io
import sys
from collections.abc import Callable, Iterable
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import click

from bwtui.escaping import escape, escape_lines, json_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment


def say(*lines: str, err: bool = False, file: IO[str] | None = None) -> None:
    """Write lines; a line break within one of them is escaped, so that no value can begin a new line."""
    click.echo("\n".join(map(escape, lines)), err=err, file=file)


def say_json(value: Any, *, err: bool = False, **more: Any) -> None:
    """Write a value as JSON in printable ASCII."""
    click.echo(json_text(value, **more), err=err)


def ask(question: str) -> str:
    """Ask on stderr, and return the answer."""
    return str(click.prompt(escape(question), err=True))


def confirm(question: str) -> bool:
    """Ask on stderr whether to continue; Enter means no."""
    return click.confirm(escape(question), default=False, err=True)


def say_verbatim(text: str) -> None:
    """Write a text for a shell or a program unchanged, or filtered if stdout is a terminal."""
    # click would remove colours from output that does not go to a terminal.
    click.echo(escape_lines(text) if sys.stdout.isatty() else text, color=True)


def for_terminal(file: BinaryIO, show: Callable[[str], str] = escape_lines) -> BinaryIO:
    """Return ``file``, or, if it is a terminal, a wrapper that filters what a terminal must not get."""
    return cast("BinaryIO", _EscapingBytes(file, show)) if file.isatty() else file


class _EscapingBytes(io.BufferedIOBase):
    """Takes whole texts in UTF-8."""

    def __init__(self, file: BinaryIO, show: Callable[[str], str]) -> None:
        self._file = file
        self._show = show

    def write(self, data: Any, /) -> int:
        self._file.write(self._show(bytes(data).decode("utf-8", "backslashreplace")).encode())
        return len(data)


def terminal(*, err: bool = False, **options: Any) -> "Console":
    """Return a console for rich's tables and bars that interprets no text as markup or emoji code."""
    return _console_class()(stderr=err, markup=False, emoji=False, highlight=False, **options)


@functools.cache
def _console_class() -> "type[Console]":
    from rich.console import Console

    class Shown(Console):
        """Filters each piece of text; rich itself passes all but five control characters."""

        def render(
            self, renderable: "RenderableType", options: "ConsoleOptions | None" = None
        ) -> "Iterable[Segment]":
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=escape_lines(segment.text))

    return Shown
