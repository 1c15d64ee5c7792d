"""The objects that the phases of a relay share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from bwtui.relay.backfill.streamed import Streamed
from bwtui.relay.coverage.ledger import Coverage
from bwtui.relay.diverged.late import LateRecords
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
from bwtui.sink.base import Sink
from bwtui.sink.destination import Destination, Service

#: Error dependency for rows that Kafka refused: over once the careful re-read has passed them; see
#: `bwtui.relay.report.Report.recovered`.
REFUSED = "what Kafka refused"


@dataclass(slots=True)
class RelayContext:
    """The objects that the phases of one run share; created once."""

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
    #: Set with --exactly-once.
    exactly: Exactly | None = None
    #: Finds the keys in Kafka that a promoted standby lacks.
    naming: Naming | None = None
    #: Set without --exactly-once: finds records that a killed relay or worker had sent.
    late: LateRecords | None = None
    #: Set while the relay streams.
    suspension: Suspension | None = None
    #: Which tables are proven to match their topics.
    coverage: Coverage = field(default_factory=Coverage)
    #: Which transactions were sent.
    streamed: Streamed = field(default_factory=Streamed)
    #: Makes the slot a failover slot, which standbys synchronize.
    failover_slot: FailoverSlot = field(default_factory=FailoverSlot)

    @property
    def sink(self) -> Sink:
        """The sink that messages go to."""
        return self.destination.sink

    @property
    def service(self) -> Service:
        """The service that the sink sends to."""
        return self.destination.service

    def wait(self, seconds: float) -> None:
        """Wait, and process deliveries meanwhile. Raises StopRequested."""
        self.report.wait(self.sink, seconds, self.stop_requested)
