"""``bwtui recording``: one file for each subcommand, imported when it is called."""

import click

from bwtui.cli.lazy import LazyGroup, Table

SUBCOMMANDS: Table = {
    "info": ("bwtui.cli.recording.info", "Show content: ranges, tables, sessions, gaps, size."),
    "check": ("bwtui.cli.recording.check", "Check every byte, including sealed files and the manifest."),
    "recover": ("bwtui.cli.recording.recover", "Finish a recording that a crash left unfinished."),
    "seal": ("bwtui.cli.recording.seal", "Convert a recording to Parquet, for Spark and DuckDB."),
    "export": ("bwtui.cli.recording.export", "Write its changes as Parquet or JSON lines."),
}

_EPILOG = """\b
Examples:
  bwtui recording info recordings/shop
  bwtui recording check recordings/shop
  bwtui recording export recordings/shop --format jsonl --where "op = delete"
"""


@click.group(cls=LazyGroup, table=SUBCOMMANDS, epilog=_EPILOG)
def recording() -> None:
    """Inspect, check, recover, seal and export a recording."""
