"""``bwtui recording``: one file for each subcommand, imported when it is called."""

import click

from bwtui.cli.lazy import LazyGroup, Table

SUBCOMMANDS: Table = {
    "info": ("bwtui.cli.recording.info", "Tell what it holds: ranges, tables, sessions, gaps, size."),
    "check": ("bwtui.cli.recording.check", "Check every byte of it, sealed files and manifest too."),
    "recover": ("bwtui.cli.recording.recover", "Finish what a crash has left unfinished."),
    "seal": ("bwtui.cli.recording.seal", "Make Parquet of it, for Spark and DuckDB."),
    "export": ("bwtui.cli.recording.export", "Write its changes as Parquet, JSON lines, or SQL."),
}

_EPILOG = """\b
Examples:
  bwtui recording info recordings/shop
  bwtui recording check recordings/shop
  bwtui recording export recordings/shop --format jsonl --where "op = delete"
"""


@click.group(cls=LazyGroup, table=SUBCOMMANDS, epilog=_EPILOG)
def recording() -> None:
    """Tell what a recording holds, check and recover it, make Parquet of it, and export its changes."""
