"""The objects that the phases of a relay share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from bwtui.relay.backfill.sent_transactions import SentTransactions
from bwtui.relay.coverage.ledger import Coverage
from bwtui.relay.divergence.late_records import LateRecords
from bwtui.relay.divergence.orphaned_keys import OrphanedKeys
from bwtui.relay.exactly_once.position_store import PositionStore
from bwtui.relay.policy import RowPolicy
from bwtui.relay.promotion.failover_slot import FailoverSlot
from bwtui.relay.recording.recorder import Recorder
from bwtui.relay.routes.routing import Router
from bwtui.relay.run_state import RunState
from bwtui.relay.samples import Samples
from bwtui.relay.service_retry import ServiceRetry
from bwtui.relay.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.suspension import SuspensionDetector
from bwtui.relay.toast import ToastFiller
from bwtui.settings import RelaySettings
from bwtui.sink.base import Sink
from bwtui.sink.destination import Destination, SinkService

#: Error dependency for rows that Kafka refused: over once the careful re-read has passed them; see
#: `bwtui.relay.run_state.RunState.recovered`.
REFUSED = "what Kafka refused"


@dataclass(slots=True)
class RelayContext:
    """The objects that the phases of one run share; created once."""

    settings: RelaySettings
    report: RunState
    destination: Destination
    patience: ServiceRetry
    router: Router
    policy: RowPolicy
    toast: ToastFiller
    samples: Samples
    checkpoint: SlotCheckpointStore
    stop_requested: Callable[[], bool]
    #: Identifies this run in the headers of its messages.
    session: bytes
    recorder: Recorder | None = None
    #: Set with --exactly-once.
    position_store: PositionStore | None = None
    #: Finds the keys in Kafka that a promoted standby lacks.
    orphaned_keys: OrphanedKeys | None = None
    #: Set without --exactly-once: finds records that a killed relay or worker had sent.
    late: LateRecords | None = None
    #: Set while the relay streams.
    suspension: SuspensionDetector | None = None
    #: Which tables are proven to match their topics.
    coverage: Coverage = field(default_factory=Coverage)
    #: Which transactions were sent.
    streamed: SentTransactions = field(default_factory=SentTransactions)
    #: Makes the slot a failover slot, which standbys synchronize.
    failover_slot: FailoverSlot = field(default_factory=FailoverSlot)

    @property
    def sink(self) -> Sink:
        """The sink that messages go to."""
        return self.destination.sink

    @property
    def service(self) -> SinkService:
        """The service that the sink sends to."""
        return self.destination.service

    def wait(self, seconds: float) -> None:
        """Wait, and process deliveries meanwhile. Raises StopRequested."""
        self.report.wait(self.sink, seconds, self.stop_requested)
