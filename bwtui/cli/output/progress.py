"""The option of commands that report their progress to a program."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def progress_json_option(command: Command) -> Command:
    """Add ``--progress-json``."""
    return click.option(
        "--progress-json", is_flag=True, help="Progress as JSON lines on stderr, for a program."
    )(command)
