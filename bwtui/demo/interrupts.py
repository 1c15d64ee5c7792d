"""Ctrl-C, SIGTERM and SIGHUP at any moment: the demo unwinds, and nothing that it started stays behind."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from bwtui.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns signals into `Interrupted`, but never in the middle of a start or of the clean-up."""

    def __init__(self) -> None:
        self._asked = False
        self._shields = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Hold a signal back until the block has ended.

        Between the birth of a process and the note that it must be stopped, an exception would lose it.
        """
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        if self._asked and not self._shields:
            raise Interrupted("interrupted")

    def hold(self) -> None:
        """Hold every further signal back: from here on there is only clean-up."""
        self._shields += 1

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if not self._shields:
            raise Interrupted("interrupted")
