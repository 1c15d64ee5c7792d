"""The progress of ``bwtui verify`` and ``replay``: a bar on a terminal, plain lines elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self, TextIO, TypeVar

import click

from bwtui.command_log import COMMANDS, UNDER_WAY
from bwtui.console import say, say_json, terminal
from bwtui.terminal import can_redraw

#: A service that has not answered for this long is named (seconds), with this many characters of the command.
_SILENT_SECONDS = 5.0
_COMMAND_CHARACTERS = 100

Command = TypeVar("Command", bound=Callable[..., Any])


class ProgressView:
    """Receives the current phase, and from any thread the rows done; this one shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def phase(self, name: str) -> None:
        """Report that a new phase has begun."""

    def count(self, done: int, total: int) -> None:
        """Report how many rows are done."""

    def waits(self, text: str) -> None:
        """Report a service that does not answer; from any thread, and with ``--json``, too."""
        say(f"bwtui: {text}", err=True)

    def out_of_the_way(self) -> contextlib.AbstractContextManager[None]:
        """Leave the terminal free while the block runs."""
        return contextlib.nullcontext()


class JsonProgress(ProgressView):
    """One object per line: ``{"phase": "reading Kafka", "done": 1200, "total": 3400}``; counts if known."""

    def __init__(self) -> None:
        self._phase = ""

    def phase(self, name: str) -> None:
        self._phase = name
        self._write({"phase": name})

    def count(self, done: int, total: int) -> None:
        self._write({"phase": self._phase, "done": done, "total": total})

    def waits(self, text: str) -> None:
        self._write({"phase": self._phase, "waits": text})

    def _write(self, line: dict[str, Any]) -> None:
        # A single write per line, since several threads report.
        say_json(line, err=True)


class PlainProgress(ProgressView):
    """A line for each phase, and none for counts: the next phase follows soon enough."""

    def phase(self, name: str) -> None:
        say(f"bwtui: {name}", err=True)


class ProgressBar(ProgressView):
    """A bar with rows, their rate and the time left; without counts, the phase and a spinner."""

    def __init__(self, stream: TextIO) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[counted]}", markup=False),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=terminal(file=stream), transient=True)
        self._task: Any = self._progress.add_task("starting", total=None, counted="")
        self._since = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def phase(self, name: str) -> None:
        self._since = time.monotonic()
        self._progress.reset(self._task, description=name, total=None, counted="")

    def count(self, done: int, total: int) -> None:
        self.show(done, total, rate(done, total, time.monotonic() - self._since))

    def show(self, done: int, total: int, counted: str) -> None:
        """Show the progress with the caller's text."""
        self._progress.update(self._task, completed=done, total=total, counted=counted)

    def waits(self, text: str) -> None:
        self._progress.console.print(f"bwtui: {text}")

    @contextlib.contextmanager
    def out_of_the_way(self) -> Iterator[None]:
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()


@contextlib.contextmanager
def silence_reported(view: ProgressView) -> Iterator[None]:
    """Name each service that does not answer for a few seconds, until the block ends."""
    is_over = threading.Event()

    def watch() -> None:
        reported: set[tuple[str, str, float]] = set()
        while not is_over.wait(_SILENT_SECONDS / 5):
            for one in COMMANDS.snapshot().commands:
                silence = (one.service, one.text, one.first)
                # A COPY may take as long as its table is large.
                is_late = one.result == UNDER_WAY and one.seconds >= _SILENT_SECONDS
                if is_late and silence not in reported and not one.text.lower().startswith("copy"):
                    reported.add(silence)
                    text = one.text[:_COMMAND_CHARACTERS]
                    view.waits(f"{one.service} has not answered for {one.seconds:.0f} s: {text}")

    watcher = threading.Thread(target=watch, name="silence", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def rate(done: int, total: int, seconds: float) -> str:
    """Return the progress as text."""
    a_second = done / seconds if seconds > 0 else 0.0
    time_left = f", {(total - done) / a_second:,.0f} s left" if a_second else ""
    return f"{done:,} of {total:,} rows, {a_second:,.0f}/s{time_left}"


def view_of(*, as_json: bool, progress_json: bool) -> ProgressView:
    """Return the suitable view: lines for a program, nothing with ``--json``, a bar on a terminal, or
    lines.
    """
    if progress_json:
        return JsonProgress()
    if as_json:
        return ProgressView()
    # A bar is redrawn repeatedly, which a terminal that can only print does not support.
    return ProgressBar(sys.stderr) if can_redraw(sys.stderr) else PlainProgress()


def progress_json_option(command: Command) -> Command:
    """Add ``--progress-json``."""
    return click.option(
        "--progress-json", is_flag=True, help="Write progress to stderr as JSON lines, for programs."
    )(command)
