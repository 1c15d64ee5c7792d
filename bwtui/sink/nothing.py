"""The sink of ``bwtui record``: the recording is the only output, so everything is delivered at once."""

import time
from collections.abc import Sequence

from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.settings import RelaySettings
from bwtui.sink.destination import (
    DeliveryFailure,
    Destination,
    Limits,
    MessageTuple,
    Precondition,
    Sink,
    SinkService,
)


def open_destination(settings: RelaySettings) -> Destination:
    """Open nothing; the recording assigns its own schema IDs."""
    from bwtui.encode.registry import LocalRegistry

    return Destination(NoSink(), LocalRegistry())


def open_service(settings: RelaySettings) -> tuple[Sink, SinkService]:
    return NoSink(), SinkService()


def preconditions(settings: RelaySettings) -> Sequence[Precondition]:
    return ()


def present_limits(settings: RelaySettings, topics: Sequence[str]) -> Limits:
    return {}


class NoSink:
    """Sends nothing anywhere; see `bwtui.sink.destination.Sink`."""

    def __init__(self) -> None:
        self._taken = 0

    def send(
        self, topic: str, messages: Sequence[MessageTuple], span: DeliverySpan, receipt: Receipt | None = None
    ) -> None:
        """Count the messages; the recording has them already, and its own fsync holds the confirmed LSN
        back.
        """
        self._taken += len(messages)

    def poll(self, timeout: float) -> None:
        """Sleep, which gives other threads their time."""
        time.sleep(timeout)

    def flush(self, timeout: float) -> bool:
        return True

    def take_failures(self) -> list[DeliveryFailure]:
        return []

    def queued(self) -> int:
        return 0

    def answered(self) -> int:
        return self._taken

    def discard(self, *, in_order: bool) -> None:
        pass
