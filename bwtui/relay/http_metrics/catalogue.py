"""Every metric that a relay exports, by its name: its kind, its labels, and its help.

docs/operate.md has the same as a table, which a test compares. Unknown values have no sample.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram", "info"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric; its name is the one used in PromQL."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    #: A counter of PostgreSQL, which continues across restarts of the relay, and restarts with the server.
    is_servers: bool = False

    @property
    def family(self) -> str:
        """The name without the suffix of its kind."""
        return self.name.removesuffix({"counter": "_total", "info": "_info"}.get(self.kind, ""))

    @property
    def unit(self) -> str:
        """The base unit in the name, or ""."""
        last = self.family.rpartition("_")[2]
        return last if last in ("seconds", "bytes", "ratio") else ""


def _gauge(name: str, help: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, "gauge", help, labels)


def _counter(name: str, help: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, "counter", help, labels)


_RELAY = (
    MetricSpec("bwtui_build_info", "info", "Version of bwtui and of Python.", ("version", "python")),
    MetricSpec(
        "bwtui_relay_info",
        "info",
        "The relay: its name, its slot, and where its ends are.",
        ("relay", "slot", "publication", "database", "broker", "registry", "server_version"),
    ),
    _gauge("bwtui_ready", "1 where /readyz says ready."),
    _gauge("bwtui_state", "1 for the state that the relay is in, as in status --json.", "state"),
    _gauge("bwtui_condition", "1 for the condition of its verdict.", "condition"),
    _gauge("bwtui_verdict", "1 for its verdict, as in status --json.", "verdict"),
    _gauge("bwtui_waiting_seconds", "For how long it has waited for what its verdict names.", "cause"),
    _gauge("bwtui_oldest_in_flight_seconds", "How long the oldest message waits for its acknowledgement."),
    _gauge("bwtui_main_thread_idle_seconds", "How long ago the main thread last turned."),
    _counter("bwtui_main_thread_seconds_total", "Where the time of the main thread went.", "activity"),
    _gauge("bwtui_resident_bytes", "Resident memory of the relay and of the workers of a snapshot."),
    _counter("bwtui_cpu_seconds_total", "Processor time of the relay and of the workers of a snapshot."),
    _gauge("bwtui_snapshot_workers", "Processes that take a snapshot at present."),
)
_SLOT = (
    _gauge("bwtui_wal_lag_bytes", "WAL that the server has written and the relay has not confirmed."),
    _gauge("bwtui_wal_lag_seconds", "For how long the oldest of that WAL has been there."),
    _gauge("bwtui_slot_look_age_seconds", "How old the figures of slot and lag are."),
    _gauge("bwtui_slot_retained_wal_bytes", "WAL that the slot keeps on the server."),
    _gauge("bwtui_slot_safe_wal_bytes", "WAL that may be written before the slot is in danger."),
    _gauge("bwtui_slot_runway_seconds", "How long that takes at the rate of the last minute."),
    _gauge("bwtui_slot_wal_status", "1 for the slot's wal_status.", "status"),
    MetricSpec(
        "bwtui_slot_spilled_bytes_total",
        "counter",
        "What the server spilled to disk while decoding the slot.",
        is_servers=True,
    ),
    _gauge("bwtui_lsn_bytes", "Positions in the WAL as bytes.", "position"),
)
_FLOW = (
    _counter("bwtui_transactions_total", "Transactions that were read."),
    _counter("bwtui_rows_read_total", "Rows that stream and snapshot brought."),
    _counter("bwtui_messages_encoded_total", "Messages of rows that were made."),
    _counter("bwtui_messages_produced_total", "Messages that were handed to the sink."),
    _counter("bwtui_messages_acknowledged_total", "Messages that the sink has answered for."),
    _gauge("bwtui_messages_in_flight", "Messages without an answer."),
    _gauge("bwtui_messages_in_flight_limit", "At so many the relay waits for room."),
    _gauge(
        "bwtui_stage_busy_ratio", "Share of its last seconds that went into, or waited for, a stage.", "stage"
    ),
    _counter("bwtui_stream_sessions_total", "How often the stream was opened."),
    MetricSpec(
        "bwtui_latency_seconds",
        "histogram",
        "From COMMIT in PostgreSQL to the acknowledgement; rows of a snapshot are not measured.",
    ),
    MetricSpec(
        "bwtui_stage_latency_seconds",
        "histogram",
        "The same by stage, each from the one before.",
        ("stage",),
    ),
)
_TROUBLE = (
    _counter("bwtui_errors_total", "Errors and notices, as the screen of errors has them.", "kind"),
    _gauge("bwtui_errors_open", "Troubles with a service that are not over."),
    _gauge("bwtui_tables_not_captured", "Tables of the selection that no publication has."),
    _gauge("bwtui_tables_not_proven", "Tables whose topic may differ from them."),
    _gauge("bwtui_table_not_proven", "1 for each of these tables, of 500 at most.", "table"),
    _gauge("bwtui_heal_due", "1 while topics may differ from tables, since the slot was lost."),
    _counter("bwtui_audits_total", "Audits of the tables that ended while the relay ran.", "verdict"),
    _gauge("bwtui_audit_last_timestamp_seconds", "When the last of them ended."),
)
_TABLES = (
    _gauge("bwtui_tables", "Tables that the relay knows."),
    _gauge("bwtui_tables_added_up", 'Those of them that table="(others)" adds up; see docs/operate.md.'),
    MetricSpec("bwtui_table_info", "info", "The topic of a table.", ("table", "topic")),
    _counter("bwtui_table_changes_total", "Rows of a table by what happened to them.", "table", "kind"),
    _counter("bwtui_table_messages_total", "Messages of a table.", "table"),
    _counter("bwtui_table_message_bytes_total", "Bytes of keys and values of these messages.", "table"),
    _counter("bwtui_table_errors_total", "Rows that could not be relayed.", "table"),
    _counter("bwtui_table_dead_letters_total", "Rows that were dropped into the dead letters.", "table"),
    _counter(
        "bwtui_table_toast_total", "Unchanged large values, by what became of them.", "table", "outcome"
    ),
    _gauge("bwtui_table_schema_id", "The id of the schema in use.", "table", "part"),
    _gauge("bwtui_table_snapshot_rows", "Rows of a table's snapshot so far.", "table"),
    _gauge("bwtui_table_snapshot_estimate_rows", "PostgreSQL's estimate of all of them.", "table"),
    _gauge("bwtui_schemas", "Schemas that the relay has registered or looked up, by part.", "part"),
)
_ROWS_AGAIN = (
    _gauge("bwtui_snapshot_tables", "Tables of a first snapshot by how far they are.", "state"),
    _gauge("bwtui_first_snapshot_tables", "Tables of a first snapshot by chunks that is not through."),
    _gauge("bwtui_first_snapshot_done_tables", "Those of them that are through."),
    _gauge(
        "bwtui_backfills",
        "Requests for rows of a table: by snapshot, heal, repair and the like.",
        "reason",
        "state",
    ),
    _gauge("bwtui_backfill_rows", "Rows and tombstones sent for requests that are not over.", "reason"),
    _gauge("bwtui_backfill_estimate_rows", "Of about so many, as far as that is known.", "reason"),
)
_BESIDE = (
    _gauge("bwtui_recording_state", "1 for the state of the recording.", "state"),
    _gauge("bwtui_recording_size_bytes", "Bytes that the recording has grown to."),
    _gauge("bwtui_recording_segments", "Its files."),
    _gauge("bwtui_recording_free_bytes", "Free space on its disk."),
    _gauge("bwtui_recording_runway_seconds", "Until that disk is full at the present rate."),
    _counter("bwtui_kafka_transactions_total", "Kafka transactions committed, with --exactly-once."),
    _gauge("bwtui_kafka_commit_p50_seconds", "What half of the last commits took at most."),
    _gauge("bwtui_kafka_commit_p99_seconds", "What 99 % of the last commits took at most."),
)

METRICS = (*_RELAY, *_SLOT, *_FLOW, *_TROUBLE, *_TABLES, *_ROWS_AGAIN, *_BESIDE)
BY_NAME = {metric.name: metric for metric in METRICS}
