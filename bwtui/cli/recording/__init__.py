"""``bwtui recording``: one file a subcommand, imported when it is called."""

import importlib

import click

from bwtui.errors import UsageError
from bwtui.options import nearest

#: Subcommand → (module, what the list says of it); the attribute has the subcommand's name.
SUBCOMMANDS: dict[str, tuple[str, str]] = {
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


class _Subcommands(click.Group):
    """Knows the subcommands by their table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names, in the order of the table."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the subcommand called ``cmd_name``."""
        if cmd_name not in SUBCOMMANDS:
            return None
        command = getattr(importlib.import_module(SUBCOMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand that ``args`` begins with, or name the nearest."""
        name = args[0]
        if not name.startswith("-") and name not in SUBCOMMANDS and not ctx.resilient_parsing:
            close = nearest(name, SUBCOMMANDS)
            hint = f"did you mean {close!r}?" if close else "'bwtui recording --help' lists the commands"
            raise UsageError(f"no such command 'recording {name}'", hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in SUBCOMMANDS.items()])


@click.group(cls=_Subcommands, epilog=_EPILOG)
def recording() -> None:
    """Tell what a recording holds, check and recover it, make Parquet of it, and export its changes."""
