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
        "The relay's name, its slot and its endpoints.",
        ("relay", "slot", "publication", "database", "broker", "registry", "server_version"),
    ),
    _gauge("bwtui_ready", "1 if /readyz reports ready."),
    _gauge("bwtui_state", "1 for the relay's current state, as in status --json.", "state"),
    _gauge("bwtui_condition", "1 for the condition of the relay's current verdict.", "condition"),
    _gauge("bwtui_verdict", "1 for the relay's current verdict, as in status --json.", "verdict"),
    _gauge(
        "bwtui_waiting_seconds",
        "Time that the relay has been blocked on the dependency that its verdict names.",
        "cause",
    ),
    _gauge("bwtui_oldest_in_flight_seconds", "Age of the oldest message without an acknowledgement."),
    _gauge("bwtui_main_thread_idle_seconds", "Time since the main thread last made progress."),
    _counter("bwtui_main_thread_seconds_total", "Time of the main thread by activity.", "activity"),
    _gauge("bwtui_resident_bytes", "Resident memory of the relay and of its snapshot workers."),
    _counter("bwtui_cpu_seconds_total", "CPU time of the relay and of its snapshot workers."),
    _gauge("bwtui_snapshot_workers", "Processes that are taking a snapshot."),
)
_SLOT = (
    _gauge("bwtui_wal_lag_bytes", "WAL that the server has written and the relay has not confirmed."),
    _gauge("bwtui_wal_lag_seconds", "Age of the oldest unconfirmed WAL."),
    _gauge("bwtui_slot_look_age_seconds", "Age of the figures on the slot and its lag."),
    _gauge("bwtui_slot_retained_wal_bytes", "WAL that the slot retains on the server."),
    _gauge("bwtui_slot_safe_wal_bytes", "WAL that can be written before the slot is in danger."),
    _gauge(
        "bwtui_slot_runway_seconds", "Time until the slot is in danger at the WAL rate of the last minute."
    ),
    _gauge("bwtui_slot_wal_status", "1 for the slot's current wal_status.", "status"),
    MetricSpec(
        "bwtui_slot_spilled_bytes_total",
        "counter",
        "Bytes that the server spilled to disk while decoding for the slot.",
        is_servers=True,
    ),
    _gauge("bwtui_lsn_bytes", "Positions in the WAL as bytes.", "position"),
)
_FLOW = (
    _counter("bwtui_transactions_total", "Transactions read from the stream."),
    _counter("bwtui_rows_read_total", "Rows read from the stream and in snapshots."),
    _counter("bwtui_messages_encoded_total", "Messages encoded from rows."),
    _counter("bwtui_messages_produced_total", "Messages handed to the sink."),
    _counter("bwtui_messages_acknowledged_total", "Messages that the sink has acknowledged or rejected."),
    _gauge("bwtui_messages_in_flight", "Messages in flight."),
    _gauge("bwtui_messages_in_flight_limit", "Maximum number of messages in flight."),
    _gauge(
        "bwtui_stage_busy_ratio",
        "Share of the last seconds that the relay spent in, or waiting for, a stage.",
        "stage",
    ),
    _counter("bwtui_stream_sessions_total", "Number of times that the stream was opened."),
    MetricSpec(
        "bwtui_latency_seconds",
        "histogram",
        "Time from COMMIT in PostgreSQL to the acknowledgement; rows of a snapshot are not measured.",
    ),
    MetricSpec(
        "bwtui_stage_latency_seconds",
        "histogram",
        "The same time by stage, each counted from the previous one.",
        ("stage",),
    ),
)
_TROUBLE = (
    _counter("bwtui_errors_total", "Errors and notices, as on the Errors screen.", "kind"),
    _gauge("bwtui_errors_open", "Unresolved problems with a service."),
    _gauge("bwtui_tables_not_captured", "Selected tables that are in no publication."),
    _gauge("bwtui_tables_not_proven", "Tables that are not proven: their topics may differ from them."),
    _gauge("bwtui_table_not_proven", "1 for each table that is not proven, up to 500 tables.", "table"),
    _gauge("bwtui_heal_due", "1 while topics may differ from tables because the slot was lost."),
    _counter("bwtui_audits_total", "Audits of the tables that ended while the relay was running.", "verdict"),
    _gauge("bwtui_audit_last_timestamp_seconds", "Time when the last audit ended."),
)
_TABLES = (
    _gauge("bwtui_tables", "Tables in the relay's status."),
    _gauge("bwtui_tables_added_up", 'Tables that are summed up as table="(others)"; see docs/operate.md.'),
    MetricSpec("bwtui_table_info", "info", "The topic of a table.", ("table", "topic")),
    _counter("bwtui_table_changes_total", "Rows of a table by kind of change.", "table", "kind"),
    _counter("bwtui_table_messages_total", "Messages of a table.", "table"),
    _counter(
        "bwtui_table_message_bytes_total", "Bytes of the keys and values of a table's messages.", "table"
    ),
    _counter("bwtui_table_errors_total", "Rows that could not be relayed.", "table"),
    _counter("bwtui_table_dead_letters_total", "Rows that were dropped and stored as dead letters.", "table"),
    _counter("bwtui_table_toast_total", "Unchanged TOAST values by outcome.", "table", "outcome"),
    _gauge("bwtui_table_schema_id", "The id of the schema in use.", "table", "part"),
    _gauge("bwtui_table_snapshot_rows", "Rows of a table's snapshot that were read so far.", "table"),
    _gauge(
        "bwtui_table_snapshot_estimate_rows",
        "PostgreSQL's estimate of the rows in a table's snapshot.",
        "table",
    ),
    _gauge("bwtui_schemas", "Schemas that the relay has registered or looked up, by part.", "part"),
)
_ROWS_AGAIN = (
    _gauge("bwtui_snapshot_tables", "Tables of a first snapshot by state.", "state"),
    _gauge("bwtui_first_snapshot_tables", "Tables of an unfinished first snapshot by chunks."),
    _gauge("bwtui_first_snapshot_done_tables", "Completed tables of an unfinished first snapshot by chunks."),
    _gauge(
        "bwtui_backfills",
        "Requests for rows of a table: by snapshot, heal, repair and the like.",
        "reason",
        "state",
    ),
    _gauge("bwtui_backfill_rows", "Rows and tombstones sent for unfinished requests.", "reason"),
    _gauge(
        "bwtui_backfill_estimate_rows",
        "Estimated number of rows of unfinished requests, where known.",
        "reason",
    ),
)
_BESIDE = (
    _gauge("bwtui_recording_state", "1 for the current state of the recording.", "state"),
    _gauge("bwtui_recording_size_bytes", "Size of the recording."),
    _gauge("bwtui_recording_segments", "Number of the recording's files."),
    _gauge("bwtui_recording_free_bytes", "Free space on the recording's disk."),
    _gauge("bwtui_recording_runway_seconds", "Time until the recording's disk is full at the current rate."),
    _counter("bwtui_kafka_transactions_total", "Kafka transactions committed, with --exactly-once."),
    _gauge("bwtui_kafka_commit_p50_seconds", "Median duration of the last commits of Kafka transactions."),
    _gauge(
        "bwtui_kafka_commit_p99_seconds",
        "99th percentile of the duration of the last commits of Kafka transactions.",
    ),
)

METRICS = (*_RELAY, *_SLOT, *_FLOW, *_TROUBLE, *_TABLES, *_ROWS_AGAIN, *_BESIDE)
BY_NAME = {metric.name: metric for metric in METRICS}
