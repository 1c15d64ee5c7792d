"""Make SIGTERM and SIGHUP end a block as Ctrl-C does."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def as_interrupts() -> Iterator[None]:
    """Handle SIGTERM, or SIGHUP from a closed terminal, like Ctrl-C: end the block with its cleanup."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        # Only the main thread may restore handlers; if another one closes the session, the process ends soon.
        if threading.current_thread() is threading.main_thread():
            for number in handled:
                signal.signal(number, signal.SIG_DFL)
