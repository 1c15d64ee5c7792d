"""A bar on stderr for what takes long, where stderr is a terminal and the output does not go there too."""

import contextlib
import sys
from collections.abc import Iterator

from bwtui.console import terminal
from bwtui.recording.view import OnProgress


@contextlib.contextmanager
def bar(what: str, *, quiet: bool = False) -> Iterator[OnProgress | None]:
    """Show a bar while the block runs; yields what is told how far it is, or None where there is no bar."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress

    with Progress(console=terminal(err=True), transient=True) as progress:
        task = progress.add_task(what, total=None)

        def on_progress(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield on_progress
