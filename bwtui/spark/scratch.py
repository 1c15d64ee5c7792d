"""Temporary folders that are removed after a run; a later run removes those of a killed one."""

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
#: A folder younger than this may not have its lock yet.
_YOUNG_SECONDS = 60.0


@contextlib.contextmanager
def scratch(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Create a new folder in ``parent``, by default the system's folder for temporary files.

    Raises OSError for an unusable ``parent``, and RefusedError if there is no usable folder at all.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        if parent is not None:
            raise
        raise RefusedError(
            f"no temporary folder can be created: {reason_of(error)}",
            "set TMPDIR to a writable folder on a disk with free space",
        ) from error
    try:
        _sweep(folder.parent, prefix)
        # The kernel releases the lock with the process, however it ends.
        with (folder / _LOCK).open("w") as lock:
            with contextlib.suppress(OSError):
                # Some file systems have no locks; then no sweep takes the folder for an abandoned one either.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path, prefix: str) -> None:
    """Remove abandoned folders of the current user; one without a lock file is left alone."""
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            status = folder.stat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_SECONDS:
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
