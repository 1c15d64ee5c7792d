"""bwtui's own files: readable only by their owner, replaced atomically, and durable where that is promised.

Every function raises OSError.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def write_durably(path: Path, content: str) -> None:
    """Replace a file: after a crash it has the old text or the new one, on return durably the new one.

    The caller ensures that no other process writes the file meanwhile.
    """
    _replace(path, content, path.with_name(f"{path.name}.partial"), is_durable=True)
    sync(path.parent)


def write_atomically(path: Path, content: str) -> None:
    """Replace a file: readers get the old text or the new one. It does not wait for the disk."""
    _replace(path, content, path.with_name(f"{path.name}.{os.getpid()}.partial"), is_durable=False)


def _replace(path: Path, content: str, partial: Path, *, is_durable: bool) -> None:
    try:
        with open(partial, "w", encoding="utf-8", opener=open_private) as file:
            file.write(content)
            if is_durable:
                # A name that becomes durable before its content would be an empty file after a power failure.
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def open_private(path: str, flags: int) -> int:
    """Open a file, as ``opener`` of `open`; a new one is readable only by its owner."""
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
    """Hold the lock on a file, which is created if missing. Raises ``in_use`` if another process has it."""
    with open(path, "ab", opener=open_private) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise in_use from error
        yield


def private_folders(folder: Path) -> Iterator[Path]:
    """Create a folder and its missing parents, accessible only to their owner; yield each."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            yield path


def private_parent(path: Path) -> None:
    """Create the folder of ``path`` like `private_folders`."""
    for _ in private_folders(path.parent):
        pass


def private_file(path: Path) -> Path:
    """Create a file that only its owner may read, or restrict an existing one to its owner; return it.

    A pipe, a device and another user's file stay unchanged.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            os.fchmod(fd, 0o600)
    finally:
        os.close(fd)
    return path
