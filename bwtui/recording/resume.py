"""Resume the recording in a folder after what an earlier run recorded there, or begin a new one."""

import os
import secrets
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bwtui.errors import DamagedRecording, RefusedError
from bwtui.file_errors import file_failed
from bwtui.model.status import RecordingStatus
from bwtui.recording.blocks import BlockKind, SegmentFile, SegmentPlace, damaged
from bwtui.recording.folder import LOCK, FolderLock, SegmentPath, open_segment, segments
from bwtui.recording.payloads import Head, Pass
from bwtui.recording.recover import RecoveryResult, check_end, foot_of, recover_locked
from bwtui.recording.walk import SegmentContext, digest_of

if TYPE_CHECKING:
    from bwtui.recording.journal import Journal


# Free disk space, for callers that must not block: a hanging disk never answers.

#: Seconds for which a result stays valid, and for which a caller waits for a new one before it gets the old
#: one.
_FRESH_SECONDS, _PATIENCE_SECONDS = 0.5, 0.1
#: Age in seconds from which on a result is not returned.
_STALE_SECONDS = 10.0


class FreeSpace:
    """Queries the system in its own thread; any thread may call `bytes`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._queried_at = 0.0
        #: Set when no query is running.
        self._done = threading.Event()
        self._done.set()
        self._bytes: int | None = None

    def bytes(self) -> int | None:
        """Return the number of free bytes from the last query, or None if it is unknown.

        An old result counts as unknown: the disk may have filled up since.
        """
        with self._lock:
            begins = self._done.is_set() and time.monotonic() - self._queried_at > _FRESH_SECONDS
            if begins:
                self._done.clear()
                threading.Thread(target=self._query, name="free space", daemon=True).start()
        if begins or not self._queried_at:
            # Every caller waits until there is a first result.
            self._done.wait(_PATIENCE_SECONDS)
        return self._bytes if time.monotonic() - self._queried_at < _STALE_SECONDS else None

    def _query(self) -> None:
        try:
            disk = os.statvfs(self._folder)
            self._bytes = disk.f_bavail * disk.f_frsize
        except OSError:
            self._bytes = None
        finally:
            self._queried_at = time.monotonic()
            self._done.set()


@dataclass(slots=True)
class ResumePoint:
    """The state of the recording in a folder, and the lock that excludes other writers."""

    folder: Path
    lock: FolderLock
    recording: str
    number: int = 1
    #: The digest in the foot of the segment before, or empty.
    previous: str = ""
    position: int = 0
    batch: int = 0
    pass_number: int = 0
    #: Identity of the newest recorded change of the stream.
    seen: tuple[int, int] = (0, 0)
    #: Everything up to this LSN is recorded; None if no pass has begun.
    reached: int | None = None
    #: The source that the last segment names, or {}.
    source: dict[str, Any] = field(default_factory=dict)
    recovered: list[RecoveryResult] = field(default_factory=list)
    #: True if the last segment's foot says that another segment follows.
    is_expected: bool = False
    _rate: tuple[float, int, float] = (0.0, 0, 0.0)
    _space: FreeSpace = field(init=False)

    def __post_init__(self) -> None:
        self._space = FreeSpace(self.folder)

    def release(self) -> None:
        """Release the lock."""
        self.lock.release()

    def give_back(self) -> None:
        """Release the lock and remove what was created for it, if nothing was written to the folder."""
        self.lock.give_back()

    def status(self, journal: "Journal", *, stopped: bool) -> RecordingStatus:
        """Return the recording's status, with the free space and the time until it runs out."""
        now, written = time.monotonic(), journal.bytes_written
        since, before, rate = self._rate
        if now - since >= 1.0:
            rate = (written - before) / (now - since) if since else 0.0
            self._rate = (now, written, rate)
        free = self._space.bytes()
        return RecordingStatus(
            path=str(self.folder),
            state="stopped" if stopped else "failed" if journal.failure else "recording",
            bytes=written,
            segments=self.number + journal.segments,
            bytes_per_second=round(rate, 1),
            free_bytes=free,
            seconds_left=round(free / rate, 1) if free is not None and rate > 1 else None,
            durable_lsn=journal.durable_lsn,
        )


def continue_in(folder: Path, source: dict[str, Any]) -> ResumePoint:
    """Lock the folder and finish what a crash left there.

    Raises RefusedError when another process writes it or it records a different database, StateFailed,
    DamagedRecording.
    """
    lock = FolderLock(folder)
    try:
        return _look(folder, lock, source)
    except BaseException:
        lock.give_back()
        raise


def check_ahead(folder: Path) -> None:
    """Raise what `continue_in` would for a folder that can't be recorded into, and leave nothing there.

    This does not check whose recording it is: the source is known only after a query to PostgreSQL.
    """
    lock = FolderLock(folder)
    try:
        if not segments(folder):
            _refuse_strangers(folder)
    finally:
        lock.give_back()


def _refuse_strangers(folder: Path) -> None:
    strangers = [path.name for path in folder.iterdir() if path.name != LOCK]
    if strangers:
        raise RefusedError(
            f"{folder} contains files that are not part of a recording ({min(strangers)})",
            "record into a new or empty folder",
        )


def _look(folder: Path, lock: FolderLock, source: dict[str, Any]) -> ResumePoint:
    paths = segments(folder)
    if not paths:
        _refuse_strangers(folder)
        return ResumePoint(folder, lock, secrets.token_hex(16))
    for segment in paths:
        # Check the source first: a different source's recording must not be modified.
        recorded = _source_of(segment)
        if recorded is not None:
            _compare(folder, recorded, source)
            break
    recovered = recover_locked(folder)
    paths = segments(folder)
    if not paths:
        return ResumePoint(folder, lock, secrets.token_hex(16), recovered=recovered)
    last = paths[-1]
    foot, head = foot_of(last), head_of(last.path)
    check_end(last, foot)
    _compare(folder, head["source"], source)
    return ResumePoint(
        folder,
        lock,
        head["recording"],
        number=last.number + 1,
        previous=digest_of(foot),
        position=foot["first_position"] + foot["changes"],
        batch=foot["next_batch"],
        pass_number=foot["pass"]["pass"],
        seen=(foot["seen"][0], foot["seen"][1]),
        reached=_reached(paths),
        source=head["source"],
        recovered=recovered,
        is_expected=foot["ended"] == "rotated",
    )


def _source_of(segment: SegmentPath) -> dict[str, Any] | None:
    """Return the source that a segment names, or None if its head is incomplete."""
    try:
        return head_of(segment.path)["source"]
    except DamagedRecording:
        if segment.is_finished:
            raise
        return None


def _compare(folder: Path, recorded: dict[str, Any], source: dict[str, Any]) -> None:
    for name in ("system_identifier", "database", "slot", "output_format"):
        if recorded.get(name) != source.get(name):
            raise RefusedError(
                f"the recording in {folder} has a different {name.replace('_', ' ')}: "
                f"{recorded.get(name)}, not {source.get(name)}",
                "record into another folder",
            )


def _reached(paths: list[SegmentPath]) -> int | None:
    """Return the LSN up to which nothing is missing, or None if no run has begun a pass.

    A stream that begins at an LSN proves that everything before it was recorded, or noted as a gap.
    """
    number, reached = None, 0
    for foot in map(foot_of, reversed(paths)):
        is_begun = foot["pass"].get("kind") == "stream"
        if number is None and (foot["reached"] or is_begun):
            number = foot["pass"]["pass"]
        if number is not None and foot["pass"]["pass"] != number:
            break
        # All segments of one pass count: its last one may not have reached any LSN.
        reached = max(reached, foot["reached"], covered(foot["pass"]), foot.get("noted", 0))
    if number is not None or reached:
        return reached
    return 0 if any("kind" in foot_of(segment)["pass"] for segment in paths) else None


def covered(begun: Pass) -> int:
    """Return the LSN up to which all was recorded or noted as a gap when a stream pass began; otherwise 0.

    If Kafka has only part of a transaction, the rest may be relayed without the recording: the relay notes
    that gap again.
    """
    last_sent = begun.get("behind")
    sent_lsn = 0 if last_sent is None else last_sent["lsn"] + (last_sent["ordinal"] is None)
    return max(begun.get("start_lsn", 0), sent_lsn) if begun.get("kind") == "stream" else 0


def head_of(path: Path) -> Head:
    """Return the HEAD of a segment. Raises DamagedRecording or StateFailed."""
    try:
        with open_segment(path) as file:
            source = SegmentFile(file, path.name)
            context, block = SegmentContext(), source.block(0)
            if block.kind != BlockKind.HEAD:
                raise damaged(SegmentPlace(path.name, 0), "the segment does not start with a HEAD block")
            context.take(block, path.name)
            return context.head
    except OSError as error:
        raise file_failed(f"{path} can't be read", error) from error
