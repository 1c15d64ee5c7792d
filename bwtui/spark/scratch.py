"""Folders for the length of a run, gone with it; what a killed run left is removed by a later one."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bwtui.errors import RefusedError
from bwtui.file_errors import reason_of

_LOCK = "in-use"
#: A folder this young may not have its lock yet.
_YOUNG_SECONDS = 60.0


@contextlib.contextmanager
def scratch(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder in ``parent``, by default the system's for temporary files.

    Raises OSError for a ``parent`` that can't be used, and RefusedError if there is no place at all.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        if parent is not None:
            raise
        raise RefusedError(
            f"there is no place for temporary files: {reason_of(error)}",
            "set TMPDIR to a folder that you may write to, on a disk with room",
        ) from error
    try:
        _sweep(folder.parent, prefix)
        # The kernel drops the lock with the process, however that ends.
        with (folder / _LOCK).open("w") as lock:
            with contextlib.suppress(OSError):
                # Not every file system has locks; then nobody takes the folder for one that is left, either.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path, prefix: str) -> None:
    """Remove our folders that nobody uses; one without a lock is not ours to judge."""
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            status = folder.stat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_SECONDS:
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
