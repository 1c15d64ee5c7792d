"""The options that select changes of a recording, for every command that reads one."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bwtui.console import say
from bwtui.errors import UsageError
from bwtui.options import refused_at

if TYPE_CHECKING:
    from bwtui.recording.query_language import ChangeSelection, Query

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_OPTIONS = (
    click.option(
        "--where",
        metavar="QUERY",
        help="Only changes that match the query, such as 'op = update and table = a'; see docs/query.md.",
    ),
    click.option("--table", metavar="REGEX", help="Only tables whose full schema.table matches REGEX."),
    click.option(
        "--from-lsn", metavar="LSN", help="Only transactions that commit at or after LSN, such as 0/16B3748."
    ),
    click.option(
        "--to-lsn", metavar="LSN", help="Only transactions that commit at or before LSN, such as 0/16B3748."
    ),
    click.option(
        "--from-time", metavar="TIME", help="Only changes committed at or after TIME: 2026-01-31T10:00, -5m."
    ),
    click.option("--to-time", metavar="TIME", help="Only changes committed at or before TIME."),
)


def selection_options(command: F) -> F:
    """Add the options; `selection` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def selection(end: int, options: dict[str, Any], *, with_repeats: bool = False) -> "ChangeSelection":
    """Return the selection by the options; times like ``-5m`` count from ``end``. Raises UsageError."""
    from bwtui.model.lsn import parse_lsn
    from bwtui.recording.query_language import ChangeSelection
    from bwtui.recording.query_syntax import as_time

    selected = ChangeSelection(
        None if options["where"] is None else parse_where(options["where"], end),
        _read("--table", re.compile, options["table"]),
        _read("--from-lsn", parse_lsn, options["from_lsn"]),
        _read("--to-lsn", parse_lsn, options["to_lsn"]),
        _read("--from-time", lambda text: as_time(text, end), options["from_time"]),
        _read("--to-time", lambda text: as_time(text, end), options["to_time"]),
        with_repeats,
    )
    for bound, first, last in (
        ("lsn", selected.from_lsn, selected.to_lsn),
        ("time", selected.from_time, selected.to_time),
    ):
        if first is not None and last is not None and first > last:
            raise UsageError(f"--from-{bound} is later than --to-{bound}", "swap the two values")
    return selected


def _read(option: str, convert: Callable[[str], T], text: str | None) -> T | None:
    if text is None:
        return None
    try:
        with refused_at(option):
            return convert(text)
    except re.error as error:
        raise UsageError(
            f"{option}: {text!r} is not a regular expression: {error}",
            "the expression is matched against the full schema.table",
        ) from error


def parse_where(text: str, end: int | None) -> "Query":
    """Return the query of ``--where``; an error is shown on stderr with a caret before it is raised."""
    from bwtui.recording.query_language import QueryError, parse

    try:
        return parse(text, end)
    except QueryError as error:
        for line in error.rendered.split("\n"):
            say(f"  {line}", err=True)
        raise
