"""What a worker of pytest-xdist that crashed leaves, its successor runs, but for the test that crashed it.

pytest-xdist 3.8 hands over the files that were done as well, one at a time: the successor gets one in which
nothing is left to do, says nothing, and waits for ever, and the whole run with it. And the test itself would
be run again, though it counts as failed already, and take the successor down too.
"""

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]


class LeftOverScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Schedules whole files, as pytest-xdist does, until a worker crashes."""

    def remove_node(self, node: Any) -> str | None:
        """Put what ``node`` leaves in front of the line, and return the test that it crashed in, if any."""
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
        """Return the tests that nobody has run."""
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
    """Leave other ways than ``--dist loadfile`` to pytest-xdist."""
    return LeftOverScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """What was not run, as too many workers crashed, is what ``--last-failed`` runs, as if it had failed."""
    plugins = session.config.pluginmanager
    running, failed = plugins.get_plugin("dsession"), plugins.get_plugin("lfplugin")
    scheduling = getattr(running, "sched", None)
    if failed is not None and isinstance(scheduling, LeftOverScheduling):
        failed.lastfailed.update(dict.fromkeys(scheduling.left(), True))
