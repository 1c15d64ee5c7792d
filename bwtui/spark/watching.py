"""Looking, while a job runs, how far its tasks are."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOK_SECONDS = 0.3


@contextmanager
def watching(look: Callable[[], None]) -> Iterator[None]:
    """Call ``look`` a few times a second, in a thread of its own, while the block runs."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK_SECONDS):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
