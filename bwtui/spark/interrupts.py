"""A kill, or a terminal that is closed, ends a block as Ctrl-C does."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def as_interrupts() -> Iterator[None]:
    """Let a kill, or a terminal that is closed, end the block as Ctrl-C does: in order, and cleared up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        # A session that another thread closes leaves it so: only the main thread may, and the end is near.
        if threading.current_thread() is threading.main_thread():
            for number in ours:
                signal.signal(number, signal.SIG_DFL)
