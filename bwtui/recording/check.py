"""Check a recording: checksums, the chain of segments, values that can be recomputed, and sealed files.

The check lists each damaged place. It skips what it can't judge because of earlier damage.
"""

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from bwtui.errors import StateFailed
from bwtui.file_errors import file_failed
from bwtui.recording.check_sealed import SealedCheck
from bwtui.recording.check_segment import Chain, SegmentCheck
from bwtui.recording.folder import (
    SegmentPath,
    existing_segments,
    is_being_written,
    lacks_following_segments,
    segments,
)
from bwtui.recording.format.blocks import SUFFIX, DamagedAt, SegmentPlace, damaged
from bwtui.recording.recover import MISSING_BEHIND, MISSING_HINT
from bwtui.recording.view import OnProgress

_ATTEMPTS = 3


@dataclass(slots=True)
class CheckResult:
    """The result of a check."""

    recording: str = ""
    segments: int = 0
    bytes: int = 0
    changes: int = 0
    transactions: int = 0
    messages: int = 0
    deliveries: int = 0
    #: Number of sealed Parquet files.
    sealed_files: int = 0
    is_being_written: bool = False
    #: Name of a segment that is unfinished and has no writer, or empty; and how its end is torn, if it is.
    unfinished: str = ""
    torn: DamagedAt | None = None
    damages: list[DamagedAt] = field(default_factory=list)
    #: First and last LSN of changes that were relayed without being recorded, as the relay noted it.
    gaps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """clean, damaged, or unfinished (intact but without its ending; 'recover' finishes it)."""
        if self.damages:
            return "damaged"
        return "unfinished" if self.unfinished else "clean"


def check(folder: Path, on_progress: OnProgress | None = None) -> CheckResult:
    """Read the whole recording and return the damage found. Raises UsageError or StateFailed."""
    written = is_being_written(folder)
    result = CheckResult(is_being_written=written)
    sealed = SealedCheck(folder)
    # The manifest lists the segments even if all of them are missing.
    paths = segments(folder) if sealed.is_there else existing_segments(folder)
    sizes = [path.path.stat().st_size if path.path.exists() else 0 for path in paths]
    done, total = 0, sum(sizes) + sealed.bytes

    def on_read(read: int) -> None:
        if on_progress is not None:
            on_progress(min(done + read, total), total)

    chain = Chain()
    checksums: dict[str, str | None] = {}
    for at, path in enumerate(paths):
        is_last = at + 1 == len(paths)
        _check_order(path, chain.number + 1, result, is_last=is_last)
        if path.number > chain.number + 1:
            chain.skip()
        with closing(_open(path)) as segment:
            segment.check(chain, on_read)
            sealed.check_bytes(segment)
        _count(result, segment, is_last=is_last)
        checksums[segment.name] = chain.previous
        done += sizes[at]
    result.recording = chain.recording
    sealed.check_segments(chain.recording, checksums)
    if paths and not written and lacks_following_segments(paths[-1], chain.ended):
        _note_missing_end(paths[-1], sizes[-1], result, sealed)
    sealed.check_files(on_read)
    result.sealed_files = sealed.files
    result.damages += sealed.damages
    return result


def _check_order(path: SegmentPath, expected: int, result: CheckResult, *, is_last: bool) -> None:
    place = SegmentPlace(path.path.name, 0)
    if path.number > expected:
        one = path.number == expected + 1
        missing = f"segment {expected} is" if one else f"segments {expected} to {path.number - 1} are"
        result.damages.append(damaged(place, f"{missing} missing before it"))
    elif path.number < expected:
        result.damages.append(damaged(place, "a different segment has the same number"))
    if not path.is_finished and not is_last:
        result.damages.append(damaged(place, "it is unfinished, but later segments follow it"))


def _note_missing_end(last: SegmentPath, size: int, result: CheckResult, sealed: SealedCheck) -> None:
    """Note that the segments after ``last`` are missing, unless the manifest lists them as missing."""
    name = last.path.name
    damaged_files = [damage.place.segment for damage in sealed.damages]
    if not any(file.endswith(SUFFIX) and file > name for file in damaged_files):
        result.damages.append(damaged(SegmentPlace(name, size), MISSING_BEHIND, MISSING_HINT))


def _open(path: SegmentPath) -> SegmentCheck:
    """Open a segment, even if the writer finishes and renames it at the same moment."""
    for _ in range(_ATTEMPTS):
        try:
            return SegmentCheck(path)
        except FileNotFoundError:
            same = [segment for segment in segments(path.path.parent) if segment.number == path.number]
            path = same[0] if same else path
        except OSError as error:
            raise file_failed(f"{path.path} can't be read", error) from error
    raise StateFailed(
        f"{path.path} disappeared during the check",
        "check again when no process removes files of the recording",
    )


def _count(result: CheckResult, segment: SegmentCheck, *, is_last: bool) -> None:
    result.segments += 1
    result.bytes += segment.file.size
    result.changes += segment.totals.changes
    result.transactions += segment.totals.transactions
    result.messages += segment.messages
    result.deliveries += segment.deliveries
    result.damages += segment.damages
    result.gaps += segment.gaps
    if not segment.is_finished and is_last and not result.is_being_written:
        result.unfinished, result.torn = segment.name, segment.torn
