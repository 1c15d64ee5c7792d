"""A group of commands that are listed in a table, and imported when they are called."""

import importlib
from collections.abc import Mapping
from typing import Any

import click

from bwtui.errors import UsageError
from bwtui.options import nearest

#: Command → (module, summary for the list); the module's attribute has the command's name.
Table = Mapping[str, tuple[str, str]]


class LazyGroup(click.Group):
    """Its help imports nothing, so it stays fast."""

    def __init__(self, *args: Any, table: Table, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        command = getattr(importlib.import_module(self._table[cmd_name][0]), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that ``args`` begins with. Raises UsageError, which names the nearest one."""
        name = args[0]
        if not name.startswith("-") and name not in self._table and not ctx.resilient_parsing:
            close = nearest(name, self._table)
            hint = f"did you mean {close!r}?" if close else f"'{ctx.command_path} --help' lists the commands"
            command_line = " ".join([*ctx.command_path.split()[1:], name])
            raise UsageError(f"no such command {command_line!r}", hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._table.items()])
