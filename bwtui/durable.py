"""Files of ours: for their owner alone, whole or as they were before, and on the disk where that is promised.

Every function raises OSError.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def write_durably(path: Path, content: str) -> None:
    """Replace a file: a crash leaves the old text or the new one, and the new one once this has returned.

    The caller sees to it that nobody else writes the file meanwhile.
    """
    _replace(path, content, path.with_name(f"{path.name}.partial"), is_durable=True)
    sync(path.parent)


def write_whole(path: Path, content: str) -> None:
    """Replace a file: who reads it meanwhile has the old text or the new one. Nothing waits for the disk."""
    _replace(path, content, path.with_name(f"{path.name}.{os.getpid()}.partial"), is_durable=False)


def _replace(path: Path, content: str, partial: Path, *, is_durable: bool) -> None:
    try:
        with open(partial, "w", encoding="utf-8", opener=private) as file:
            file.write(content)
            if is_durable:
                # A name that is durable before its content would be an empty file after a power cut.
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def private(path: str, flags: int) -> int:
    """Open a file as ``opener`` of `open`: one that is made can be read by its owner only."""
    return os.open(path, flags, 0o600)


def sync(path: Path) -> None:
    """Make the content of a file durable, or the names in a folder."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(path: Path, in_use: Exception) -> Iterator[None]:
    """Hold the lock on a file, made if it is missing. Raises ``in_use`` when another process has it."""
    with open(path, "ab", opener=private) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise in_use from error
        yield


def private_folders(folder: Path) -> Iterator[Path]:
    """Make a folder and those above it that are missing, for their owner alone; yield each."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            yield path


def private_parent(path: Path) -> None:
    """Make the folder of ``path`` as `private_folders` does."""
    for _ in private_folders(path.parent):
        pass


def private_file(path: Path) -> Path:
    """Make a file that only its owner may read, or make one of ours that is there such one; return it.

    A pipe, a device and a file of somebody else stay as they are.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            os.fchmod(fd, 0o600)
    finally:
        os.close(fd)
    return path
