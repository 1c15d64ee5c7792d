"""Child processes that end with this one, however it ends: on Linux the kernel then sends them a signal."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
# Loaded now: between fork and exec a child must not load anything.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def signalled_with_us(number: signal.Signals) -> Callable[[], None] | None:
    """Return a function for Popen's ``preexec_fn``, to run in the child before the command; None off Linux.

    It calls only two functions of libc that are already loaded, and takes no lock. The signal is bound to the
    thread that starts the child, so that thread has to live as long as the process.
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
