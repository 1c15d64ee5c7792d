"""The terminal: whether it can show the screens, and how to restore it when they can't."""

import contextlib
import os
import sys
import termios
from collections.abc import Callable
from typing import TextIO

from bwtui.errors import UsageError

#: Terminals that can only print, or whose name gives no information.
_PRINTERS = ("", "dumb", "unknown")
#: Resets what the screens enable: Kitty's keyboard protocol, reports of mouse, paste, size and focus, the
#: alternate screen, a hidden cursor, no wrapping.
_BACK = (
    b"\x1b[<u\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?2004l\x1b[?2048l\x1b[?1004l"
    b"\x1b[?1049l\x1b[?25h\x1b[?7h\x1b[0m"
)


def need_screens(instead: str) -> None:
    """Raise UsageError unless the screens can be shown; ``instead`` is the hint for that case."""
    if not _is_terminal():
        raise UsageError("the screens need a terminal", instead)
    if not shows_screens():
        name = os.environ.get("TERM") or "empty"
        raise UsageError(f"this terminal can't show the screens: TERM is {name}", instead)


def shows_screens() -> bool:
    """Return whether the screens can be shown."""
    return _is_terminal() and os.environ.get("TERM") not in _PRINTERS


def _is_terminal() -> bool:
    # They are drawn on stderr.
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def can_redraw(stream: TextIO) -> bool:
    """Return whether the output to ``stream`` can be overwritten in place."""
    return stream.isatty() and os.environ.get("TERM") not in _PRINTERS


def is_closed() -> bool:
    """Return whether the terminal was closed, or there never was one."""
    try:
        termios.tcgetattr(0)
    except termios.error:
        return True
    return False


def restorer() -> Callable[[], None]:
    """Return a function that restores the terminal's present state without the screens' help."""
    before = None
    with contextlib.suppress(termios.error):
        before = termios.tcgetattr(0)

    def put_back() -> None:
        with contextlib.suppress(OSError, termios.error):
            # A user who has stopped the terminal's output would block this.
            termios.tcflush(2, termios.TCOFLUSH)
            os.write(2, _BACK)
        if before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSANOW, before)

    return put_back
