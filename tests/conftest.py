"""Fixture plugins for every test, and the signals that every test may rely on."""

import signal

import pytest
from hypothesis import settings

pytest_plugins = ["tests.fix_pilot", "tests.fix_sandbox", "tests.fix_scheduling", "tests.fix_spark"]

# A shell starts what it runs in the background with SIGINT ignored, which every child then inherits.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine that stalls is no fault of an example. Folders' own profiles build on this.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

#: Folders of files that take a minute and more, and then those of quick ones: with a long file at the end of
#: a run one of two processes would wait for the other. The pipeline's are not the first: nearly all of them
#: need the archive of Spark's classes, which the first makes while the others could only wait.
_FOLDERS = (
    *("integration", "pipeline", "faults", "torture", "drift", "shapes", "consumers"),
    *("docs", "audit", "tui", "property", "cli", "unit"),
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the folders into this order, and leave all else to pytest-randomly."""
    items.sort(key=lambda item: _FOLDERS.index(item.path.parent.name))
