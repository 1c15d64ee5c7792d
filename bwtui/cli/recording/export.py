"""``bwtui recording export``: write a recording's changes as Parquet or JSON lines."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import click

from bwtui.cli.inputs.selection import selection_options
from bwtui.cli.output import streams
from bwtui.console import for_terminal, say
from bwtui.crash import packages_needed
from bwtui.errors import UsageError
from bwtui.escaping import escape_json, escape_lines

if TYPE_CHECKING:
    from bwtui.recording.export import Writer
    from bwtui.recording.query_language import ChangeSelection
    from bwtui.recording.view import RecordingView

Format = Literal["parquet", "jsonl"]

_EPILOG = """\b
Examples:
  bwtui recording export recordings/shop --format jsonl | head
  bwtui recording export recordings/shop --format parquet -o shop.parquet
  bwtui recording export recordings/shop --format jsonl \\
      --where "table = orders and op = update and changed = status"

\b
The file appears when it is complete. docs/export.md describes the formats, and
docs/query.md the queries. Exit code 6: the recording is damaged.
"""


@click.command(epilog=_EPILOG)
@click.argument("recording", type=click.Path(path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(("parquet", "jsonl")), required=True, help="Output format."
)
@click.option("-o", "--output", metavar="PATH", help="Output file, or a new folder; default: stdout.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@selection_options
@click.option(
    "--with-repeats", is_flag=True, help="Include changes that were recorded again after a restart."
)
def export(
    recording: Path,
    form: Format,
    output: str | None,
    force: bool,
    with_repeats: bool,
    **options: Any,
) -> None:
    """Write the changes of RECORDING, sealed or not, in the order in which they were recorded."""
    from bwtui.recording.reader import open_recording

    check_options(form, output)
    with contextlib.closing(open_recording(recording, may_lack_first=True)) as view:
        run_export(view, form, output, options, force=force, with_repeats=with_repeats)


def check_options(form: Format, output: str | None) -> None:
    """Raise UsageError for an output that the format can't be written to."""
    if output == "":
        raise UsageError("-o has an empty value", "give a file, or omit -o to write to stdout")
    if form == "parquet" and output is None:
        raise UsageError("Parquet can't be written to stdout", "give a file: -o changes.parquet")


def run_export(
    view: "RecordingView",
    form: Format,
    output: str | None,
    options: dict[str, Any],
    *,
    force: bool = False,
    with_repeats: bool = False,
) -> int:
    """Export from an open recording; return the number of changes."""
    from bwtui.cli.inputs.selection import selection
    from bwtui.cli.recording.progress import bar
    from bwtui.recording.export import export as write
    from bwtui.recording.export import opened, target_path
    from bwtui.recording.info import facts

    selected = selection(view.last_time, options, with_repeats=with_repeats)
    lacks = facts(view)
    path = None if output in (None, "-") else target_path(str(output), view.name, form)
    on_terminal = path is None and sys.stdout.isatty()
    with streams.producing(), opened(path, force=force) as file, bar("exporting", quiet=on_terminal) as done:
        out = for_terminal(file, escape_json if form == "jsonl" else escape_lines)
        writer = make_writer(form, out)
        count = write(view, selected, writer, done)
    for note in [*lacks.notes, *([] if count else [nothing(view, selected, options)])]:
        say(f"note: {note}", err=True)
    return count


def make_writer(form: Format, file: BinaryIO) -> "Writer":
    """Return the writer of ``form``."""
    if form == "jsonl":
        from bwtui.recording.export import JsonWriter

        return JsonWriter(file)
    with packages_needed():
        from bwtui.recording.parquet import ParquetWriter

    return ParquetWriter(file)


def nothing(view: "RecordingView", selected: "ChangeSelection", selectors: dict[str, Any]) -> str:
    """Return the note for an export without any change."""
    options = [f"--{name.replace('_', '-')}" for name, value in selectors.items() if value is not None]
    if not view.length:
        return "the recording contains no changes"
    if not options:
        return "no change was written: all of them are repeats"
    if selectors["table"] is not None and not any(map(selected.takes_table, view.counts(view.length))):
        return f"no table matches --table {selectors['table']}; tables are named schema.table"
    return f"no change matches {' and '.join(options)}"
