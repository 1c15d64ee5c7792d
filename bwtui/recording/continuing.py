"""Where a run goes on recording: a new folder, or behind what another run has recorded there."""

import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bwtui.errors import RefusedError, StateFailed
from bwtui.recording.folder import FolderLock, segments
from bwtui.recording.recover import Recovered, foot_of, recover_locked
from bwtui.relay.status import RecordingStatus

if TYPE_CHECKING:
    from bwtui.recording.journal import Journal


@dataclass(slots=True)
class Continuation:
    """What the folder holds already, and the lock that keeps others from writing it."""

    folder: Path
    lock: FolderLock
    recording: str
    number: int = 1
    #: sha256 of the segment before, or empty.
    previous: str = ""
    position: int = 0
    batch: int = 0
    pass_number: int = 0
    #: Identity of the newest change of the stream that is recorded.
    seen: tuple[int, int] = (0, 0)
    #: Up to this LSN everything is recorded; 0 when nothing is.
    reached: int = 0
    #: The source that the last segment names, or {}.
    source: dict[str, Any] = field(default_factory=dict)
    recovered: list[Recovered] = field(default_factory=list)
    _rate: tuple[float, int, float] = (0.0, 0, 0.0)

    def release(self) -> None:
        """Let others write the folder."""
        self.lock.release()

    def picture(self, journal: "Journal", *, stopped: bool) -> RecordingStatus:
        """Return how the recording stands."""
        now, written = time.monotonic(), journal.bytes_written
        since, before, rate = self._rate
        if now - since >= 1.0:
            rate = (written - before) / (now - since) if since else 0.0
            self._rate = (now, written, rate)
        try:
            disk = os.statvfs(self.folder)
            free = disk.f_bavail * disk.f_frsize
        except OSError:
            free = 0
        return RecordingStatus(
            path=str(self.folder),
            state="stopped" if stopped else "failed" if journal.failure else "recording",
            bytes=written,
            segments=self.number + journal.segments,
            bytes_per_second=round(rate, 1),
            free_bytes=free,
            seconds_left=round(free / rate, 1) if rate > 1 else None,
            durable_lsn=journal.durable_lsn,
        )


def continue_in(folder: Path, source: dict[str, Any]) -> Continuation:
    """Take the folder, finishing what a crash left there.

    Raises RefusedError when it is another database's or somebody writes it, StateFailed, DamagedRecording.
    """
    lock = FolderLock(folder)
    try:
        return _look(folder, lock, source)
    except BaseException:
        lock.release()
        raise


def _look(folder: Path, lock: FolderLock, source: dict[str, Any]) -> Continuation:
    found = segments(folder)
    if not found:
        strangers = [path.name for path in folder.iterdir() if path.name != "lock"]
        if strangers:
            raise RefusedError(
                f"{folder} holds other files ({strangers[0]})", "record into a folder that is new or empty"
            )
        return Continuation(folder, lock, secrets.token_hex(16))
    recovered = recover_locked(folder) if not found[-1].is_finished else []
    found = segments(folder)
    if not found:
        return Continuation(folder, lock, secrets.token_hex(16), recovered=recovered)
    last = found[-1]
    foot, head = foot_of(last), head_of(last.path)
    theirs = head["source"]
    for name in ("system_identifier", "database", "slot", "output_format"):
        if theirs.get(name) != source.get(name):
            raise RefusedError(
                f"the recording in {folder} is of another {name.replace('_', ' ')}: "
                f"{theirs.get(name)}, not {source.get(name)}",
                "record into another folder",
            )
    seen = foot["seen"]
    number: Any = foot
    return Continuation(
        folder,
        lock,
        head["recording"],
        number=last.number + 1,
        previous=str(foot["sha256"]),
        position=number["first_position"] + number["changes"],
        batch=number["next_batch"],
        pass_number=number["pass"]["pass"],
        seen=(seen[0], seen[1]),  # type: ignore[index]
        reached=max(int(number["reached"]), _reached_before(found[:-1])),
        source=theirs,
        recovered=recovered,
    )


def _reached_before(found: list[Any]) -> int:
    return max((int(foot_of(segment)["reached"]) for segment in found[-3:]), default=0)  # type: ignore[call-overload]


def head_of(path: Path) -> dict[str, Any]:
    """Return the HEAD of a segment. Raises DamagedRecording or StateFailed."""
    from bwtui.recording.format import SegmentFile
    from bwtui.recording.known import Known

    try:
        with path.open("rb") as file:
            source = SegmentFile(file, path.name)
            known = Known()
            known.take(source.block(0), path.name)
            return known.head
    except OSError as error:
        raise StateFailed(f"{path} can't be read: {error.strerror}") from error
