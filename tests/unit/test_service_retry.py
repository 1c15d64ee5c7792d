"""Unavailable services, and the errors that the relay reports for them."""

import pytest

from bwtui.errors import ConnectionFailed
from bwtui.relay.state.run_state import RunState
from bwtui.relay.state.service_retry import ServiceRetry
from bwtui.source.raw_stream import StreamServer

REGISTRY = "the schema registry"


class Broken(Exception):
    """Ends the wait: a stop, or a broken stream."""


def away() -> int:
    raise ConnectionFailed("the registry refuses connections", "start it")


def test_a_wait_that_is_broken_off_leaves_nothing_behind() -> None:
    report = RunState()
    report.detail = "streaming"
    waits = 0

    def pulse(seconds: float) -> None:
        nonlocal waits
        if report.is_out(REGISTRY):
            waits += 1
            raise Broken

    patience = ServiceRetry(StreamServer(""), report, pulse)
    before = report.clock.current[0]
    with pytest.raises(Broken):
        patience.call(REGISTRY, away)
    assert waits == 1
    assert (report.clock.current[0], report.detail) == (before, "streaming")
    assert report.is_out(REGISTRY), "it has not answered yet"
    assert patience.call(REGISTRY, lambda: 1) == 1
    assert not report.is_out(REGISTRY)
    assert [entry.is_over for entry in report.errors()] == [True]
    patience.close()
