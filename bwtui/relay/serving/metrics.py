"""The metrics of a relay for Prometheus and others, in OpenMetrics or in the older text format.

`METRICS` has every metric with its kind, its labels and its help. docs/operate.md names each with its labels,
which a test compares. Unknown values have no sample. The number of label values is bounded: labels are
tables, states, kinds and the like, and never a key, a value, or the text of an error. A limited number of
tables have their own series, and the others are summed up: a scrape costs 0.2 ms of CPU per table, in the
relay's own process, and 16 series per table in Prometheus.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.exposition import generate_latest as as_text
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics

from bwtui import __version__
from bwtui.escaping import escape, is_plain
from bwtui.model.backfill import BackfillReason, BackfillState
from bwtui.model.histogram import BOUNDS, Distribution
from bwtui.model.latency import LATENCY_STAGES
from bwtui.model.status import STAGES, ExactlyOnceStatus, RecordingStatus, State, Status, TableStatus
from bwtui.model.verdict import WORDS, Cause, Condition
from bwtui.relay.serving.control_server import VERDICTS
from bwtui.relay.serving.health import readiness
from bwtui.relay.state.measures import Measures

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


#: The metric's name, the values of its labels, and its value.
Sample = tuple[str, tuple[str, ...], float]


def label(text: str) -> str:
    r"""Return a foreign text as a label value: nothing in it is invisible or moves a cursor.

    Different texts stay different: a backslash is doubled.
    """
    return text if is_plain(text) and "\\" not in text else escape(text.replace("\\", r"\\"))


def sample_if_known(name: str, value: float | None, *labels: str) -> Iterator[Sample]:
    """Yield a sample, unless the value is unknown."""
    if value is not None:
        yield name, labels, value


#: Maximum number of tables with their own series.
MOST_TABLES = 500
#: The label of the other tables; a table's name contains a dot.
OTHERS = "(others)"
#: The counters that are summed up for them.
_ADDED = tuple(one.name for one in fields(TableStatus) if one.type in (int, "int"))


@dataclass(frozen=True, slots=True)
class TablesBySeries:
    """Tables that have their own series, by name, and those that don't."""

    separate: Mapping[str, TableStatus]
    combined: tuple[TableStatus, ...]


class TableSeriesSelection:
    """Decides which tables have their own series; one thread at a time may call it.

    If there are too many, tables get their own series in the order of their first rows. A table keeps its
    assignment, because a counter would fall otherwise.
    """

    def __init__(self, most: int = MOST_TABLES) -> None:
        self._most = most
        self._separate: set[str] = set()
        self._combined: set[str] = set()

    def part(self, tables: Mapping[str, TableStatus]) -> TablesBySeries:
        """Return the tables as they are split from now on."""
        have_room = len(tables) <= self._most
        for name, table in tables.items():
            if name in self._separate or name in self._combined:
                continue
            if len(self._separate) < self._most:
                if have_room or _has_counted(table):
                    self._separate.add(name)
            elif _has_counted(table):
                self._combined.add(name)
        return TablesBySeries(
            {name: table for name, table in tables.items() if name in self._separate},
            tuple(table for name, table in tables.items() if name not in self._separate),
        )


def _has_counted(table: TableStatus) -> bool:
    return any(getattr(table, name) for name in _ADDED)


def of_tables(parted: TablesBySeries, copied_before: Mapping[str, int]) -> Iterator[Sample]:
    """Yield the samples of all tables; ``copied_before``: snapshot rows that earlier runs sent."""
    yield "bwtui_tables", (), len(parted.separate) + len(parted.combined)
    yield "bwtui_tables_added_up", (), len(parted.combined)
    for name, table in parted.separate.items():
        shown = label(name)
        yield "bwtui_table_info", (shown, label(table.topic)), 1
        yield from _counts(shown, table, copied_before.get(name, 0))
        for part, id in (("key", table.key_schema_id), ("value", table.value_schema_id)):
            yield from sample_if_known("bwtui_table_schema_id", id, shown, part)
        if table.snapshot_state != "none":
            yield "bwtui_table_snapshot_rows", (shown,), table.snapshot_rows
            yield from sample_if_known("bwtui_table_snapshot_estimate_rows", table.snapshot_estimate, shown)
    if parted.combined:
        sums = {name: sum(getattr(table, name) for table in parted.combined) for name in _ADDED}
        before = sum(rows for name, rows in copied_before.items() if name not in parted.separate)
        yield from _counts(OTHERS, TableStatus("", **sums), before)


def _counts(name: str, table: TableStatus, copied_before: int) -> Iterator[Sample]:
    changes = {
        "snapshot": max(0, table.snapshot_rows - copied_before),
        "backfill": table.backfill_rows,
        "insert": table.inserts,
        "update": table.updates,
        "delete": table.deletes,
        "truncate": table.truncates,
    }
    for kind, number in changes.items():
        yield "bwtui_table_changes_total", (name, kind), number
    yield "bwtui_table_messages_total", (name,), table.messages
    yield "bwtui_table_message_bytes_total", (name,), table.bytes
    yield "bwtui_table_errors_total", (name,), table.errors
    yield "bwtui_table_dead_letters_total", (name,), table.dead_letters
    toast = {
        "fetched": table.toast_fetched,
        "placeholder": table.toast_placeholders,
        "superseded": table.toast_superseded,
    }
    for outcome, number in toast.items():
        yield "bwtui_table_toast_total", (name, outcome), number


_WAL_STATUSES = ("reserved", "extended", "unreserved", "lost")
_SNAPSHOT_STATES = ("none", "pending", "running", "done")
_RECORDING_STATES = ("recording", "failed", "stopped")
_POSITIONS = ("confirmed", "received", "server", "restart")
#: Errors of these kinds start at 0, so that the first error of a kind is an increase.
_ERROR_KINDS = (
    *("notice", "outage", "stalled", "row", "delivery", "backfill", "recording", "topic", "worker", "state"),
    *("lock", "fatal"),
)


def samples(measures: Measures, parted: TablesBySeries) -> Iterator[Sample]:
    """Yield all samples except those of histograms; ``parted`` are the tables."""
    status = measures.status
    yield from _relay(measures)
    yield from _slot(measures)
    yield from _flow(measures)
    yield from _trouble(measures)
    yield from of_tables(parted, measures.copied_before)
    yield from _rows_again(status)
    if status.recording is not None:
        yield from _recording(status.recording)
    if status.exactly_once is not None:
        yield from _exactly_once(status.exactly_once)


def _relay(measures: Measures) -> Iterator[Sample]:
    status = measures.status
    verdict = status.verdict
    yield "bwtui_build_info", (__version__, platform.python_version()), 1
    ends = (status.database, status.broker, status.registry, status.server_version)
    yield (
        "bwtui_relay_info",
        tuple(map(label, (status.name, status.slot, status.publication, *ends))),
        1,
    )
    yield "bwtui_ready", (), readiness(measures).is_yes
    yield from _one_of("bwtui_state", get_args(State), status.state)
    yield from _one_of("bwtui_condition", get_args(Condition), verdict.condition)
    yield from _one_of("bwtui_verdict", WORDS, verdict.code)
    waits = verdict.condition in ("waiting", "stalled")
    for cause in filter(None, get_args(Cause)):
        yield "bwtui_waiting_seconds", (cause,), verdict.seconds if waits and verdict.cause == cause else 0
    yield "bwtui_oldest_in_flight_seconds", (), verdict.oldest_in_flight_seconds or 0
    yield "bwtui_main_thread_idle_seconds", (), measures.turn.idle_seconds
    for activity, seconds in measures.activities.items():
        yield "bwtui_main_thread_seconds_total", (activity,), seconds
    yield "bwtui_resident_bytes", (), status.resident_bytes
    yield "bwtui_cpu_seconds_total", (), status.cpu_seconds
    yield "bwtui_snapshot_workers", (), len(status.snapshot_workers)


def _slot(measures: Measures) -> Iterator[Sample]:
    status = measures.status
    if status.confirmed_lsn and measures.slot_age is not None:
        yield "bwtui_wal_lag_bytes", (), status.wal_lag_bytes
        yield "bwtui_wal_lag_seconds", (), status.wal_lag_seconds
    if measures.slot_age is not None:
        yield "bwtui_slot_look_age_seconds", (), measures.slot_age
    for position in _POSITIONS:
        if lsn := getattr(status, f"{position}_lsn"):
            yield "bwtui_lsn_bytes", (position,), lsn
    if not status.wal_status:
        return
    yield "bwtui_slot_retained_wal_bytes", (), status.retained_wal_bytes
    yield from _one_of("bwtui_slot_wal_status", _WAL_STATUSES, status.wal_status)
    yield from sample_if_known("bwtui_slot_safe_wal_bytes", status.safe_wal_bytes)
    yield from sample_if_known("bwtui_slot_runway_seconds", status.verdict.safe_seconds)
    yield from sample_if_known("bwtui_slot_spilled_bytes_total", status.spill_bytes)


def _flow(measures: Measures) -> Iterator[Sample]:
    status = measures.status
    stages = status.stages
    yield "bwtui_transactions_total", (), status.transactions
    yield "bwtui_stream_sessions_total", (), measures.sessions
    if stages:
        yield "bwtui_rows_read_total", (), stages["read"].total
        yield "bwtui_messages_encoded_total", (), stages["encode"].total
        yield "bwtui_messages_produced_total", (), stages["produce"].total
        yield "bwtui_messages_acknowledged_total", (), stages["acknowledge"].total
        yield "bwtui_messages_in_flight", (), stages["acknowledge"].queue
        yield from sample_if_known("bwtui_messages_in_flight_limit", stages["produce"].capacity)
    for name in STAGES:
        # Decoding and encoding are one step, which is reported as encoding.
        if name in stages and name != "decode":
            yield "bwtui_stage_busy_ratio", (name,), stages[name].busy


def _trouble(measures: Measures) -> Iterator[Sample]:
    status = measures.status
    for kind in dict.fromkeys((*_ERROR_KINDS, *measures.errors)):
        yield "bwtui_errors_total", (kind,), measures.errors.get(kind, 0)
    is_open = (entry.since is not None and not entry.is_over for entry in status.errors)
    yield "bwtui_errors_open", (), sum(is_open)
    yield "bwtui_tables_not_captured", (), len(status.not_captured)
    tables = dict.fromkeys(entry.table for entry in status.not_proven)
    yield "bwtui_tables_not_proven", (), len(tables)
    for table in list(tables)[:MOST_TABLES]:
        yield "bwtui_table_not_proven", (label(table),), 1
    yield "bwtui_heal_due", (), status.heal is not None
    for verdict in VERDICTS:
        yield "bwtui_audits_total", (verdict,), measures.audits.get(verdict, 0)
    if measures.audited_at:
        yield "bwtui_audit_last_timestamp_seconds", (), measures.audited_at
    for part in ("key", "value"):
        yield "bwtui_schemas", (part,), measures.schemas.get(part, 0)


def _rows_again(status: Status) -> Iterator[Sample]:
    for state in _SNAPSHOT_STATES:
        tables = (table.snapshot_state == state for table in status.tables.values())
        yield "bwtui_snapshot_tables", (state,), sum(tables)
    if status.first_snapshot is not None:
        yield "bwtui_first_snapshot_tables", (), status.first_snapshot.tables
        yield "bwtui_first_snapshot_done_tables", (), status.first_snapshot.done
    for reason in get_args(BackfillReason):
        requests = [one for one in status.backfills if one.reason == reason]
        for state in get_args(BackfillState):
            yield "bwtui_backfills", (reason, state), sum(one.state == state for one in requests)
        unfinished = [one for one in requests if not one.is_over]
        yield "bwtui_backfill_rows", (reason,), sum(one.rows + one.tombstones for one in unfinished)
        yield "bwtui_backfill_estimate_rows", (reason,), sum(one.estimate or 0 for one in unfinished)


def _recording(recording: RecordingStatus) -> Iterator[Sample]:
    yield from _one_of("bwtui_recording_state", _RECORDING_STATES, recording.state)
    yield "bwtui_recording_size_bytes", (), recording.bytes
    yield "bwtui_recording_segments", (), recording.segments
    yield from sample_if_known("bwtui_recording_free_bytes", recording.free_bytes)
    yield from sample_if_known("bwtui_recording_runway_seconds", recording.seconds_left)
    if recording.durable_lsn:
        yield "bwtui_lsn_bytes", ("recorded",), recording.durable_lsn


def _exactly_once(exactly: ExactlyOnceStatus) -> Iterator[Sample]:
    yield "bwtui_kafka_transactions_total", (), exactly.commits
    yield from sample_if_known("bwtui_kafka_commit_p50_seconds", exactly.commit_p50)
    yield from sample_if_known("bwtui_kafka_commit_p99_seconds", exactly.commit_p99)


def _one_of(name: str, choices: Iterable[str], chosen: str) -> Iterator[Sample]:
    """Yield 1 for the chosen value and 0 for the other possible ones."""
    for choice in dict.fromkeys((*choices, chosen)):
        yield name, (choice,), choice == chosen


OPENMETRICS = "application/openmetrics-text"
_NOTHING = Distribution()


class Exposition:
    """Writes measurements as metrics; one thread at a time may call it."""

    def __init__(self) -> None:
        #: The highest value of each counter. A falling counter would count as restarted from zero: messages
        #: that are read again after an outage were already counted when the sink received them.
        self._highest: dict[tuple[str, tuple[str, ...]], float] = {}
        #: For counters of the server: the last value.
        self._last: dict[str, float] = {}
        self._listing = TableSeriesSelection()
        self._measures: Measures | None = None
        self._registry = CollectorRegistry()
        # The process's memory, CPU time, descriptors and start time, as every client library exports them.
        ProcessCollector(registry=self._registry)
        self._registry.register(_RelayCollector(self))

    def content_type(self, accept: str) -> str:
        """Return the content type of the answer to a request with the Accept header ``accept``."""
        kind: str = CONTENT_TYPE_LATEST if OPENMETRICS in accept else CONTENT_TYPE_PLAIN_0_0_4
        return kind

    def text(self, measures: Measures, content_type: str) -> bytes:
        """Return ``measures`` in a type that `content_type` returned."""
        self._measures = measures
        write = as_openmetrics if content_type == CONTENT_TYPE_LATEST else as_text
        text: bytes = write(self._registry)
        return text

    def families(self) -> Iterable[Metric]:
        """Return every metric with its samples."""
        if self._measures is None:
            return []
        by_name: dict[str, list[Sample]] = {metric.name: [] for metric in METRICS}
        for sample in samples(self._measures, self._listing.part(self._measures.status.tables)):
            by_name[sample[0]].append(sample)
        return [self._family(metric, by_name[metric.name]) for metric in METRICS]

    def _family(self, metric: MetricSpec, values: list[Sample]) -> Metric:
        if metric.kind == "info":
            info = InfoMetricFamily(metric.family, metric.help, labels=())
            for _, labels, _ in values:
                info.add_metric((), dict(zip(metric.labels, labels, strict=True)))
            return info
        if metric.kind == "histogram":
            return self._latency(metric)
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.family, metric.help, labels=metric.labels, unit=metric.unit)
        for name, labels, value in values:
            assert len(labels) == len(metric.labels), name
            shown = self._since_first(name, value) if metric.is_servers else value
            if metric.kind == "counter":
                shown = self._highest_of(name, labels, shown)
            family.add_metric(labels, float(shown))
        return family

    def _since_first(self, name: str, value: float) -> float:
        """Return the count since the first observation; a server that restarts counts from zero."""
        last = self._last.get(name, value)
        self._last[name] = value
        return self._highest.get((name, ()), 0.0) + (value - last if value >= last else value)

    def _highest_of(self, name: str, labels: tuple[str, ...], value: float) -> float:
        highest = self._highest[name, labels] = max(value, self._highest.get((name, labels), value))
        return highest

    def _latency(self, metric: MetricSpec) -> Metric:
        assert self._measures is not None
        latency = self._measures.latency
        family = HistogramMetricFamily(metric.family, metric.help, labels=metric.labels, unit=metric.unit)
        for stage in LATENCY_STAGES:
            if (stage == "total") != bool(metric.labels):
                labels = (stage,) if metric.labels else ()
                family.add_metric(labels, *_buckets(latency.get(stage, _NOTHING)))
        return family


class _RelayCollector:
    """A collector for the client library's registry."""

    def __init__(self, exposition: Exposition) -> None:
        self._exposition = exposition

    def collect(self) -> Iterable[Metric]:
        return self._exposition.families()


def _buckets(distribution: Distribution) -> tuple[list[tuple[str, float]], float]:
    """Return the buckets, each with the count below its bound, and the sum."""
    ends = [(str(bound), float(below)) for bound, below in zip(BOUNDS, distribution.below, strict=True)]
    return [*ends, ("+Inf", float(distribution.count))], distribution.sum
