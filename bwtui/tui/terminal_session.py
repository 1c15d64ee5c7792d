"""Runs the screens and restores the terminal, however they end.

After a signal the screens close as if the user had left, and the command reports the interruption. Screens
that do not close in time are ended at once, and the terminal is restored without them. The same applies if
the terminal is gone: screens that can't write to it may never close.
"""

import asyncio
import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from typing import Any, TypeVar

from textual.app import App

from bwtui import terminal
from bwtui.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Maximum seconds that screens may take to close after a signal.
_CLOSE_SECONDS = 10.0


T = TypeVar("T")


def run_app(app: App[T], hint: str) -> T | None:
    """Run ``app`` until the user leaves, and return its result.

    Raises Interrupted with ``hint`` after a signal.
    """
    # A worker created while the screens end may never start; Python would print a warning about it.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    with _closed_by_signals(app) as interrupted:
        ending = app.run()
    if interrupted.is_set():
        raise Interrupted("interrupted", hint)
    return ending


@contextlib.contextmanager
def _closed_by_signals(app: App[Any]) -> Iterator[threading.Event]:
    """Close the app on a signal; yield an event that the signal sets."""
    put_back, interrupted = terminal.restorer(), threading.Event()

    def end() -> None:
        put_back()
        os._exit(Interrupted.exit_code)

    last = threading.Timer(_CLOSE_SECONDS, end)
    last.daemon = True

    def close(*_: object) -> None:
        if interrupted.is_set() or terminal.is_closed():
            end()
        interrupted.set()
        last.start()
        with contextlib.suppress(RuntimeError):
            # Without a running loop the app has ended or not started yet; the timer then ends the process.
            asyncio.get_running_loop().call_soon_threadsafe(app.exit)

    before = {number: signal.signal(number, close) for number in _SIGNALS}
    try:
        yield interrupted
    finally:
        last.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
