"""Start processes that can't outlive their parent, and find those that still work in a folder."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bwtui.signals.parent_death import signalled_with_us

#: Environment variables passed to a process of a different user.
_HARMLESS = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")


def start(
    command: Sequence[str],
    log: Path,
    folder: Path,
    *,
    environment: dict[str, str] | None = None,
    user: int | None = None,
    group: int | None = None,
    parent_death: signal.Signals = signal.SIGKILL,
) -> subprocess.Popen[bytes]:
    """Start a command in its own session, with a working directory, appending its output to a log.

    On Linux the kernel sends it `parent_death` when this process ends for any reason. The kernel binds that
    to the calling thread, so call this from the main thread.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={**_ours(user), **(environment or {})},
            user=user,
            group=group,
            extra_groups=[] if user is not None else None,
            start_new_session=True,
            preexec_fn=signalled_with_us(parent_death),  # noqa: PLW1509
        )


def _ours(user: int | None) -> dict[str, str]:
    """Return the environment for a process: its user can read it, and the full one may contain passwords."""
    if user is None:
        return dict(os.environ)
    return {name: os.environ[name] for name in _HARMLESS if name in os.environ}


def working_in(folder: Path) -> list[int]:
    """Return the ids of the processes whose working directory is this folder or below it.

    This finds children of a killed service, which have no other connection to it any more. Without /proc the
    list is empty.
    """
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            where = (entry / "cwd").readlink()
        except OSError:
            # It has ended, or belongs to a different user.
            continue
        if where == folder or folder in where.parents:
            pids.append(int(entry.name))
    return pids


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, which may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def exists(pid: int) -> bool:
    """Return whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
