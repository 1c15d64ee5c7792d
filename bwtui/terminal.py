"""The terminal: whether it can show screens, and how it is put back when these can't do it themselves."""

import contextlib
import os
import sys
import termios
from collections.abc import Callable
from typing import TextIO

from bwtui.errors import UsageError

#: Terminals that can only print, or whose name says nothing.
_PRINTERS = ("", "dumb", "unknown")
#: What the screens switch on: Kitty's keys, the mouse, pastes, sizes and focus that are reported, the other
#: screen, no cursor, no wrapping.
_BACK = (
    b"\x1b[<u\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?2004l\x1b[?2048l\x1b[?1004l"
    b"\x1b[?1049l\x1b[?25h\x1b[?7h\x1b[0m"
)


def need_screens(instead: str) -> None:
    """Raise UsageError unless the screens can be shown; ``instead`` is the hint for where they can't."""
    if not _is_terminal():
        raise UsageError("there is no terminal for the screens", instead)
    if not shows_screens():
        name = os.environ.get("TERM") or "empty"
        raise UsageError(f"this terminal can't show the screens: TERM is {name}", instead)


def shows_screens() -> bool:
    """Return whether the screens can be shown."""
    return _is_terminal() and os.environ.get("TERM") not in _PRINTERS


def _is_terminal() -> bool:
    # They are drawn on stderr.
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def draws(stream: TextIO) -> bool:
    """Return whether what was written to ``stream`` can be drawn over."""
    return stream.isatty() and os.environ.get("TERM") not in _PRINTERS


def is_gone() -> bool:
    """Return whether our terminal was closed, or there never was one."""
    try:
        termios.tcgetattr(0)
    except termios.error:
        return True
    return False


def restorer() -> Callable[[], None]:
    """Return what puts the terminal back to how it is now, without asking the screens."""
    before = None
    with contextlib.suppress(termios.error):
        before = termios.tcgetattr(0)

    def put_back() -> None:
        with contextlib.suppress(OSError, termios.error):
            # Whoever stopped its output would have us wait.
            termios.tcflush(2, termios.TCOFLUSH)
            os.write(2, _BACK)
        if before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSANOW, before)

    return put_back
