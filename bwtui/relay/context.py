"""The objects that the phases of a relay share."""

from dataclasses import dataclass, field

from bwtui.relay.backfill.chunk_window import SentTransactions
from bwtui.relay.exactly_once.position_store import KafkaTransactions
from bwtui.relay.healing.coverage_ledger import Coverage
from bwtui.relay.healing.late_records import LateRecords
from bwtui.relay.healing.promotion import FailoverSlot, OrphanedKeys
from bwtui.relay.routes.routing import Router
from bwtui.relay.run_context import RowOutput, RunContext
from bwtui.relay.service_retry import ServiceRetry
from bwtui.relay.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.toast import ToastFiller
from bwtui.sink.destination import Destination

#: Error dependency for rows that Kafka refused: over once the careful re-read has passed them; see
#: `bwtui.relay.run_state.RunState.recovered`.
REFUSED = "what Kafka refused"


@dataclass(slots=True)
class RelayServices:
    """The services that a relay calls, and what is read from them."""

    destination: Destination
    patience: ServiceRetry
    router: Router
    toast: ToastFiller


@dataclass(slots=True)
class SlotHistory:
    """What was sent from the slot, and which of it is proven to be right."""

    checkpoint: SlotCheckpointStore
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


@dataclass(slots=True)
class RelayContext:
    """The objects that the phases of one run share; created once."""

    run: RunContext
    output: RowOutput
    services: RelayServices
    history: SlotHistory

    def wait(self, seconds: float) -> None:
        """Wait, and process deliveries meanwhile. Raises StopRequested."""
        self.run.report.wait(self.output.sink, seconds, self.run.stop_requested)
