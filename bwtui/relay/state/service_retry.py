"""Calls to services alongside the stream, which wait for those that are unavailable."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from bwtui.blocking import BlockingCalls
from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.relay.state.activity_clock import Activity
from bwtui.relay.state.run_state import RunState
from bwtui.source.connection import Connection
from bwtui.source.present_rows import QueryPool
from bwtui.source.raw_stream import ReachedServer, StreamServer

_WAIT_FIRST, _WAIT_LAST = 0.2, 5.0
#: The main thread's activity while each service is called; all other services belong to the sink.
_ACTIVITIES: dict[str, Activity] = {"PostgreSQL": "catalog", "the schema registry": "registry"}

T = TypeVar("T")


class ServiceRetry:
    """Retries calls to services until there is an answer."""

    def __init__(self, server: StreamServer, report: RunState, pulse: Callable[[float], None]) -> None:
        """``pulse(seconds)`` waits that long, keeps the stream alive, and raises to stop the relay."""
        #: The PostgreSQL server that queries go to.
        self.server = server
        self._report = report
        self._pulse = pulse
        self._queries = QueryPool(server)
        #: Services that were reported as unavailable, and have not answered since.
        self._away: set[str] = set()
        self.calls = BlockingCalls(pulse)

    def call(self, service: str, call: Callable[[], T]) -> T:
        """Make the blocking ``call`` until it does not raise ConnectionFailed; see `call_all`."""
        answer = self.call_all(service, [call])[0]
        if isinstance(answer, BwtuiError):
            raise answer
        return answer

    def query(self, query: Callable[[Connection], T]) -> T:
        """Query PostgreSQL, and wait while it is unavailable. Raises RefusedError."""
        return self.call("PostgreSQL", lambda: self._queries.run(query))

    def query_ahead(self, query: Callable[[Connection], T]) -> Callable[[], T | None]:
        """Start a PostgreSQL query; return a function that waits for its answer, or for None if it failed.

        After None, repeat the query through `query`, which raises the reason.
        """
        future = self.calls.begin(lambda: self._queries.run(query))

        def answer() -> T | None:
            has_answer = self.call("PostgreSQL", lambda: future.exception() is None)
            return future.result() if has_answer else None

        return answer

    def call_all(self, service: str, calls: Sequence[Callable[[], T]]) -> list[T | BwtuiError]:
        """Make blocking calls in parallel, each until it does not raise ConnectionFailed.

        Report that the relay waits for ``service``. Return the answer to each call, or the BwtuiError that it
        raised instead.
        """
        before = self._report.detail
        clock = self._report.clock
        at = clock.turn_to(_ACTIVITIES.get(service, "topics"))
        try:
            return self._answers(service, calls)
        finally:
            # Also after an exception of the pulse, which ends the wait as well.
            clock.turn_to(at)
            self._report.detail = before

    def _answers(self, service: str, calls: Sequence[Callable[[], T]]) -> list[T | BwtuiError]:
        pause = _WAIT_FIRST
        answers: dict[int, T | BwtuiError] = {}
        while len(answers) < len(calls):
            unanswered = [index for index in range(len(calls)) if index not in answers]
            away = None
            for index, future in zip(
                unanswered, self.calls.make_all([self._noted(calls[i]) for i in unanswered]), strict=True
            ):
                try:
                    answers[index] = future.result()
                except ConnectionFailed as error:
                    away = error
                except BwtuiError as error:
                    answers[index] = error
            if away is not None:
                self._report.detail = f"waiting for {service}: {away.message}"
                self._report.error("outage", away, dependency=service)
                self._away.add(service)
                self._wait(pause)
                pause = min(pause * 2, _WAIT_LAST)
            elif service in self._away:
                # Also if an earlier wait for it was interrupted.
                self._away.discard(service)
                self._report.recovered(service)
        return [answers[index] for index in range(len(calls))]

    def _noted(self, call: Callable[[], T]) -> Callable[[], T]:
        """Return ``call``, recording that it was answered: a series of answered calls is not a stall."""

        def noted() -> T:
            answer = call()
            self._report.clock.answered()
            return answer

        return noted

    def begin_session(self, reached: ReachedServer) -> None:
        """Send queries to ``reached``, in new sessions, from now on."""
        self.server.follow(reached)
        self._queries.renew()

    def close(self) -> None:
        """Release helper threads and sessions; those in use end on their own."""
        self.calls.close()
        self._queries.close()

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (remaining := until - time.monotonic()) > 0:
            self._pulse(min(remaining, 0.5))
