"""Fixture plugins for every test, and the signals that every test may rely on."""

import signal

pytest_plugins = ["tests.fix_sandbox", "tests.fix_spark"]

# A shell starts what it runs in the background with SIGINT ignored, which every child then inherits.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
