"""Progress of a long set-up on stderr: a bar on a terminal, plain lines elsewhere, or nothing."""

import sys
import time
from typing import Self, TextIO

import rich.progress
import rich.text

from bwtui.console import say, terminal
from bwtui.escaping import escape

#: Seconds between two plain lines about the same download.
PLAIN_INTERVAL = 5.0


class SetupProgress:
    """Receives progress, all from one thread. The base class shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def note(self, text: str) -> None:
        """Show one step, such as "starting PostgreSQL 18"."""

    def fetched(self, done: int, total: int) -> None:
        """Show the number of received bytes of a download, and the total."""


class PlainSetupProgress(SetupProgress):
    """Writes a line for each step and, during a download, a line every few seconds."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._next = 0.0

    def note(self, text: str) -> None:
        say(f"bwtui: {text}", file=self._stream)

    def fetched(self, done: int, total: int) -> None:
        """Write the received megabytes, at most once every PLAIN_INTERVAL seconds, and at the end."""
        now = time.monotonic()
        if now >= self._next or done >= total:
            self._next = now + PLAIN_INTERVAL
            self.note(f"fetched {done / 1e6:.0f} of {total / 1e6:.0f} MB")


class TerminalSetupProgress(SetupProgress):
    """Shows a progress bar below the lines; the bar disappears at the end of the block."""

    def __init__(self) -> None:
        self._console = terminal(err=True)
        self._bar = rich.progress.Progress(
            # Ivy checks all files before it fetches the first; without a spinner it would seem to hang.
            rich.progress.SpinnerColumn(),
            rich.progress.TextColumn("{task.description}", markup=False),
            rich.progress.BarColumn(),
            rich.progress.DownloadColumn(),
            rich.progress.TransferSpeedColumn(),
            rich.progress.TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task: rich.progress.TaskID | None = None

    def note(self, text: str) -> None:
        """Write the step on a line above the bar."""
        self._bar.console.print(rich.text.Text.assemble(("• ", "dim"), escape(text)))

    def fetched(self, done: int, total: int) -> None:
        """Update the bar; it disappears when the download is complete."""
        if self._task is None:
            self._task = self._bar.add_task("fetching", total=total)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total)
        if done >= total:
            self._finish()

    def _finish(self) -> None:
        if self._task is not None:
            self._bar.stop()
            self._bar.remove_task(self._task)
            self._task = None

    def __exit__(self, *_: object) -> None:
        self._finish()


def for_stderr() -> SetupProgress:
    """Return the progress for stderr: a bar on a terminal, plain lines elsewhere."""
    return TerminalSetupProgress() if sys.stderr.isatty() else PlainSetupProgress()
