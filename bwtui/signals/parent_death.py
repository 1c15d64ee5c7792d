"""Children that end with us, in whatever way we end: on Linux the kernel sends them a signal then."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
# Loaded now: between fork and exec a child must not start to load anything.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def signalled_with_us(number: signal.Signals) -> Callable[[], None] | None:
    """Return what Popen runs as ``preexec_fn``, in the child, before the command; None off Linux.

    That is two functions of libc that were loaded before, and no lock. The signal is bound to the thread
    that starts the child, so it has to be one that lives as long as the process.
    """
    libc, parent = _libc, os.getpid()
    if libc is None:
        return None

    def tie() -> None:
        # After a change of user, which would clear it again.
        libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return tie
