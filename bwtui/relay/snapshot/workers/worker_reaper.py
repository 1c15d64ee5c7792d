"""Wait for dismissed workers to end: what one of them sends late would follow newer rows of the stream."""

import time
from collections.abc import Callable

from bwtui.relay.run_state import RunState
from bwtui.relay.snapshot.workers.worker_handle import WorkerHandle

#: Time for workers to end before the wait is reported.
_REPORT_SECONDS = 10.0
#: Timeout of a relay that ends and waits for workers that it can't end itself.
_LAST_SECONDS = 3.0
_LOOK_SECONDS = 0.1


class WorkerReaper:
    """Tracks workers that may still send."""

    def __init__(self, report: RunState, pulse: Callable[[float], None]) -> None:
        """``pulse(seconds)`` waits, and raises to stop."""
        self._report = report
        self._pulse = pulse
        self._leaving: list[WorkerHandle] = []

    def add(self, member: WorkerHandle) -> None:
        """Add a worker that was killed."""
        self._leaving.append(member)

    def check(self) -> None:
        """Raise ConnectionFailed if it will never be known whether one of them has ended."""
        for member in self._still_running():
            if member.is_cut_off:
                raise member.unknown_end_error()

    def wait(self) -> None:
        """Wait until each is known to have ended.

        Raises the errors of `check` and ``pulse``; before that, workers that may still run are reported.
        """
        try:
            self._wait()
        except BaseException as error:
            self.report_running(error)
            raise

    def report_running(self, error: BaseException) -> None:
        """Give workers a moment to end, and report those that may still run; ``error`` ends the relay."""
        until = time.monotonic() + _LAST_SECONDS
        while self._still_running() and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        for member in self._leaving:
            error_of_worker = member.unknown_end_error()
            if str(error_of_worker) != str(error):
                self._report.error("worker", error_of_worker)

    def _still_running(self) -> list[WorkerHandle]:
        self._leaving = [member for member in self._leaving if not member.has_ended]
        return self._leaving

    def _wait(self) -> None:
        report_at = time.monotonic() + _REPORT_SECONDS
        self._report.account.turn_to("room")
        while self._still_running():
            names = ", ".join(member.name for member in self._leaving)
            self._report.detail = f"waiting for confirmation that {names} has ended"
            self.check()
            if time.monotonic() > report_at:
                report_at = float("inf")
                for member in self._leaving:
                    self._report.error("worker", member.awaited_end_error())
            self._pulse(_LOOK_SECONDS)
