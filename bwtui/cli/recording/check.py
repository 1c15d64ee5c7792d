"""``bwtui recording check``: check every byte of a recording."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.inputs.relay_options import json_option
from bwtui.console import say, say_json
from bwtui.errors import DamagedRecording
from bwtui.model.lsn import format_lsn
from bwtui.model.number_format import plural

if TYPE_CHECKING:
    from bwtui.recording.blocks import SegmentPlace
    from bwtui.recording.check import CheckResult

_EPILOG = """\b
Examples:
  bwtui recording check recordings/shop
  bwtui recording check recordings/shop --json | jq .damages

\b
The command checks every checksum, every segment's link to its predecessor, and every
count. For sealed data, it checks the manifest and every file, and that the source
segments exist. If the recording is still being written, the check ends at its present end.
A recording that a crash left unfinished is neither damaged nor clean: 'bwtui recording
recover' finishes it.

\b
Exit codes: 0 clean · 6 damaged or unfinished
"""


@click.command(epilog=_EPILOG)
@click.argument("recording", type=click.Path(path_type=Path))
@json_option("Print one JSON object with verdict, counts and damages.")
def check(recording: Path, as_json: bool) -> None:
    """Check every byte of RECORDING, and list every damaged place."""
    from bwtui.cli.recording.progress import bar
    from bwtui.recording.check import check as check_all

    with bar("checking") as on_progress:
        checked = check_all(recording, on_progress)
    if as_json:
        say_json(to_json(checked))
    else:
        say(*_lines(checked))
    error = error_of(recording, checked)
    if error is not None:
        raise error


def to_json(checked: "CheckResult") -> dict[str, Any]:
    """Return the result of a check as a JSON object."""
    names = ("segments", "bytes", "changes", "transactions", "messages", "deliveries", "sealed_files")
    return {
        "verdict": checked.verdict,
        "recording": checked.recording,
        "is_being_written": checked.is_being_written,
        **{name: getattr(checked, name) for name in names},
        "damages": [
            {"file": damage.place.segment, "offset": _offset(damage.place), "reason": damage.reason}
            for damage in checked.damages
        ],
        "unfinished": _unfinished(checked),
        "gaps": [
            {"from_lsn": format_lsn(since), "to_lsn": format_lsn(until)} for since, until in checked.gaps
        ],
    }


def _offset(place: "SegmentPlace") -> int | None:
    from bwtui.recording.check import FilePlace

    return None if isinstance(place, FilePlace) else place.offset


def _unfinished(checked: "CheckResult") -> dict[str, Any] | None:
    if not checked.unfinished:
        return None
    torn = checked.torn
    return {
        "file": checked.unfinished,
        "torn_at": torn.place.offset if torn else None,
        "reason": torn.reason if torn else None,
    }


def damage_lines(checked: "CheckResult") -> list[str]:
    """Return a line for each damaged place."""
    return [f"{damage.place}: {damage.reason}" for damage in checked.damages]


def _lines(checked: "CheckResult") -> list[str]:
    lines = damage_lines(checked)
    if checked.unfinished:
        where = f"torn at byte {checked.torn.place.offset}" if checked.torn else "complete up to its end"
        lines.append(f"segment {checked.unfinished} is not finished, {where}")
    for since, until in checked.gaps:
        lines.append(f"{format_lsn(since)} to {format_lsn(until)} was not recorded, or is missing since")
    counts = (
        f"{plural(checked.segments, 'segment')}, {checked.bytes:,} bytes, "
        f"{plural(checked.transactions, 'transaction')}, {plural(checked.changes, 'change')}, "
        f"{plural(checked.messages, 'message')}, {checked.deliveries:,} acknowledged"
    )
    if checked.sealed_files:
        counts += f", {plural(checked.sealed_files, 'sealed file')}"
    if checked.verdict == "clean":
        lines.append(f"{_clean(checked)}: {counts}")
    else:
        lines.append(f"read: {counts}")
    return lines


def _clean(checked: "CheckResult") -> str:
    verdict = "clean so far, and being written" if checked.is_being_written else "clean"
    return f"{verdict}, with {plural(len(checked.gaps), 'gap')} listed above" if checked.gaps else verdict


def error_of(folder: Path, checked: "CheckResult") -> DamagedRecording | None:
    """Return the error for a damaged or unfinished recording, or None."""
    if checked.damages:
        from bwtui.recording.recover import MISSING_BEHIND, missing_hint

        number = len(checked.damages)
        places = "one place" if number == 1 else f"{number:,} places"
        files = {damage.place.segment for damage in checked.damages}
        which = min(files) if len(files) == 1 else f"{len(files)} files"
        hint = "restore the damaged files from a backup"
        if all(name.startswith("sealed/") for name in files):
            hint += ", or remove the folder 'sealed' and run 'bwtui recording seal' again"
        elif all(damage.reason == MISSING_BEHIND for damage in checked.damages):
            hint = missing_hint(folder)
        return DamagedRecording(f"the recording {folder} is damaged in {places} of {which}", hint)
    if checked.unfinished:
        return DamagedRecording(
            f"the recording {folder} is not finished", f"run 'bwtui recording recover {folder}'"
        )
    return None
