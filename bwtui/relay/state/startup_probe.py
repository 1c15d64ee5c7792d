"""Calls to services before there is a stream to keep alive; they may wait for unavailable services."""

import time
from collections.abc import Callable
from typing import TypeVar

from bwtui.blocking import BlockingCalls, check_stop
from bwtui.errors import AuthenticationFailed, ConnectionFailed, PositionHidden
from bwtui.relay.state.activity_clock import Activity
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.sink.destination import Destination

_WAIT_FIRST, _WAIT_LAST, _LOOK_SECONDS = 0.2, 5.0, 0.1
#: The service that each activity calls.
_SERVICES: dict[Activity, str] = {
    "connect": "PostgreSQL",
    "topics": "Kafka",
    "registry": "the schema registry",
}

T = TypeVar("T")


class StartupProbe:
    """Calls each service, at start or again, while the main thread checks whether to stop."""

    def __init__(self, settings: RelaySettings, report: RunState, stopping: Callable[[], bool]) -> None:
        self._waits = settings.wait_for_services
        self._needs_registry = settings.output_format == "avro"
        self._report = report
        self._stopping = stopping

    def call(self, activity: Activity, call: Callable[[], T]) -> T:
        """Return the answer of the service of ``activity`` to the blocking ``call``.

        With --wait-for-services the call is retried until the service is available. Raises ConnectionFailed
        without that option, and if authentication failed; StopRequested; and any other error of the call. A
        hidden position is waited for in any case, because the transaction that hides it will end.
        """
        report, service = self._report, _SERVICES[activity]
        before, detail = report.clock.turn_to(activity), report.detail
        calls = BlockingCalls(lambda _: check_stop(self._stopping))
        pause = _WAIT_FIRST
        try:
            while True:
                try:
                    answer = calls.make(call)
                except ConnectionFailed as error:
                    is_passing = self._waits or isinstance(error, PositionHidden)
                    if not is_passing or isinstance(error, AuthenticationFailed):
                        raise
                    report.detail = f"waiting for {service}: {error.message}"
                    report.error("outage", error, dependency=service)
                    self._wait(pause)
                    pause = min(pause * 2, _WAIT_LAST)
                else:
                    report.recovered(service)
                    return answer
        finally:
            report.clock.turn_to(before)
            report.detail = detail
            calls.close()

    def cluster(self, destination: Destination) -> str:
        """Return the identity of the cluster behind ``destination``, after checking its registry as well."""
        cluster = self.call("topics", destination.service.check)
        if self._needs_registry:
            self.call("registry", destination.registry.check)
        return cluster

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (remaining := until - time.monotonic()) > 0:
            check_stop(self._stopping)
            time.sleep(min(remaining, _LOOK_SECONDS))
