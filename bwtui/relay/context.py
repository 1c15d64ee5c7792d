"""What the phases of a relay share, and the signals by which one phase hands over to the engine."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bwtui.relay.backfill.streamed import Streamed
from bwtui.relay.diverged.naming import Naming
from bwtui.relay.exactly.known import Exactly
from bwtui.relay.memory import SlotMemory
from bwtui.relay.patience import Patience
from bwtui.relay.policy import RowPolicy
from bwtui.relay.promotion.failover_slot import FailoverSlot
from bwtui.relay.recording.recorder import Recorder
from bwtui.relay.report import Report
from bwtui.relay.routes.routing import Router
from bwtui.relay.samples import Samples
from bwtui.relay.suspension import Suspension
from bwtui.relay.toast import ToastFill
from bwtui.settings import RelaySettings
from bwtui.sink.base import DeliveryFailure, Sink
from bwtui.sink.destination import Destination

#: What is read again with care is over when it has got through; see `bwtui.relay.report.Report.recovered`.
REFUSED = "what Kafka refused"


class StopRequested(Exception):
    """Somebody asked the relay to stop; raised where it waits."""


def check_stop(requested: Callable[[], bool]) -> None:
    """Raise StopRequested if a stop was ``requested``."""
    if requested():
        raise StopRequested


class Redrive(Exception):
    """Messages were not delivered: read again from the last confirmed LSN, one batch at a time.

    A failed delivery takes its neighbours with it, and later rows of a key may already be in Kafka. Sending
    the failed message again would put it after them; reading all of it again keeps every key's order.
    """

    def __init__(self, failures: list[DeliveryFailure]) -> None:
        super().__init__(failures[0].reason)
        #: A message's own failure outweighs an outage that took its neighbours.
        self.failure = min(failures, key=lambda failure: failure.is_outage)


@dataclass(slots=True)
class RelayContext:
    """What the phases of one run share; made once."""

    settings: RelaySettings
    report: Report
    destination: Destination
    patience: Patience
    router: Router
    policy: RowPolicy
    toast: ToastFill
    samples: Samples
    memory: SlotMemory
    stop_requested: Callable[[], bool]
    #: Identifies this run in the headers of its messages.
    session: bytes
    recorder: Recorder | None = None
    #: With --exactly-once.
    exactly: Exactly | None = None
    #: Names what a promoted standby lacks.
    naming: Naming | None = None
    #: While the relay streams.
    suspension: Suspension | None = None
    #: Which transactions were sent.
    streamed: Streamed = field(default_factory=Streamed)
    #: Has standbys take the slot along.
    failover_slot: FailoverSlot = field(default_factory=FailoverSlot)

    @property
    def sink(self) -> Sink:
        """Where messages go."""
        return self.destination.sink

    def wait(self, seconds: float) -> None:
        """Wait, and take deliveries meanwhile. Raises StopRequested."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.sink.poll(0.1)
            self.report.take_deliveries(self.sink)
            check_stop(self.stop_requested)
