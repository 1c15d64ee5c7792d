"""Poll the progress of tasks while a job runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOK_SECONDS = 0.3


@contextmanager
def watching(poll: Callable[[], None]) -> Iterator[None]:
    """Call ``poll`` a few times a second in its own thread while the block runs."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK_SECONDS):
            poll()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
