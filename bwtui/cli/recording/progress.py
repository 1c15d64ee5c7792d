"""A bar on stderr for long work, if stderr is a terminal and not also the output."""

import contextlib
import sys
from collections.abc import Iterator

from bwtui.console import terminal
from bwtui.recording.view import OnProgress


@contextlib.contextmanager
def bar(label: str, *, quiet: bool = False, unit: str = "") -> Iterator[OnProgress | None]:
    """Show a bar while the block runs, and how many of ``unit`` are done; yield its update function.

    Yield None if there is no bar.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress, TextColumn

    columns = *Progress.get_default_columns(), TextColumn("{task.fields[counted]}", markup=False)
    with Progress(*columns, console=terminal(err=True), transient=True) as progress:
        task = progress.add_task(label, total=None, counted="")

        def on_progress(done: int, total: int) -> None:
            speed = progress.tasks[0].speed or 0
            counted = f"{done:,} of {total:,} {unit}, {speed:,.0f}/s" if unit else ""
            progress.update(task, completed=done, total=total, counted=counted)

        yield on_progress
