"""Where a run goes on recording: a new folder, or after what another run has recorded there."""

import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bwtui.errors import DamagedRecording, RefusedError
from bwtui.file_errors import file_failed
from bwtui.model.status import RecordingStatus
from bwtui.recording.folder import LOCK, FolderLock, SegmentPath, open_segment, segments
from bwtui.recording.format.blocks import Kind, Place, SegmentFile, damaged
from bwtui.recording.format.context import SegmentContext
from bwtui.recording.format.digest import digest_of
from bwtui.recording.format.statements import Head, Pass
from bwtui.recording.free_space import FreeSpace
from bwtui.recording.recover import Recovered, check_end, foot_of, recover_locked

if TYPE_CHECKING:
    from bwtui.recording.journal import Journal


@dataclass(slots=True)
class Continuation:
    """What the folder holds already, and the lock that keeps others from writing it."""

    folder: Path
    lock: FolderLock
    recording: str
    number: int = 1
    #: The digest in the foot of the segment before, or empty.
    previous: str = ""
    position: int = 0
    batch: int = 0
    pass_number: int = 0
    #: Identity of the newest change of the stream that is recorded.
    seen: tuple[int, int] = (0, 0)
    #: Up to this LSN everything is recorded; None when nothing was ever begun.
    reached: int | None = None
    #: The source that the last segment names, or {}.
    source: dict[str, Any] = field(default_factory=dict)
    recovered: list[Recovered] = field(default_factory=list)
    #: Whether the last segment says that another follows.
    is_expected: bool = False
    _rate: tuple[float, int, float] = (0.0, 0, 0.0)
    _space: FreeSpace = field(init=False)

    def __post_init__(self) -> None:
        self._space = FreeSpace(self.folder)

    def release(self) -> None:
        """Let others write the folder."""
        self.lock.release()

    def give_back(self) -> None:
        """Let go of a folder in which nothing could be written."""
        self.lock.give_back()

    def status(self, journal: "Journal", *, stopped: bool) -> RecordingStatus:
        """Return how the recording stands, with the room that is left and for how long that is enough."""
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


def continue_in(folder: Path, source: dict[str, Any]) -> Continuation:
    """Take the folder, finishing what a crash left there.

    Raises RefusedError when it is another database's or somebody writes it, StateFailed, DamagedRecording.
    """
    lock = FolderLock(folder)
    try:
        return _look(folder, lock, source)
    except BaseException:
        lock.give_back()
        raise


def check_ahead(folder: Path) -> None:
    """Raise what `continue_in` would for a folder in which nobody can record; nothing is made in it.

    Whose recording is there is not looked at: its source is known only once PostgreSQL has been asked.
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
            f"{folder} holds other files ({min(strangers)})", "record into a folder that is new or empty"
        )


def _look(folder: Path, lock: FolderLock, source: dict[str, Any]) -> Continuation:
    paths = segments(folder)
    if not paths:
        _refuse_strangers(folder)
        return Continuation(folder, lock, secrets.token_hex(16))
    for segment in paths:
        # Whose it is comes first: another's recording is not touched.
        theirs = _source_of(segment)
        if theirs is not None:
            _compare(folder, theirs, source)
            break
    recovered = recover_locked(folder)
    paths = segments(folder)
    if not paths:
        return Continuation(folder, lock, secrets.token_hex(16), recovered=recovered)
    last = paths[-1]
    foot, head = foot_of(last), head_of(last.path)
    check_end(last, foot)
    _compare(folder, head["source"], source)
    return Continuation(
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
    """Return the source that a segment names, or None where its head was not written to its end."""
    try:
        return head_of(segment.path)["source"]
    except DamagedRecording:
        if segment.is_finished:
            raise
        return None


def _compare(folder: Path, theirs: dict[str, Any], source: dict[str, Any]) -> None:
    for name in ("system_identifier", "database", "slot", "output_format"):
        if theirs.get(name) != source.get(name):
            raise RefusedError(
                f"the recording in {folder} is of another {name.replace('_', ' ')}: "
                f"{theirs.get(name)}, not {source.get(name)}",
                "record into another folder",
            )


def _reached(paths: list[SegmentPath]) -> int | None:
    """Return up to which LSN nothing is missing, or None when no run has come to begin anything.

    That a stream begins somewhere means that all before was recorded, or its lack noted.
    """
    number, reached = None, 0
    for foot in map(foot_of, reversed(paths)):
        is_begun = foot["pass"].get("kind") == "stream"
        if number is None and (foot["reached"] or is_begun):
            number = foot["pass"]["pass"]
        if number is not None and foot["pass"]["pass"] != number:
            break
        # The segments of one pass: the last of them need not have come to reach anything.
        reached = max(reached, foot["reached"], covered(foot["pass"]), foot.get("noted", 0))
    if number is not None or reached:
        return reached
    return 0 if any("kind" in foot_of(segment)["pass"] for segment in paths) else None


def covered(begun: Pass) -> int:
    """Return up to where all was recorded, or its lack noted, when a pass over the stream had begun; or 0.

    Of a transaction that Kafka has in part more may be relayed without the recording: that is told again.
    """
    behind = begun.get("behind")
    known = 0 if behind is None else behind["lsn"] + (behind["ordinal"] is None)
    return max(begun.get("start_lsn", 0), known) if begun.get("kind") == "stream" else 0


def head_of(path: Path) -> Head:
    """Return the HEAD of a segment. Raises DamagedRecording or StateFailed."""
    try:
        with open_segment(path) as file:
            source = SegmentFile(file, path.name)
            context, block = SegmentContext(), source.block(0)
            if block.kind != Kind.HEAD:
                raise damaged(Place(path.name, 0), "a segment begins with its HEAD block")
            context.take(block, path.name)
            return context.head
    except OSError as error:
        raise file_failed(f"{path} can't be read", error) from error
