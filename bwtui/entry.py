"""The entry of the ``bwtui`` script: from its first line on, Ctrl-C ends it without a traceback."""

import os
import signal


def main() -> None:
    """Import the command line, and run it."""
    # Whoever starts us with SIGINT ignored means it.
    waits = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if waits:
        # Nothing was begun yet, so there is nothing to end in order.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from bwtui.cli.main import main as run

    if waits:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
