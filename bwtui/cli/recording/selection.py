"""The options that select changes of a recording, for every command that reads one."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bwtui.console import say
from bwtui.errors import UsageError
from bwtui.options import refused_at

if TYPE_CHECKING:
    from bwtui.recording.query.language import Query
    from bwtui.recording.selection import ChangeSelection

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_OPTIONS = (
    click.option("--where", metavar="QUERY", help="Only changes that match the query; see docs/query.md."),
    click.option("--table", metavar="REGEX", help="Only tables whose full schema.table matches REGEX."),
    click.option("--from-lsn", metavar="LSN", help="Only transactions that commit at or after LSN."),
    click.option("--to-lsn", metavar="LSN", help="Only transactions that commit at or before LSN."),
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


def selection(end: int, given: dict[str, Any], *, with_repeats: bool = False) -> "ChangeSelection":
    """Return the selection by the options; times like ``-5m`` count from ``end``. Raises UsageError."""
    from bwtui.model.lsn import parse_lsn
    from bwtui.recording.query.values import as_time
    from bwtui.recording.selection import ChangeSelection

    chosen = ChangeSelection(
        None if given["where"] is None else parse_where(given["where"], end),
        _read("--table", re.compile, given["table"]),
        _read("--from-lsn", parse_lsn, given["from_lsn"]),
        _read("--to-lsn", parse_lsn, given["to_lsn"]),
        _read("--from-time", lambda text: as_time(text, end), given["from_time"]),
        _read("--to-time", lambda text: as_time(text, end), given["to_time"]),
        with_repeats,
    )
    for what, first, last in (
        ("lsn", chosen.from_lsn, chosen.to_lsn),
        ("time", chosen.from_time, chosen.to_time),
    ):
        if first is not None and last is not None and first > last:
            raise UsageError(f"--from-{what} is later than --to-{what}", "swap the two values")
    return chosen


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
    from bwtui.recording.query.language import QueryError, parse

    try:
        return parse(text, end)
    except QueryError as error:
        for line in error.rendered.split("\n"):
            say(f"  {line}", err=True)
        raise
