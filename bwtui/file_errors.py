"""Errors for files and folders that the operating system refuses: its reason, and a fitting hint.

A full disk, a limit on open files, or a read-only folder is not a bug. Code that knows what it was doing
reports it with `file_failed`; errors that reach a command's outermost level are handled by `unexplained`.
"""

import errno
import os
from pathlib import Path

from bwtui.errors import BwtuiError, StateFailed

#: Hints by the error's number; ``{}`` is the path.
_HINTS = {
    errno.ENOENT: "check the path; a relative path starts at the working directory",
    errno.ENOSPC: "free some space on the disk of {}, then try again",
    errno.EDQUOT: "the user's disk quota for {} is exhausted: free some space, then try again",
    errno.EFBIG: "the file exceeds a size limit: check 'ulimit -f' and the limits of the file system of {}",
    errno.EROFS: "{} is on a read-only file system: choose a path on a writable one",
    errno.EACCES: "grant the user that runs bwtui access to every folder of the path, and to {} itself",
    errno.EPERM: "the system denies this even to the owner of {}: check its attributes and mount options",
    errno.EMFILE: "the process has too many open files: raise the limit with 'ulimit -n'",
    errno.ENFILE: "the system has too many open files: raise fs.file-max",
    errno.ENAMETOOLONG: "use a shorter name: at most 255 bytes per component and 4,096 for the path",
    errno.EISDIR: "{} is a folder: specify a file",
    errno.ENOTDIR: "a component of the path {} is a file, not a folder: choose a different path",
    errno.EEXIST: "a file already exists at {}: remove it, or choose a different path",
    errno.ELOOP: "the symbolic links in the path {} form a loop: fix one of them",
    errno.EIO: "the disk of {} has I/O errors: check the system's log, and copy what is still readable",
    errno.ESTALE: "the file server no longer has {}: mount its file system again",
}
#: Errors about files even if they name no path.
_WITHOUT_A_PATH = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE})


def file_failed(
    action: str, error: OSError, kind: type[BwtuiError] = StateFailed, name: str = "the file"
) -> BwtuiError:
    """Return the error whose message is ``action`` and the system's reason, with a hint for that reason.

    ``name`` is the hint's name for the file if the error itself names none, as while writing it.
    """
    return kind(f"{action}: {reason_of(error)}", hint_for(error, name))


def remove(path: Path) -> None:
    """Remove a file, if it exists. Raises StateFailed."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise file_failed(f"{path} can't be removed", error) from error


def reason_of(error: OSError) -> str:
    """Return the system's message."""
    return error.strerror or (os.strerror(error.errno) if error.errno else str(error))


def hint_for(error: OSError, name: str = "the file") -> str:
    """Return the hint for ``error``; see `file_failed` for ``name``."""
    name = _path(error) or name
    usual = "check {} and its folder with 'ls -la', and the system's log"
    return _HINTS.get(error.errno or 0, usual).format(name)


def unexplained(error: BaseException) -> BwtuiError | None:
    """Return the error to show if an exception is the system's error about a user's file, or None."""
    if not isinstance(error, OSError):
        return None
    if error.errno == errno.ENOENT and not _has_working_directory():
        return BwtuiError("the working directory was removed", "change to an existing folder, then try again")
    path = _path(error)
    if error.errno not in (_HINTS if path else _WITHOUT_A_PATH) or error.errno == errno.ENOENT:
        # A missing file is one that bwtui should have checked for; other errors may be from a socket.
        return None
    return file_failed(f"{path} can't be used" if path else "a file operation failed", error, BwtuiError)


def _path(error: OSError) -> str | None:
    path = error.filename2 or error.filename
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else None


def _has_working_directory() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True
