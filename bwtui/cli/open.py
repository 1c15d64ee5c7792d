"""``bwtui open``: the screens over a recording."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bwtui.errors import UsageError

if TYPE_CHECKING:
    from bwtui.recording.reader import Recording

_EPILOG = """\b
Examples:
  bwtui open recordings/shop
  bwtui open recordings/shop --at 12:04:05          a time of day, or 2026-01-31 12:04
  bwtui open recordings/shop --at 0/1A2B3C          everything committed up to an LSN
  bwtui open recordings/shop --at "xid 742"         a transaction, with all its changes

\b
Space plays, ← and → step, [ and ] step by transactions, : goes to a time, an LSN or an xid,
T shows a transaction, x explains a key, a shows a table's rows as of this position, ? is help.
"""


@click.command(epilog=_EPILOG)
@click.argument("recording", type=click.Path(path_type=Path))
@click.option(
    "--at", metavar="PLACE", help="Where to stand: a time, an LSN, 'xid N', 'N%' or '#N'; else the end."
)
def open(recording: Path, at: str | None) -> None:
    """Look at RECORDING in the same screens as at a running relay, and rewind it; no server is needed."""
    from bwtui.recording.reader import open_recording
    from bwtui.tui.recording_app import run_recording

    view = open_recording(recording)
    try:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError(
                "there is no terminal for the screens", f"'bwtui recording info {recording}' needs none"
            )
        run_recording(view, lambda: open_recording(recording), at, _unfinished(view))
    finally:
        view.close()


def _unfinished(view: "Recording") -> str:
    """Say in one sentence when the recording has no proper end; nothing when it has."""
    from bwtui.recording.folder import is_being_written

    if view.segments[-1].is_finished:
        return ""
    if is_being_written(view.folder):
        return "this recording is still being written: it is shown as far as it had come when it was opened"
    if view.torn:
        return f"this recording was never finished, and its end is torn: what is whole is shown ({view.torn})"
    return "this recording was never finished: 'bwtui recording recover' finishes it, and everything is shown"
