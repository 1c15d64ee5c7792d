"""After a worker of pytest-xdist crashes, run its remaining tests, but not the one that crashed it.

pytest-xdist 3.8 also reassigns finished files, one at a time: the next worker gets a file without remaining
tests, reports nothing and waits forever, and so does the whole run. It would also repeat the test that
crashed, though that already counts as failed, and crash the next worker too.
"""

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]


class LeftOverScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Schedules whole files, as pytest-xdist does, until a worker crashes."""

    def remove_node(self, node: Any) -> str | None:
        """Requeue the remaining tests of ``node`` first, and return the test that crashed it, if any."""
        files = self.assigned_work.pop(node)
        left = [
            (file, test) for file, tests in files.items() for test, is_done in tests.items() if not is_done
        ]
        for file in reversed(dict.fromkeys(file for file, _ in left[1:])):
            self.workqueue[file] = {test: False for of, test in left[1:] if of == file}
            self.workqueue.move_to_end(file, last=False)
        for other in self.nodes:
            self._reschedule(other)
        return left[0][1] if left else None

    def left(self) -> list[str]:
        """Return the tests that have not run."""
        files = [self.workqueue, *self.assigned_work.values()]
        return [
            test
            for part in files
            for tests in part.values()
            for test, is_done in tests.items()
            if not is_done
        ]

    def schedule(self) -> None:
        """Give the workers work. Each begins a test only when it knows the next, or that there is none."""
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Handle ``--dist loadfile`` only; leave the other modes to pytest-xdist."""
    return LeftOverScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let ``--last-failed`` run the tests that did not run because too many workers crashed."""
    plugins = session.config.pluginmanager
    running, failed = plugins.get_plugin("dsession"), plugins.get_plugin("lfplugin")
    scheduling = getattr(running, "sched", None)
    if failed is not None and isinstance(scheduling, LeftOverScheduling):
        failed.lastfailed.update(dict.fromkeys(scheduling.left(), True))
