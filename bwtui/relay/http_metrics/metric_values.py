"""The samples of every metric of a relay at one moment; unknown values have no sample.

The number of label values is bounded: labels are tables, states, kinds and the like, and never a key, a
value, or the text of an error.
"""

import platform
from collections.abc import Iterable, Iterator
from typing import get_args

from bwtui import __version__
from bwtui.model.backfill import BackfillReason, BackfillState
from bwtui.model.status import STAGES, ExactlyOnceStatus, RecordingStatus, State, Status
from bwtui.model.verdict import WORDS, Cause, Condition
from bwtui.relay.http_metrics.health import readiness
from bwtui.relay.http_metrics.labels import Sample, known, label
from bwtui.relay.http_metrics.table_series import MOST_TABLES, TablesBySeries, of_tables
from bwtui.relay.metrics.measures import Measures
from bwtui.relay.process.server import VERDICTS

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
    yield from _one_of("bwtui_verdict", WORDS, verdict.word)
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
    yield from known("bwtui_slot_safe_wal_bytes", status.safe_wal_bytes)
    yield from known("bwtui_slot_runway_seconds", status.verdict.safe_seconds)
    yield from known("bwtui_slot_spilled_bytes_total", status.spill_bytes)


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
        yield from known("bwtui_messages_in_flight_limit", stages["produce"].capacity)
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
        left = [one for one in requests if not one.is_over]
        yield "bwtui_backfill_rows", (reason,), sum(one.rows + one.tombstones for one in left)
        yield "bwtui_backfill_estimate_rows", (reason,), sum(one.estimate or 0 for one in left)


def _recording(recording: RecordingStatus) -> Iterator[Sample]:
    yield from _one_of("bwtui_recording_state", _RECORDING_STATES, recording.state)
    yield "bwtui_recording_size_bytes", (), recording.bytes
    yield "bwtui_recording_segments", (), recording.segments
    yield from known("bwtui_recording_free_bytes", recording.free_bytes)
    yield from known("bwtui_recording_runway_seconds", recording.seconds_left)
    if recording.durable_lsn:
        yield "bwtui_lsn_bytes", ("recorded",), recording.durable_lsn


def _exactly_once(exactly: ExactlyOnceStatus) -> Iterator[Sample]:
    yield "bwtui_kafka_transactions_total", (), exactly.commits
    yield from known("bwtui_kafka_commit_p50_seconds", exactly.commit_p50)
    yield from known("bwtui_kafka_commit_p99_seconds", exactly.commit_p99)


def _one_of(name: str, choices: Iterable[str], chosen: str) -> Iterator[Sample]:
    """Yield 1 for the chosen value and 0 for the other possible ones."""
    for choice in dict.fromkeys((*choices, chosen)):
        yield name, (choice,), choice == chosen
