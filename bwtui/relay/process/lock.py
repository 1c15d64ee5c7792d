"""The lock of a relay: only one process at a time may be the relay of a given name.

It is a ``flock`` on a file in the relay's state folder. The kernel releases it with the last descriptor of
the open file, so a killed engine leaves no stale lock. It may be inherited, so the process that starts an
engine takes the lock, prepares the folder, and passes the lock on without ever releasing it.
"""

import fcntl
import os
import time
from pathlib import Path

from bwtui.errors import RefusedError
from bwtui.file_errors import file_failed
from bwtui.state_folder import LOCK_NAME, STATE_HOME_HINT, state_folder

#: `is_held` takes the lock briefly, so one failed attempt does not prove that a relay runs.
_PATIENCE = 0.5
_POLL = 0.05


class RelayLock:
    """The held lock of one relay; `release` it, or end the process."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self.descriptor = descriptor

    @classmethod
    def acquire(cls, name: str) -> "RelayLock":
        """Create the relay's state folder if needed, and take the lock. Raises RefusedError."""
        path = private_folder(state_folder(name)) / LOCK_NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise file_failed(f"can't use {path}", error, RefusedError) from error
        deadline = time.monotonic() + _PATIENCE
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise RefusedError(
                    f"a relay called {name} is already running",
                    f"watch it with 'bwtui attach {name}', or start a second relay with a slot, a name and "
                    "topics of its own: -s SLOT -p PREFIX, without --name or with a different one",
                )
            time.sleep(0.02)
        return cls(name, descriptor)

    @classmethod
    def inherited(cls, name: str, descriptor: int) -> "RelayLock":
        """Return the lock that the parent process took and left open as ``descriptor``."""
        os.set_inheritable(descriptor, False)
        return cls(name, descriptor)

    def release(self) -> None:
        """Close this process's share of the lock."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def is_held(name: str) -> bool:
    """Return whether a process currently is the relay called ``name``. Raises RefusedError."""
    path = state_folder(name) / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        problem = f"can't determine whether relay {name} is running: can't open {path}"
        raise file_failed(problem, error, RefusedError) from error
    try:
        # A shared lock, so that two callers do not mistake each other for a relay.
        return not _try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def wait_until_free(name: str, timeout: float) -> bool:
    """Wait until no process is the relay called ``name``; return False after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while is_held(name):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def private_folder(path: Path) -> Path:
    """Create the folder ``path``, and make it private to its owner. Raises RefusedError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise RefusedError(
            f"can't use the folder {path}: {error.strerror}",
            STATE_HOME_HINT,
        ) from error
    return path


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
