"""``bwtui recording check``: whether every byte of a recording is what was written."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.output.table import plural
from bwtui.console import say, say_json
from bwtui.errors import DamagedRecording

if TYPE_CHECKING:
    from bwtui.recording.check import Checked
    from bwtui.recording.format.blocks import Place

_EPILOG = """\b
Examples:
  bwtui recording check recordings/shop
  bwtui recording check recordings/shop --json | jq .damages

\b
Everything is read: every checksum, every segment's link to the one before it, and
every number that follows from the rest; of what was sealed, the manifest and every
file, and that the segments it was made of are there. A recording that is being written is clean
up to where it is written. One that a crash has left unfinished is not damaged, but
not clean either: 'bwtui recording recover' finishes it.
Exit code 6: damaged, or unfinished.
"""


@click.command(epilog=_EPILOG)
@click.argument("recording", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="An object with the verdict, counts and damages.")
def check(recording: Path, as_json: bool) -> None:
    """Check every byte of RECORDING, and list every damaged place."""
    from bwtui.cli.recording.progress import bar
    from bwtui.recording.check import check as check_all

    with bar("checking") as told:
        found = check_all(recording, told)
    if as_json:
        say_json(to_json(found))
    else:
        say(*_lines(found))
    error = error_of(recording, found)
    if error is not None:
        raise error


def to_json(found: "Checked") -> dict[str, Any]:
    """Return what a check found as a JSON object."""
    names = ("segments", "bytes", "changes", "transactions", "messages", "deliveries", "sealed_files")
    return {
        "verdict": found.verdict,
        "recording": found.recording,
        "is_being_written": found.is_being_written,
        **{name: getattr(found, name) for name in names},
        "damages": [
            {"file": damage.place.segment, "offset": _offset(damage.place), "reason": damage.reason}
            for damage in found.damages
        ],
        "unfinished": _unfinished(found),
    }


def _offset(place: "Place") -> int | None:
    from bwtui.recording.check_sealed import WholeFile

    return None if isinstance(place, WholeFile) else place.offset


def _unfinished(found: "Checked") -> dict[str, Any] | None:
    if not found.unfinished:
        return None
    torn = found.torn
    return {
        "file": found.unfinished,
        "torn_at": torn.place.offset if torn else None,
        "reason": torn.reason if torn else None,
    }


def damage_lines(found: "Checked") -> list[str]:
    """Return a line for each damaged place."""
    return [f"{damage.place}: {damage.reason}" for damage in found.damages]


def _lines(found: "Checked") -> list[str]:
    lines = damage_lines(found)
    if found.unfinished:
        where = f"torn at byte {found.torn.place.offset}" if found.torn else "whole as far as it goes"
        lines.append(f"{found.unfinished}: not finished, {where}")
    counts = (
        f"{plural(found.segments, 'segment')}, {found.bytes:,} bytes, "
        f"{plural(found.transactions, 'transaction')}, {plural(found.changes, 'change')}, "
        f"{plural(found.messages, 'message')}, {found.deliveries:,} acknowledged"
    )
    if found.sealed_files:
        counts += f", {plural(found.sealed_files, 'sealed file')}"
    if found.verdict == "clean":
        lines.append(f"clean{' so far, and being written' if found.is_being_written else ''}: {counts}")
    else:
        lines.append(f"read: {counts}")
    return lines


def error_of(folder: Path, found: "Checked") -> DamagedRecording | None:
    """Return the error that says what is wrong with a recording, or None."""
    if found.damages:
        from bwtui.recording.recover import MISSING_BEHIND, MISSING_HINT

        number = len(found.damages)
        places = "one place" if number == 1 else f"{number:,} places"
        files = {damage.place.segment for damage in found.damages}
        which = min(files) if len(files) == 1 else f"{len(files)} files"
        hint = "restore what is damaged from a copy"
        if all(name.startswith("sealed/") for name in files):
            hint += ", or remove the folder 'sealed' and run 'bwtui recording seal' again"
        elif all(damage.reason == MISSING_BEHIND for damage in found.damages):
            hint = MISSING_HINT
        return DamagedRecording(f"the recording {folder} is damaged in {places} of {which}", hint)
    if found.unfinished:
        return DamagedRecording(
            f"the recording {folder} is not finished", f"run 'bwtui recording recover {folder}'"
        )
    return None
