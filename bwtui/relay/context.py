"""The objects that the phases of a relay share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from bwtui.relay.backfill.chunk_window import SentTransactions
from bwtui.relay.exactly_once.position_store import KafkaTransactions
from bwtui.relay.healing.coverage_ledger import Coverage
from bwtui.relay.healing.late_records import LateRecords
from bwtui.relay.healing.promotion import FailoverSlot, OrphanedKeys
from bwtui.relay.policy import RowPolicy
from bwtui.relay.recorder import NullRecorder, Recorder
from bwtui.relay.routes.routing import Router
from bwtui.relay.run_state import RunState
from bwtui.relay.samples import Samples
from bwtui.relay.service_retry import ServiceRetry
from bwtui.relay.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.toast import ToastFiller
from bwtui.settings import RelaySettings
from bwtui.sink.destination import Destination, Sink, SinkService

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
    recorder: Recorder = field(default_factory=NullRecorder)
    transactions: KafkaTransactions = field(default_factory=KafkaTransactions)
    #: Finds the keys in Kafka that a promoted standby lacks.
    orphaned_keys: OrphanedKeys | None = None
    #: Finds records that this run did not send.
    late: LateRecords | None = None
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
