"""Plan a seal: which segments to seal, what an earlier run has made of them already, and the tasks."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bwtui.errors import BwtuiError, DamagedRecording
from bwtui.recording.folder import SegmentPath, existing_segments, is_being_written
from bwtui.recording.format.blocks import SegmentPlace, damaged
from bwtui.recording.format.digest import digest_of
from bwtui.recording.format.statements import is_sent
from bwtui.recording.manifest import MANIFEST, SEALED, Manifest, SealedFile, read_manifest
from bwtui.recording.reading.deliveries import DeliveryBook
from bwtui.recording.reading.segment_reader import SegmentReader
from bwtui.recording.sealed import sha256_of
from bwtui.seal.task import SealedPart, SealTask, read_part

#: Maximum bytes of the consecutive segments in a task, which has at least one.
TASK_BYTES = 128 << 20
_PART = re.compile(r"\d{8}-\d{8}")


@dataclass(slots=True)
class SealPlan:
    """``manifest`` is that of the earlier seal, or None; ``parts`` are reusable results of a killed run."""

    manifest: Manifest | None = None
    parts: dict[str, SealedPart] = field(default_factory=dict)
    tasks: list[SealTask] = field(default_factory=list)
    #: Number of changes that the tasks have to seal.
    changes: int = 0
    #: Number of segments at the end that are skipped because the recording is being written.
    left: int = 0

    @property
    def is_empty(self) -> bool:
        """Return whether everything is sealed already."""
        return not self.parts and not self.tasks


def make_plan(folder: Path, work: Path, cores: int, task_bytes: int = TASK_BYTES) -> SealPlan:
    """Determine what to do, and remove the partial results of a killed run.

    Raises UsageError, StateFailed, or DamagedRecording, also when the last segment is unfinished.
    """
    paths = existing_segments(folder)
    plan = SealPlan()
    readers: list[SegmentReader] = []
    try:
        readers += map(SegmentReader, finished_segments(folder, paths, plan))
        if is_being_written(folder):
            settled = _settled(readers)
            plan.left += len(readers) - settled
            for reader in readers[settled:]:
                reader.close()
            del readers[settled:]
        if (folder / SEALED / MANIFEST).exists():
            plan.manifest = read_manifest(folder / SEALED / MANIFEST)
            _check_prefix(plan.manifest, readers)
        done = len(plan.manifest.segments) if plan.manifest else 0
        todo = readers[done:]
        plan.parts = _whole_parts(work, folder / SEALED, todo)
        covered = {one.name for part in plan.parts.values() for one in part.segments}
        plan.tasks = _tasks(folder, work, readers, covered, done, cores, task_bytes)
        plan.changes = sum(one.changes for one in todo if one.name not in covered)
    finally:
        for reader in readers:
            reader.close()
    return plan


def finished_segments(folder: Path, paths: list[SegmentPath], plan: SealPlan) -> list[SegmentPath]:
    if paths[-1].is_finished:
        return paths
    if not is_being_written(folder):
        raise DamagedRecording(
            f"the recording {folder} is unfinished: segment {paths[-1].path.name} has no foot",
            f"run 'bwtui recording recover {folder}' first",
        )
    plan.left = 1
    return [one for one in paths if one.is_finished]


def _settled(readers: Sequence[SegmentReader]) -> int:
    """Return the number of segments, from the first on, with all their delivery reports recorded."""
    for at in range(len(readers) - 1, -1, -1):
        if not is_sent(readers[at].head):
            return at + 1
        book = DeliveryBook(readers[at:])
        book.read_for(int(readers[at].foot["next_batch"]) - 1)
        if not book.is_at_end:
            return at + 1
    return 0


def _check_prefix(manifest: Manifest, readers: Sequence[SegmentReader]) -> None:
    for sealed, reader in zip(manifest.segments, readers, strict=False):
        if reader.name != sealed.name or digest_of(reader.foot) != sealed.digest:
            raise damaged(
                SegmentPlace(reader.name, 0), f"{SEALED}/{MANIFEST} lists a different checksum for it"
            )
    if len(manifest.segments) > len(readers):
        raise damaged(
            SegmentPlace(manifest.segments[len(readers)].name, 0), "it was sealed, and is missing now"
        )


def locate(work: Path, sealed: Path, part: str, file: SealedFile) -> Path:
    """Return the path of a part's file: still in its part's folder, or at its final place."""
    here = work / part / file.path
    return here if here.exists() else sealed / file.path


def _whole_parts(work: Path, sealed: Path, todo: Sequence[SegmentReader]) -> dict[str, SealedPart]:
    """Return complete parts of an earlier run that are about these segments; remove all others."""
    digests = {segment.name: digest_of(segment.foot) for segment in todo}
    parts: dict[str, SealedPart] = {}
    for folder in sorted(work.iterdir()):
        if not folder.is_dir():
            folder.unlink()
            continue
        part = _whole_part(work, sealed, folder, digests) if _PART.fullmatch(folder.name) else None
        if part is None:
            shutil.rmtree(folder)
        else:
            parts[folder.name] = part
            for segment in part.segments:
                del digests[segment.name]
    return parts


def _whole_part(work: Path, sealed: Path, folder: Path, digests: dict[str, str]) -> SealedPart | None:
    try:
        part = read_part(folder)
        if any(digests.get(segment.name) != segment.digest for segment in part.segments):
            return None
        for file in part.files:
            if sha256_of(locate(work, sealed, folder.name, file)) != file.sha256:
                return None
    except (OSError, BwtuiError, ValueError, KeyError, TypeError):
        return None
    return part


def _tasks(
    folder: Path,
    work: Path,
    readers: Sequence[SegmentReader],
    covered: set[str],
    done: int,
    cores: int,
    task_bytes: int,
) -> list[SealTask]:
    total = sum(one.file.size for one in readers[done:] if one.name not in covered)
    # Divide the work so that no core waits for one that has all of it.
    limit = min(task_bytes, max(total // max(cores, 1), 1))
    tasks: list[SealTask] = []
    size, is_open = 0, False
    for at in range(done, len(readers)):
        reader = readers[at]
        if reader.name in covered:
            is_open = False
            continue
        if is_open and size + reader.file.size // 2 <= limit:
            tasks[-1] = SealTask(str(folder), str(work), tasks[-1].first, reader.number, tasks[-1].previous)
            size += reader.file.size
        else:
            previous = digest_of(readers[at - 1].foot) if at else ""
            tasks.append(SealTask(str(folder), str(work), reader.number, reader.number, previous))
            size, is_open = reader.file.size, True
    return tasks
