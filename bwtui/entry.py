"""The entry of the ``bwtui`` script: from its first line on, Ctrl-C ends it without a traceback.

Ctrl-C waits until an import is through. KeyboardInterrupt is raised between any two instructions, and between
two of them importlib has taken the lock of all imports and not yet begun the block that lets go of it. Then
every thread that imports waits for ever, and whoever waits for such a thread does as well.
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
    # Whoever starts us with SIGINT ignored means it.
    waits = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if waits:
        # Nothing was begun yet, so there is nothing to end in order.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from bwtui.cli.main import main as run

    if waits:
        signal.signal(signal.SIGINT, interrupt)
    run()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but not within an import: then it is raised a little later."""
    if not _is_importing(frame):
        signal.default_int_handler(number, frame)
    # Not threading's: what it locks may be locked here.
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
