"""The objects that the phases of a relay share."""

from dataclasses import dataclass, field

from bwtui.relay.exactly_once.position_store import KafkaTransactions
from bwtui.relay.history.coverage_ledger import Coverage
from bwtui.relay.history.late_records import LateRecords
from bwtui.relay.history.promotion import FailoverSlot, OrphanedKeys
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.routes.routing import Router
from bwtui.relay.rows.chunk_window import SentTransactions
from bwtui.relay.rows.run_context import RowOutput, RunContext
from bwtui.relay.rows.toast import ToastFiller
from bwtui.relay.state.service_retry import ServiceRetry
from bwtui.sink.destination import Destination

#: Error dependency for rows that Kafka refused: over once the careful re-read has passed them; see
#: `bwtui.relay.state.run_state.RunState.recovered`.
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
