"""Command lines as documentation has them: found in its blocks, and parsed as the program would."""

import re
import shlex
from collections.abc import Iterator

import click

from bwtui.cli.main import CONTEXT, cli
from tests.docs.pages import SHELL, blocks_in
from tests.docs.pages import commands as shell_commands

#: Where a command ends and a shell goes on.
_ENDS = re.compile(r"\s(?:\||>|2>|&&|;|&)(?:\s|$).*")


def commands(page: str) -> Iterator[str]:
    """Return what is given to bwtui itself in the blocks of a page's text, command by command."""
    for block in blocks_in(page):
        for command in shell_commands(block) if block.language in SHELL else []:
            if re.match(r"bwtui\s", command.typed):
                yield _ENDS.sub("", command.typed)


def words(command: str) -> list[str]:
    """Return the arguments of a command; what "…" leaves out is left out."""
    return [word for word in shlex.split(command)[1:] if word != "…"]


def parsed(given: list[str]) -> None:
    """Parse arguments as the command line does. Raises click.UsageError."""
    command: click.Command = cli
    # A command keeps the names of its option for help from the first context that it was asked in.
    context = click.Context(cli, **CONTEXT)
    while isinstance(command, click.Group):
        _, found, given = command.resolve_command(context, given)
        assert found is not None
        command, context = found, click.Context(found, parent=context)
    command.parse_args(context, given)
