"""Errors for files and folders that the operating system refuses: its reason, and a fitting hint.

A full disk, a limit on open files, or a read-only folder is not a bug. Code that knows what it was doing
reports it with `file_failed`; errors that reach a command's outermost level are handled by `unexplained`.
"""

import errno
import os
from pathlib import Path

from bwtui.errors import BwtuiError, StateFailed

#: Hints by the error's number; ``{}`` is the path.
_REMEDIES = {
    errno.ENOENT: "check the path; one that is not absolute begins in the working directory",
    errno.ENOSPC: "free some space on the disk of {}, and start again",
    errno.EDQUOT: "the user's share of the disk of {} is used up: free some of it, and start again",
    errno.EFBIG: "files may not grow that large here: see 'ulimit -f' and the file system of {}",
    errno.EROFS: "{} is on a file system that is mounted read-only: name a place on another",
    errno.EACCES: "let the user that runs bwtui into every folder of the path, and read and write {} itself",
    errno.EPERM: "the system forbids it even to the owner of {}: look at its attributes and mount options",
    errno.EMFILE: "the process has as many files open as it may: raise the limit with 'ulimit -n'",
    errno.ENFILE: "all processes together have as many files open as they may: raise fs.file-max",
    errno.ENAMETOOLONG: "give a shorter name: 255 bytes a part, 4,096 for the whole path",
    errno.EISDIR: "{} is a folder: name a file",
    errno.ENOTDIR: "a part of the path of {} is a file where a folder is needed: name another",
    errno.EEXIST: "a file stands where {} would be made: remove it, or name another place",
    errno.ELOOP: "the symbolic links on the way to {} lead in a circle: mend one of them",
    errno.EIO: "the disk of {} fails: look at the system's log, and copy what can still be read",
    errno.ESTALE: "the file server of {} has taken it away: mount it again",
}
#: Errors about files even if they name no path.
_WITHOUT_A_PATH = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE})


def file_failed(
    what: str, error: OSError, kind: type[BwtuiError] = StateFailed, name: str = "the file"
) -> BwtuiError:
    """Return the error whose message is ``what`` and the system's reason, with a hint for that reason.

    ``name`` is the hint's name for the file if the error itself names none, as while writing it.
    """
    return kind(f"{what}: {reason_of(error)}", remedy(error, name))


def reason_of(error: OSError) -> str:
    """Return the system's message."""
    return error.strerror or (os.strerror(error.errno) if error.errno else str(error))


def remedy(error: OSError, name: str = "the file") -> str:
    """Return the hint for ``error``; see `file_failed` for ``name``."""
    name = _path(error) or name
    usual = "look at {} and its folder with 'ls -la', and at the system's log"
    return _REMEDIES.get(error.errno or 0, usual).format(name)


def unexplained(error: BaseException) -> BwtuiError | None:
    """Return the error to show if an exception is the system's error about a user's file, or None."""
    if not isinstance(error, OSError):
        return None
    if error.errno == errno.ENOENT and not _has_working_directory():
        return BwtuiError(
            "the working directory was removed", "change into a folder that exists, and start again"
        )
    path = _path(error)
    if error.errno not in (_REMEDIES if path else _WITHOUT_A_PATH) or error.errno == errno.ENOENT:
        # A missing file is one that bwtui should have checked for; other errors may be from a socket.
        return None
    return file_failed(f"{path} can't be used" if path else "the system refuses a file", error, BwtuiError)


def _path(error: OSError) -> str | None:
    path = error.filename2 or error.filename
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else None


def _has_working_directory() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True
