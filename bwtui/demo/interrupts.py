"""Handle signals at any moment: the demo unwinds, and leaves nothing behind.

An exception from a signal handler is safe in the demo's own code, which expects one anywhere. Inside the
screens it is not: it can occur in the middle of a lock's own code, and leave it locked.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from bwtui import terminal
from bwtui.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupts:
    """Turns signals into `Interrupted`, but never during a start or during cleanup."""

    def __init__(self) -> None:
        self._asked = False
        self._shields = 0
        self._leave: Callable[[], None] | None = None
        self._hang_up: Callable[[], None] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Defer a signal until the block has ended.

        An exception between the start of a process and its registration for cleanup would lose the process.
        """
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        if self._asked and not self._shields:
            raise Interrupted()

    def hold(self) -> None:
        """Defer every further signal: only cleanup follows."""
        self._shields += 1

    @contextmanager
    def diverted(self, leave: Callable[[], None], hang_up: Callable[[], None]) -> Iterator[None]:
        """Call ``leave`` on a signal instead of raising; the exception follows after the block.

        ``hang_up`` is called when the terminal is gone, and must not return: without a terminal to write to,
        the screens may never end.
        """
        self._leave, self._hang_up = leave, hang_up
        try:
            yield
        finally:
            self._leave = self._hang_up = None
        if self._asked:
            raise Interrupted()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if self._shields:
            return
        divert = self._hang_up if number == signal.SIGHUP and terminal.is_closed() else self._leave
        if divert is None:
            raise Interrupted()
        divert()
