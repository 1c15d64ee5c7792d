"""``bwtui recording export``: write a recording's changes as Parquet, JSON lines, or SQL."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.output import streams
from bwtui.cli.recording.selection import selection_options
from bwtui.console import for_terminal, say
from bwtui.errors import UsageError
from bwtui.escaping import escape_json, escape_lines

if TYPE_CHECKING:
    from bwtui.recording.export.exporting import Format
    from bwtui.recording.selection import ChangeSelection
    from bwtui.recording.view import RecordingView

_EPILOG = """\b
Examples:
  bwtui recording export recordings/shop --format jsonl | head
  bwtui recording export recordings/shop --format parquet -o shop.parquet
  bwtui recording export recordings/shop --format sql --create -o shop.sql
  bwtui recording export recordings/shop --format jsonl \\
      --where "table = orders and op = update and changed = status"

\b
The file appears when it is complete. docs/export.md describes the formats, and
docs/query.md the queries. Exit code 6: the recording is damaged.
"""


@click.command(epilog=_EPILOG)
@click.argument("recording", type=click.Path(path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(("parquet", "jsonl", "sql")), required=True, help="Output format."
)
@click.option("-o", "--output", metavar="PATH", help="Output file, or a new folder; default: stdout.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@selection_options
@click.option(
    "--with-repeats", is_flag=True, help="Include changes that were recorded again after a restart."
)
@click.option("--create", is_flag=True, help="With SQL, also write CREATE TABLE.")
def export(
    recording: Path,
    form: "Format",
    output: str | None,
    force: bool,
    with_repeats: bool,
    create: bool,
    **given: Any,
) -> None:
    """Write the changes of RECORDING, sealed or not, in the order in which they were recorded."""
    from bwtui.recording.reading.reader import open_recording

    check_options(form, output, with_repeats=with_repeats, create=create)
    with contextlib.closing(open_recording(recording, may_lack_first=True)) as view:
        run_export(view, form, output, given, force=force, with_repeats=with_repeats, create=create)


def check_options(form: "Format", output: str | None, *, with_repeats: bool, create: bool) -> None:
    """Raise UsageError for options that exclude each other."""
    if output == "":
        raise UsageError("-o has an empty value", "give a file, or omit -o to write to stdout")
    if form == "parquet" and output is None:
        raise UsageError("Parquet can't be written to stdout", "give a file: -o changes.parquet")
    if form == "sql" and with_repeats:
        raise UsageError(
            "SQL with repeated changes would apply them twice",
            "omit --with-repeats, or choose a different format",
        )
    if create and form != "sql":
        raise UsageError(f"--create requires --format sql, and the format is {form}", "use --format sql")


def run_export(
    view: "RecordingView",
    form: "Format",
    output: str | None,
    given: dict[str, Any],
    *,
    force: bool = False,
    with_repeats: bool = False,
    create: bool = False,
) -> int:
    """Export from an open recording; return the number of changes."""
    from bwtui.cli.recording.progress import bar
    from bwtui.cli.recording.selection import selection
    from bwtui.recording.export.exporting import export as write
    from bwtui.recording.export.exporting import make_writer
    from bwtui.recording.export.facts import facts
    from bwtui.recording.export.target import opened, target_path

    chosen = selection(view.last_time, given, with_repeats=with_repeats)
    lacks = facts(view)
    path = None if output in (None, "-") else target_path(str(output), view.name, form)
    on_terminal = path is None and sys.stdout.isatty()
    with streams.producing(), opened(path, force=force) as file, bar("exporting", quiet=on_terminal) as done:
        out = for_terminal(file, escape_json if form == "jsonl" else escape_lines)
        writer = make_writer(form, view, out, chosen, create=create, lacks=lacks)
        count = write(view, chosen, writer, done)
    for note in [*lacks.notes, *writer.notes, *([] if count else [nothing(view, chosen, given)])]:
        say(f"note: {note}", err=True)
    return count


def nothing(view: "RecordingView", chosen: "ChangeSelection", given: dict[str, Any]) -> str:
    """Return the note for an export without any change."""
    options = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if not view.length:
        return "the recording contains no changes"
    if not options:
        return "no change was written: all of them are repeats"
    if given["table"] is not None and not any(map(chosen.takes_table, view.counts(view.length))):
        return f"no table matches --table {given['table']}; tables are named schema.table"
    return f"no change matches {' and '.join(options)}"
