"""A recording's folder: its segments in order, and the lock of the process that writes."""

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

from bwtui.durable import private_folders, sync
from bwtui.errors import RefusedError, StateFailed, UsageError
from bwtui.file_errors import file_failed
from bwtui.recording.format.blocks import NEXT_SUFFIX, PARTIAL_SUFFIX, SUFFIX

#: The file name of a finished segment: its number and two LSNs.
FINISHED = re.compile(rf"(\d{{8}})-([0-9A-F]{{16}})-([0-9A-F]{{16}}){re.escape(SUFFIX)}")
_PARTIAL = re.compile(rf"(\d{{8}}){re.escape(PARTIAL_SUFFIX)}")
LOCK = "lock"
#: How often, and in what steps, a lock is tried that another holds.
_ATTEMPTS, _PAUSE_SECONDS = 5, 0.02


@dataclass(frozen=True, slots=True)
class SegmentPath:
    """One segment's file; the LSNs are those of its name, None while it is being written."""

    path: Path
    number: int
    first_lsn: int | None
    last_lsn: int | None

    @property
    def is_finished(self) -> bool:
        """Whether the segment was finished and renamed."""
        return self.first_lsn is not None


def segments(folder: Path) -> list[SegmentPath]:
    """Return the segments in order, the unfinished one last. Raises UsageError or StateFailed."""
    try:
        names = [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"{folder} is no recording", "name the folder that --record was given") from error
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
    """Open a segment's file to read it. Raises OSError, also for what is no file and would never end."""
    # Without waiting: a pipe opens only once somebody writes into it.
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(number, "rb")


def existing_segments(folder: Path) -> list[SegmentPath]:
    """Return the segments of a recording. Raises UsageError when there are none."""
    paths = segments(folder)
    if not paths:
        raise UsageError(f"{folder} holds no recording", "name the folder that --record was given")
    return paths


class FolderLock:
    """Held by the one process that writes a recording, until `release` or the process's end."""

    def __init__(self, folder: Path) -> None:
        """Take the lock, making ``folder`` if it is not there. Raises RefusedError or StateFailed."""
        self._path = folder / LOCK
        #: What was made for the lock alone, innermost last.
        self._made: list[Path] = []
        self._fd = -1
        for attempt in reversed(range(_ATTEMPTS)):
            try:
                self._open(folder)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and attempt:
                    # Who has just given it back took the folder away.
                    continue
                self._undo()
                raise StateFailed(
                    f"the recording's folder {folder} can't be written: {_reason(error)}",
                    "name a folder that can be made, or written",
                ) from error
            if not self._lock():
                break
            if self._is_in_place():
                return
            # It was taken away before we had it: the lock is another file by now, or none.
            self.release()
        self.release()
        raise RefusedError(
            f"another process is writing the recording {folder}", "stop it, or record into another folder"
        )

    def _open(self, folder: Path) -> None:
        self._make(folder)
        existed = self._path.exists()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not existed:
            self._made.append(self._path)

    def _is_in_place(self) -> bool:
        """Whether the file that is locked is the one that others find."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.stat())
        except OSError:
            return False

    def _make(self, folder: Path) -> None:
        for path in private_folders(folder):
            self._made.append(path)
            with contextlib.suppress(PermissionError):
                sync(path.parent)

    def _lock(self) -> bool:
        """Take it, also after `is_being_written`, which holds it for a moment."""
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(_PAUSE_SECONDS)
        return False

    def give_back(self) -> None:
        """Let go of the lock, and take away what was made for it, as far as that is still empty.

        First the file, then the lock on it: who gets that then sees that it holds nothing.
        """
        self._undo()
        self.release()

    def _undo(self) -> None:
        for path in reversed(self._made):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()

    def release(self) -> None:
        """Let go of the lock, once."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)


def _reason(error: OSError) -> str:
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file stands in its place"
    return error.strerror or str(error)


def is_being_written(folder: Path) -> bool:
    """Whether a process holds the lock of ``folder`` at this moment."""
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
    """Return where segment ``number`` is written."""
    return folder / f"{number:08d}{PARTIAL_SUFFIX}"


def next_path(folder: Path, number: int) -> Path:
    """Return where segment ``number`` is announced before the one before it is finished."""
    return folder / f"{number:08d}{NEXT_SUFFIX}"


def lacks_what_follows(last: SegmentPath, ended: str) -> bool:
    """Whether segments after ``last``, which ended like that, are gone.

    The next segment is announced before one is finished that goes over into it.
    """
    return ended == "rotated" and not next_path(last.path.parent, last.number + 1).exists()
