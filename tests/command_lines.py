"""Command lines as documentation has them: found in its blocks, and parsed as the program would."""

import re
import shlex
from collections.abc import Iterator

import click

from bwtui.cli.main import CONTEXT, cli

_BLOCK = re.compile(r"^```(?:sh|console|bash)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Where a command ends and a shell goes on.
_ENDS = re.compile(r"\s(?:\||>|2>|&&|;|&)(?:\s|$).*")


def blocks(page: str) -> list[list[str]]:
    """Return the lines of each block of commands, continued ones as one, without prompts and comments."""
    found = []
    for text in _BLOCK.findall(page):
        lines = [re.sub(r"^\$ ", "", line) for line in re.sub(r"\\\n\s*", " ", text).splitlines()]
        found.append([stripped for line in lines if (stripped := re.sub(r"\s+#\s.*", "", line).strip())])
    return found


def commands(page: str) -> Iterator[str]:
    """Return what is given to bwtui itself, command by command."""
    for block in blocks(page):
        for line in block:
            if re.match(r"bwtui\s", line):
                yield _ENDS.sub("", line)


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
