"""The engine's status: immutable values that the UI, ``bwtui status`` and ``--json`` share.

`Status.to_json` is the contract of ``connect --headless --json`` and ``status --json``: names may be added,
never renamed. All sizes are bytes, all durations seconds, all times seconds since the Unix epoch, and LSNs
are integers here and PostgreSQL's text form in JSON.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from bwtui.model.backfill import BackfillStatus, FirstSnapshot
from bwtui.model.from_json import from_json_object
from bwtui.model.heal import HealStatus
from bwtui.model.latency import Percentiles, latency_from_json
from bwtui.model.lsn import format_lsn, parse_lsn
from bwtui.model.proof import UnprovenTable
from bwtui.model.verdict import RelayVerdict

State = Literal["starting", "snapshot", "streaming", "stalled", "paused", "stopped", "failed"]
STAGES = ("read", "decode", "encode", "produce", "acknowledge")
#: Prefix of a `Status.detail` that says since when the lag is outdated; a time follows.
LAG_IS_OLD = "PostgreSQL has not reported the slot's lag since"
_LSN_FIELDS = ("confirmed_lsn", "server_lsn", "received_lsn", "restart_lsn")


@dataclass(frozen=True, slots=True)
class StageStatus:
    """One stage of the pipeline.

    ``per_second`` counts rows (messages for produce and acknowledge) over the last seconds. ``queue`` is the
    number waiting before or inside the stage, out of ``capacity`` if that is limited. ``total`` is since the
    start. ``busy`` is the share (0 to 1) of the last seconds that the relay spent in the stage or waiting for
    it; decoding and encoding are one step, reported as "encode".
    """

    per_second: float = 0.0
    queue: int = 0
    total: int = 0
    capacity: int | None = None
    busy: float = 0.0


@dataclass(frozen=True, slots=True)
class TableStatus:
    """Counters of one table since the engine started."""

    topic: str = ""
    snapshot_rows: int = 0
    #: Number of backfilled rows.
    backfill_rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    messages: int = 0
    bytes: int = 0
    rows_per_second: float = 0.0
    #: Message bytes per second, over the last seconds.
    bytes_per_second: float = 0.0
    #: The table's share (0 to 1) of the WAL that the relayed tables write, estimated from rows and messages.
    wal_share: float = 0.0
    #: Bytes that it writes to the WAL per second, estimated in the same way.
    wal_bytes_per_second: float = 0.0
    #: From COMMIT to acknowledgement in the last minute; None if nothing was acknowledged.
    latency_p50: float | None = None
    latency_p99: float | None = None
    errors: int = 0
    dead_letters: int = 0
    #: Number of unchanged TOAST values that were read by key, or replaced by a placeholder.
    toast_fetched: int = 0
    toast_placeholders: int = 0
    #: Number of updates skipped because their row was deleted before the TOAST value could be read.
    toast_superseded: int = 0
    key_schema_id: int | None = None
    value_schema_id: int | None = None
    #: The registry's version number of the value schema.
    value_schema_version: int | None = None
    #: "none" (no snapshot of this table in this run), "pending", "running" or "done".
    snapshot_state: str = "none"
    #: PostgreSQL's estimate of the table's rows (pg_class.reltuples) when the snapshot began, or None.
    snapshot_estimate: int | None = None
    #: Estimated remaining time of its running snapshot, if known.
    snapshot_seconds_left: float | None = None
    #: Key columns in order; empty if the table has no key.
    key_columns: tuple[str, ...] = ()
    #: Plain sentences on anything special: no key, types sent as text, updates not captured…
    notes: tuple[str, ...] = ()

    @property
    def has_final_key(self) -> bool:
        """Return whether ``key_columns`` is final: the relay determines it with the first row it sends."""
        return bool(self.key_columns or self.messages) or self.value_schema_id is not None


@dataclass(frozen=True, slots=True)
class SnapshotWorker:
    """A process that reads tables, or ranges of them, for the first snapshot."""

    pid: int
    #: Tables that it is reading, or some of them.
    tables: tuple[str, ...] = ()
    #: Number of rows read of these so far.
    rows: int = 0
    #: Excludes shared file pages, mainly libraries, if it runs on the relay's own machine.
    resident_bytes: int = 0
    cpu_seconds: float = 0.0
    #: Its machine; empty for the relay's own.
    host: str = ""

    @property
    def place(self) -> str:
        """Where users find the process."""
        if not self.host:
            return f"pid {self.pid}"
        return f"{self.host}:{self.pid}"


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """An error or a warning of the relay; it never contains a row value or a password."""

    time: float
    kind: str
    table: str | None
    message: str
    hint: str | None = None
    #: Number of times the same error occurred in a row; ``time`` is the latest.
    count: int = 1
    #: When it first occurred, and when it was over; None if not over, or not something that ends.
    since: float | None = None
    until: float | None = None
    #: The service whose recovery ends it: "Kafka", "the schema registry", "PostgreSQL"…
    dependency: str = ""

    @property
    def is_over(self) -> bool:
        """Return whether its cause has recovered."""
        return self.until is not None


@dataclass(frozen=True, slots=True)
class RecordingStatus:
    """The recording that a relay writes; sizes in bytes."""

    path: str
    #: "recording"; "failed" after a disk error; "stopped" if the relay continues without it.
    state: str = "recording"
    bytes: int = 0
    segments: int = 0
    bytes_per_second: float = 0.0
    #: Free space on its disk; None if unknown.
    free_bytes: int | None = None
    #: Time until the disk is full at the current rate, or None.
    seconds_left: float | None = None
    durable_lsn: int = 0


@dataclass(frozen=True, slots=True)
class ExactlyOnceStatus:
    """The state of a relay with --exactly-once, and of its Kafka transactions; times in seconds."""

    transactional_id: str
    #: The position topic.
    topic: str
    #: Number of commits since the start.
    commits: int = 0
    #: Over the last ten seconds; the times are None without commits. A commit lasts from the end of its
    #: transaction to Kafka's acknowledgement, including the recording's sync.
    commits_per_second: float = 0.0
    commit_p50: float | None = None
    commit_p99: float | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """An immutable status snapshot of the relay."""

    state: State
    name: str
    slot: str
    #: One plain sentence on what the engine is doing or blocked on.
    detail: str = ""
    #: The current phase, even while ``state`` is "stalled": "starting", "snapshot" or "streaming".
    phase: str = ""
    #: The verdict and its cause. Its sentence is also ``reason`` in JSON.
    verdict: RelayVerdict = field(default_factory=RelayVerdict)
    pid: int = 0
    started: float = 0.0
    time: float = 0.0
    publication: str = ""
    #: The services' addresses without passwords: "host:port/dbname", broker list, registry URL.
    database: str = ""
    broker: str = ""
    registry: str = ""
    server_version: str = ""
    confirmed_lsn: int = 0
    received_lsn: int = 0
    server_lsn: int = 0
    restart_lsn: int = 0
    wal_lag_bytes: int = 0
    wal_lag_seconds: float = 0.0
    retained_wal_bytes: int = 0
    wal_status: str = ""
    #: WAL bytes until the slot is in danger (pg_replication_slots.safe_wal_size); None if there is no limit.
    safe_wal_bytes: int | None = None
    #: Transactions and bytes that the server spilled to disk while decoding for this slot, or None before 14.
    spill_bytes: int | None = None
    transactions: int = 0
    resident_bytes: int = 0
    cpu_seconds: float = 0.0
    tables: dict[str, TableStatus] = field(default_factory=dict)
    stages: dict[str, StageStatus] = field(default_factory=dict)
    #: Latency of messages by `LATENCY_STAGES`, for those acknowledged in the last ten seconds, the last
    #: minute, and since the start; stages without messages are missing. Rows of a snapshot are not measured.
    latency: dict[str, Percentiles] = field(default_factory=dict)
    latency_minute: dict[str, Percentiles] = field(default_factory=dict)
    latency_since_start: dict[str, Percentiles] = field(default_factory=dict)
    errors: tuple[ErrorEntry, ...] = ()
    #: Tables that the relay should capture but its publications lack: none of their changes are sent.
    not_captured: tuple[str, ...] = ()
    #: Tables whose topic may differ from them.
    not_proven: tuple[UnprovenTable, ...] = ()
    #: Those that the relay compares, and the progress, or why the last comparison was not clean.
    comparison: str = ""
    #: Set after a slot was recreated, while topics may differ from tables because of it.
    heal: HealStatus | None = None
    #: Set while a first snapshot by chunks is unfinished: topics lack rows of its tables.
    first_snapshot: FirstSnapshot | None = None
    recording: RecordingStatus | None = None
    exactly_once: ExactlyOnceStatus | None = None
    #: Pending, running and recent backfill requests, oldest first.
    backfills: tuple[BackfillStatus, ...] = ()
    #: Processes of a running snapshot; ``resident_bytes`` and ``cpu_seconds`` include them.
    snapshot_workers: tuple[SnapshotWorker, ...] = ()
    #: The exit code of the engine's process, if it ended with an error.
    exit_code: int | None = None

    @property
    def is_copying(self) -> bool:
        """Return whether a snapshot is running, even if it is stalled."""
        return (self.phase or self.state) == "snapshot"

    @property
    def aside(self) -> str:
        """The part of ``detail`` to show next to the verdict's sentence: that the lag is outdated; or ""."""
        return self.detail if self.verdict.sentence and self.detail.startswith(LAG_IS_OLD) else ""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the command-line contract."""
        data = dataclasses.asdict(self)
        for name in _LSN_FIELDS:
            data[name] = format_lsn(data[name])
        data["not_proven"] = [entry.to_json() for entry in self.not_proven]
        data["verdict"], data["verdict_details"] = self.verdict.code, data["verdict"]
        data["reason"] = self.verdict.sentence
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Status":
        """Rebuild a status from `to_json`, ignoring keys that this version does not know."""
        names = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in data.items() if key in names}
        for name in _LSN_FIELDS:
            if name in values:
                values[name] = parse_lsn(values[name])
        for name, kind in (("tables", TableStatus), ("stages", StageStatus)):
            values[name] = {key: from_json_object(kind, value) for key, value in values.get(name, {}).items()}
        for name in ("latency", "latency_minute", "latency_since_start"):
            values[name] = latency_from_json(values.get(name, {}))
        # Older versions, and all recordings, have the details as "verdict".
        values["verdict"] = RelayVerdict.from_json(data.get("verdict_details", data.get("verdict", {})))
        recording = values.get("recording")
        values["recording"] = from_json_object(RecordingStatus, recording) if recording else None
        exactly = values.get("exactly_once")
        values["exactly_once"] = from_json_object(ExactlyOnceStatus, exactly) if exactly else None
        heal = values.get("heal")
        values["heal"] = HealStatus.from_json(heal) if heal else None
        first = values.get("first_snapshot")
        values["first_snapshot"] = FirstSnapshot.from_json(first) if first else None
        values["not_captured"] = tuple(values.get("not_captured", ()))
        values["not_proven"] = tuple(map(UnprovenTable.from_json, values.get("not_proven", ())))
        values["backfills"] = tuple(map(BackfillStatus.from_json, values.get("backfills", ())))
        workers = values.get("snapshot_workers", ())
        values["snapshot_workers"] = tuple(from_json_object(SnapshotWorker, value) for value in workers)
        values["errors"] = tuple(from_json_object(ErrorEntry, value) for value in values.get("errors", ()))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class SchemaEntry:
    """One registered schema: ``part`` is "key" or "value", ``schema`` the Avro schema as JSON text."""

    subject: str
    id: int
    version: int | None
    table: str
    topic: str
    part: str
    schema: str
    time: float


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One column of a sampled change as text for display; None is NULL, and a missing one is unknown."""

    name: str
    before: str | None
    after: str | None
    #: "same", "changed", "unknown before" or "unchanged TOAST"; for inserts and deletes "new" and "gone".
    mark: str = "new"


@dataclass(frozen=True, slots=True)
class ChangeSample:
    """A decoded change of the stream; one of a bounded sample, not of a log."""

    #: Increases by one with every sample, so that a client can request what it has not seen.
    sequence: int
    time: float
    commit_time: float
    lsn: str
    xid: int
    #: "snapshot", "insert", "update", "delete" or "truncate".
    operation: str
    table: str
    topic: str
    key: str
    fields: tuple[FieldChange, ...]
    #: Number among the row changes of its transaction, from 1; 0 if unknown.
    ordinal: int = 0
    key_schema_id: int | None = None
    value_schema_id: int | None = None
    #: The message's key in hexadecimal; empty if there is none, or if it is long.
    message_key: str = ""
    #: Unix times at which its batch passed "received", "encoded", "produced" and "acknowledged", 0 for a
    #: stage not passed yet; empty if not measured. ``batch`` is the number of messages in the batch.
    passed: tuple[float, ...] = ()
    batch: int = 0
    #: True if the session ended before Kafka acknowledged it: it is read and sent again.
    is_given_up: bool = False
    #: Its partition and offset in Kafka; None unless known, as while recording.
    partition: int | None = None
    offset: int | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "ChangeSample":
        """Rebuild a sample from ``dataclasses.asdict``, ignoring keys that this version does not know."""
        sample: ChangeSample = from_json_object(
            cls, {**data, "fields": [from_json_object(FieldChange, f) for f in data["fields"]]}
        )
        return sample
