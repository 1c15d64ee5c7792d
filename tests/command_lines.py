"""Commands in the documentation: find them in code blocks, and parse them as the program does."""

import re
import shlex
from collections.abc import Iterator

import click

from bwtui.cli.main import CONTEXT, cli
from tests.docs.pages import SHELL, blocks_in
from tests.docs.pages import commands as shell_commands

#: The end of a command, where shell syntax follows.
_ENDS = re.compile(r"\s(?:\||>|2>|&&|;|&)(?:\s|$).*")


def commands(page: str) -> Iterator[str]:
    """Yield the bwtui commands in the code blocks of a page's text."""
    for block in blocks_in(page):
        for command in shell_commands(block) if block.language in SHELL else []:
            if re.match(r"bwtui\s", command.typed):
                yield _ENDS.sub("", command.typed)


def words(command: str) -> list[str]:
    """Return the arguments of a command, without "…"."""
    return [word for word in shlex.split(command)[1:] if word != "…"]


def parsed(given: list[str]) -> None:
    """Parse arguments as the command line does. Raises click.UsageError."""
    command: click.Command = cli
    # click caches a command's help option names from the first context that asks for them.
    context = click.Context(cli, **CONTEXT)
    while isinstance(command, click.Group):
        _, found, given = command.resolve_command(context, given)
        assert found is not None
        command, context = found, click.Context(found, parent=context)
    command.parse_args(context, given)
