"""The entry point of the ``bwtui`` script: from its first line on, Ctrl-C ends it without a traceback.

Ctrl-C waits until an import is complete. KeyboardInterrupt can be raised between any two instructions, and at
one such point importlib has acquired the global import lock but not yet entered the block that releases it.
Then every thread that imports would wait without end, and so would every thread that waits for one of them.
"""

import _thread
import os
import signal
import time
from types import FrameType

_IMPORTLIB = "<frozen importlib"
_PAUSE_SECONDS = 0.02


def main() -> None:
    """Import the command line, and run it."""
    # If SIGINT is ignored at the start, that is intended.
    waits = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if waits:
        # Nothing has begun yet, so there is nothing to end in order.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from bwtui.cli.main import main as run

    if waits:
        signal.signal(signal.SIGINT, interrupt)
    run()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; during an import, raise it slightly later."""
    if not _is_importing(frame):
        signal.default_int_handler(number, frame)
    # Not threading's: the locks that it takes may be held here.
    _thread.start_new_thread(_again, ())


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTLIB):
            return True
        frame = frame.f_back
    return False


def _again() -> None:
    time.sleep(_PAUSE_SECONDS)
    os.kill(os.getpid(), signal.SIGINT)
