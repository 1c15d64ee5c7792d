"""Reading waits until there is room: sessions that are cut off again and again must not add up."""

from collections.abc import Iterator
from typing import Any, cast

from bwtui.relay.ack import Acknowledgements, Span
from bwtui.relay.batch import IN_FLIGHT_BYTES
from bwtui.relay.parts import Parts
from bwtui.relay.report import Report
from bwtui.relay.samples import Samples
from bwtui.relay.streaming import Streaming
from bwtui.settings import RelaySettings
from tests.faults.doubles import HoldResponse


class Unread:
    """A stream of which nothing may be read."""

    warning = ""

    def read(self) -> None:
        """Nobody may."""
        raise AssertionError("a batch was read though there is no room for it")

    def send_status(self, lsn: int) -> None:
        """The server is told as ever."""

    def end(self) -> None:
        """It ends in order."""


def test_a_session_reads_nothing_while_an_earlier_one_has_too_much_under_way() -> None:
    span = Span()
    span.pending, span.size = 1, IN_FLIGHT_BYTES + 1
    acks = Acknowledgements()
    acks.seal(span)
    acks.begin(0)
    stops = chain_of(False, False, False, then=True)
    parts = Parts(
        settings=RelaySettings(),
        report=Report(),
        sink=HoldResponse(),
        router=cast(Any, None),
        policy=cast(Any, Passing()),
        toast=cast(Any, None),
        samples=Samples(),
        memory=cast(Any, None),
        stop_requested=lambda: next(stops),
        session=b"",
    )
    Streaming(parts, cast(Any, Unread()), acks, None).run()
    assert acks.bytes_in_flight == IN_FLIGHT_BYTES + 1


class Passing:
    """A policy that has nothing to do."""

    def undelivered(self, failures: list[object]) -> list[object]:
        """Return them all."""
        return failures


def chain_of(*first: bool, then: bool) -> Iterator[bool]:
    """Yield ``first``, and ``then`` for ever."""
    yield from first
    while True:
        yield then
