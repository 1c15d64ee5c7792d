"""The sink of ``bwtui record``: what is in the recording is all that there is, so it is delivered at once."""

import time
from collections.abc import Sequence

from bwtui.model.delivery import Receipt, Span
from bwtui.settings import RelaySettings
from bwtui.sink.base import DeliveryFailure, MessageTuple, Sink
from bwtui.sink.destination import Destination, Precondition, Service


def open_destination(settings: RelaySettings) -> Destination:
    """Open nothing; schemas get ids of the recording's own."""
    from bwtui.encode.local_registry import LocalRegistry

    return Destination(NoSink(), LocalRegistry())


def open_service(settings: RelaySettings) -> tuple[Sink, Service]:
    """Open nothing."""
    return NoSink(), Service()


def preconditions(settings: RelaySettings) -> Sequence[Precondition]:
    """Nothing is needed."""
    return ()


class NoSink:
    """Sends nothing anywhere; see `bwtui.sink.base.Sink`."""

    def __init__(self) -> None:
        self._taken = 0

    def send(
        self, topic: str, messages: Sequence[MessageTuple], span: Span, receipt: Receipt | None = None
    ) -> None:
        """The recording has them already, and its own fsync holds the confirmed LSN back."""
        self._taken += len(messages)

    def poll(self, timeout: float) -> None:
        """Nothing will come; what else runs gets its time meanwhile."""
        time.sleep(timeout)

    def flush(self, timeout: float) -> bool:
        """Nothing is ever under way."""
        return True

    def take_failures(self) -> list[DeliveryFailure]:
        """Nothing fails."""
        return []

    def queued(self) -> int:
        """Nothing is queued."""
        return 0

    def answered(self) -> int:
        """All of it, at once."""
        return self._taken

    def discard(self, *, in_order: bool) -> None:
        """Nothing is in flight."""
