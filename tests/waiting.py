"""Wait for a state, with a deadline: no test sleeps for a fixed time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.01


def eventually(what: str, condition: Callable[[], T | None], seconds: float = 60.0) -> T:
    """Return the first true value of ``condition``; raise AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:.0f} s still not so: {what}")
        time.sleep(_POLL_SECONDS)
