"""Progress as JSON lines on stderr, for a program that runs a command."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from bwtui.console import say_json

Command = TypeVar("Command", bound=Callable[..., Any])


class JsonLines:
    """One object a line: ``{"phase": "reading Kafka", "done": 1200, "total": 3400}``; counts where known."""

    def __init__(self) -> None:
        self._phase = ""

    def phase(self, name: str) -> None:
        """Something else is being done now."""
        self._phase = name
        self._tell({"phase": name})

    def count(self, done: int, total: int) -> None:
        """So much of it is done."""
        self._tell({"phase": self._phase, "done": done, "total": total})

    def _tell(self, line: dict[str, Any]) -> None:
        # One write a line: several threads tell.
        say_json(line, err=True)


def progress_json_option(command: Command) -> Command:
    """Add ``--progress-json``."""
    return click.option(
        "--progress-json", is_flag=True, help="Progress as JSON lines on stderr, for a program."
    )(command)
