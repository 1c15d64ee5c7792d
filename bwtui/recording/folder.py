"""A recording's folder: its segments in order, and the writer's lock."""

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bwtui.durable_files import private_folders, sync
from bwtui.errors import RefusedError, StateFailed, UsageError
from bwtui.file_errors import file_failed
from bwtui.recording.blocks import NEXT_SUFFIX, PARTIAL_SUFFIX, SUFFIX

#: The file name of a finished segment: its number and its LSN range.
FINISHED = re.compile(rf"(\d{{8}})-([0-9A-F]{{16}})-([0-9A-F]{{16}}){re.escape(SUFFIX)}")
_PARTIAL = re.compile(rf"(\d{{8}}){re.escape(PARTIAL_SUFFIX)}")
LOCK = "lock"
#: Maximum attempts to take a lock that another process holds, and the pause between them.
_ATTEMPTS, _PAUSE_SECONDS = 5, 0.02


@dataclass(frozen=True, slots=True)
class SegmentPath:
    """One segment's file, with the LSNs of its name; they are None while it is being written."""

    path: Path
    number: int
    first_lsn: int | None
    last_lsn: int | None

    @property
    def is_finished(self) -> bool:
        """Return whether the segment was finished and renamed."""
        return self.first_lsn is not None


def segments(folder: Path) -> list[SegmentPath]:
    """Return the segments in order, the unfinished one last. Raises UsageError or StateFailed."""
    try:
        names = [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError) as error:
        problem = "is not a recording" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {problem}", "give the folder that was given to --record") from error
    except OSError as error:
        raise file_failed(f"{folder} can't be read", error) from error
    paths = []
    for name in names:
        if match := FINISHED.fullmatch(name):
            number, first, last = match.groups()
            paths.append(SegmentPath(folder / name, int(number), int(first, 16), int(last, 16)))
        elif match := _PARTIAL.fullmatch(name):
            paths.append(SegmentPath(folder / name, int(match[1]), None, None))
    return sorted(paths, key=lambda segment: (segment.number, not segment.is_finished))


def open_segment(path: Path) -> BinaryIO:
    """Open a segment's file for reading. Raises OSError, also if it is not a regular file."""
    # O_NONBLOCK: opening a pipe would otherwise wait for a writer.
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(number, "rb")


def existing_segments(folder: Path) -> list[SegmentPath]:
    """Return the segments of a recording. Raises UsageError when there are none."""
    paths = segments(folder)
    if not paths:
        raise UsageError(f"{folder} contains no recording", "give the folder that was given to --record")
    return paths


class FolderLock:
    """The lock of the one process that writes a recording, held until `release` or the process's end."""

    def __init__(self, folder: Path) -> None:
        """Take the lock, and create ``folder`` if it is missing. Raises RefusedError or StateFailed."""
        self._path = folder / LOCK
        #: Paths created only for the lock, innermost last.
        self._created: list[Path] = []
        self._fd = -1
        for attempt in reversed(range(_ATTEMPTS)):
            try:
                self._open(folder)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and attempt:
                    # The process that has just given the lock back removed the folder.
                    continue
                self._undo()
                raise StateFailed(
                    f"the recording's folder {folder} can't be written: {_reason(error)}",
                    "choose a folder that can be created or written",
                ) from error
            if not self._lock():
                break
            if self._is_in_place():
                return
            # The file was removed before it was locked: the path is now a different file, or missing.
            self.release()
        self.release()
        raise RefusedError(
            f"another process is writing the recording {folder}", "stop it, or record into a different folder"
        )

    def _open(self, folder: Path) -> None:
        self._make(folder)
        existed = self._path.exists()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not existed:
            self._created.append(self._path)

    def _is_in_place(self) -> bool:
        """Return whether the locked file is still the one at the lock's path."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.stat())
        except OSError:
            return False

    def _make(self, folder: Path) -> None:
        for path in private_folders(folder):
            self._created.append(path)
            with contextlib.suppress(PermissionError):
                sync(path.parent)

    def _lock(self) -> bool:
        """Take the lock; retry, because `is_being_written` holds it for a moment."""
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(_PAUSE_SECONDS)
        return False

    def give_back(self) -> None:
        """Release the lock, and remove what was created for it if it is still empty.

        The file goes first, then its lock: a process that gets the lock then sees that the file is gone.
        """
        self._undo()
        self.release()

    def _undo(self) -> None:
        for path in reversed(self._created):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()

    def release(self) -> None:
        """Release the lock; further calls do nothing."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)


def _reason(error: OSError) -> str:
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file has the same path"
    return error.strerror or str(error)


def is_being_written(folder: Path) -> bool:
    """Return whether a process holds the lock of ``folder`` right now."""
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def partial_path(folder: Path, number: int) -> Path:
    """Return the path of segment ``number`` while it is being written."""
    return folder / f"{number:08d}{PARTIAL_SUFFIX}"


def next_path(folder: Path, number: int) -> Path:
    """Return the path of the marker that announces segment ``number`` before its predecessor is finished."""
    return folder / f"{number:08d}{NEXT_SUFFIX}"


def lacks_following_segments(last: SegmentPath, ended: str) -> bool:
    """Return whether segments after ``last``, which ended as ``ended`` says, are missing.

    Before the writer finishes a segment for rotation, it announces the next one with a marker file.
    """
    return ended == "rotated" and not next_path(last.path.parent, last.number + 1).exists()
