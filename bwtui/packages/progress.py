"""What a long set-up shows on stderr: a bar on a terminal, plain lines elsewhere, nothing when asked."""

import sys
import time
from typing import Self, TextIO

import rich.progress
import rich.text

from bwtui.console import say, terminal
from bwtui.shown import shown

#: Seconds between two plain lines about the same download.
PLAIN_INTERVAL = 5.0


class Progress:
    """Is told what goes on; every method may be called from one thread only. This one shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def note(self, text: str) -> None:
        """Show one step, such as "starting PostgreSQL 18"."""

    def fetched(self, done: int, total: int) -> None:
        """Show how many bytes of a download are here, out of how many."""


class Plain(Progress):
    """Writes a line for each step and, during a download, one every few seconds."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._next = 0.0

    def note(self, text: str) -> None:
        say(f"bwtui: {text}", file=self._stream)

    def fetched(self, done: int, total: int) -> None:
        """Write the megabytes that are here, at most once every PLAIN_INTERVAL seconds, and at the end."""
        now = time.monotonic()
        if now >= self._next or done >= total:
            self._next = now + PLAIN_INTERVAL
            self.note(f"fetched {done / 1e6:.0f} of {total / 1e6:.0f} MB")


class Terminal(Progress):
    """Shows a progress bar under the lines; the bar is gone at the end of the block."""

    def __init__(self) -> None:
        self._console = terminal(err=True)
        self._bar = rich.progress.Progress(
            # Ivy asks for every file first, and only then fetches one; without it all seems to hang.
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
        self._bar.console.print(rich.text.Text.assemble(("• ", "dim"), shown(text)))

    def fetched(self, done: int, total: int) -> None:
        """Move the bar; it goes away when the download is complete."""
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


def for_stderr() -> Progress:
    """Return the progress that fits stderr: a bar on a terminal, plain lines elsewhere."""
    return Terminal() if sys.stderr.isatty() else Plain()
