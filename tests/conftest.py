"""Fixture plugins for every test, and the signal handling that tests rely on."""

import atexit
import gc
import signal
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["tests.fix_pilot", "tests.fix_sandbox", "tests.fix_scheduling", "tests.fix_spark"]

# A shell starts background commands with SIGINT ignored, and every child inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A stalled machine is not a failure of an example. Folders' own profiles build on this.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# Python frees frozen objects only after this call: libraries report objects that are left at exit.
atexit.register(gc.unfreeze)

#: Folders of files that take a minute or more, and then those of quick ones: a long file at the end of a run
#: would keep only one process busy. The pipeline's files are not the first: nearly all of them need the
#: archive of Spark's classes, which the first one makes while the others could only wait.
_FOLDERS = (
    *("integration", "pipeline", "faults", "process", "torture", "drift", "shapes", "consumers"),
    *("docs", "audit", "tui", "property", "cli", "unit"),
)
#: The longest files of a folder come first within it, for the same reason.
_LONG_FILES = frozenset(
    (
        *("test_coverage.py", "test_first_snapshot.py", "test_new_tables.py", "test_exactly_once.py"),
        *("test_demo_run.py", "test_toast_values.py", "test_encrypted.py"),
        *("test_wrong_services.py", "test_sandbox_artifacts.py", "test_http_server.py"),
        *("test_memory_of_values.py", "test_bounded_memory.py"),
        *("test_recording_nested.py", "test_compiled.py"),
    )
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collection, and exempt the remaining objects from later collections.

    Collection makes more than a million objects; scanning them repeatedly takes a third of its time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_CASES: Counter[tuple[Path, str]] = Counter()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the cases behind the first ``variants(number)`` of a test as long."""
    if (mark := item.get_closest_marker("variants")) is not None:
        test = item.path, item.name.partition("[")[0]
        _CASES[test] += 1
        if _CASES[test] > mark.args[0]:
            item.add_marker(pytest.mark.long)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by folder, with its longest files first, and leave the remaining order to pytest-randomly."""
    items.sort(key=lambda item: (_FOLDERS.index(item.path.parent.name), item.path.name not in _LONG_FILES))
