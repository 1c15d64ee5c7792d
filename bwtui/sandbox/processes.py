"""Processes that can't outlive their parent, and those that still work in a folder."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bwtui.signals.parent_death import signalled_with_us

#: Variables that a process of another user gets.
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
    """Start a command in a session of its own, working in a folder, its output appended to a log.

    On Linux the kernel sends it `parent_death` when our process ends in whatever way. That is bound to
    the thread that calls this, so it has to be the main thread.
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
    """Return what of our environment a process may have, which its user can read; ours may hold passwords."""
    if user is None:
        return dict(os.environ)
    return {name: os.environ[name] for name in _HARMLESS if name in os.environ}


def working_in(folder: Path) -> list[int]:
    """Return the ids of the processes whose working directory is this folder or below it.

    So children of a service that was killed are found, which have no other tie to it any more. On
    systems without /proc the list is empty.
    """
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            where = (entry / "cwd").readlink()
        except OSError:
            # It ended, or is somebody else's.
            continue
        if where == folder or folder in where.parents:
            pids.append(int(entry.name))
    return pids


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, which may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def exists(pid: int) -> bool:
    """Say whether a process of ours has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
