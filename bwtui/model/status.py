"""What the engine says of itself: immutable values that the UI, ``bwtui status`` and ``--json`` share.

`Status.to_json` is the contract of ``connect --headless --json`` and ``status --json``: names may be added,
never renamed. All sizes are bytes, all durations seconds, all times seconds since the Unix epoch, and LSNs
are integers here and PostgreSQL's text form in JSON.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from bwtui.model.backfill import BackfillStatus, FirstSnapshot
from bwtui.model.from_json import made_of
from bwtui.model.heal import HealStatus
from bwtui.model.latency import Percentiles, latency_from_json
from bwtui.model.lsn import format_lsn, parse_lsn
from bwtui.model.proof import NotProven
from bwtui.model.verdict import Verdict

State = Literal["starting", "snapshot", "streaming", "stalled", "paused", "stopped", "failed"]
STAGES = ("read", "decode", "encode", "produce", "acknowledge")
#: How a `Status.detail` begins that says since when the lag is not known; a time follows.
LAG_IS_OLD = "PostgreSQL has not told of the slot since"
_LSN_FIELDS = ("confirmed_lsn", "server_lsn", "received_lsn", "restart_lsn")


@dataclass(frozen=True, slots=True)
class StageStatus:
    """One stage of the pipeline.

    ``per_second`` counts rows (messages for produce and acknowledge) over the last seconds; ``queue`` is what
    waits in front of the stage or inside it, out of ``capacity`` when that is bounded; ``total`` since start.
    ``busy`` is the share (0 to 1) of the relay's last seconds that went into the stage, or into waiting for
    it; decoding and encoding are one step, which stands at "encode".
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
    #: Rows that were put into the stream beside its changes.
    backfill_rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    messages: int = 0
    bytes: int = 0
    rows_per_second: float = 0.0
    #: Bytes of messages a second, over the last seconds.
    bytes_per_second: float = 0.0
    #: The table's share (0 to 1) of the WAL that the relayed tables write, estimated from rows and messages.
    wal_share: float = 0.0
    #: What it writes to the WAL a second, estimated in the same way.
    wal_bytes_per_second: float = 0.0
    #: From COMMIT to acknowledgement in the last minute; None where nothing was acknowledged.
    latency_p50: float | None = None
    latency_p99: float | None = None
    errors: int = 0
    dead_letters: int = 0
    #: Unchanged TOAST values that were read by key, or replaced by a placeholder.
    toast_fetched: int = 0
    toast_placeholders: int = 0
    #: Updates that were passed over: their TOAST value could not be read, since the row is gone by now.
    toast_superseded: int = 0
    key_schema_id: int | None = None
    value_schema_id: int | None = None
    #: What the registry counts the value's schema as.
    value_schema_version: int | None = None
    #: "none" (no snapshot of this table in this run), "pending", "running" or "done".
    snapshot_state: str = "none"
    #: PostgreSQL's estimate of the table's rows (pg_class.reltuples) when the snapshot began, or None.
    snapshot_estimate: int | None = None
    #: While its snapshot is under way: what is left of it at its pace so far, where that can be told.
    snapshot_seconds_left: float | None = None
    #: Key columns in order; empty when the table is unkeyed.
    key_columns: tuple[str, ...] = ()
    #: Plain sentences about what is special: unkeyed, types sent as text, updates not captured…
    notes: tuple[str, ...] = ()

    @property
    def is_key_known(self) -> bool:
        """Whether ``key_columns`` is what the table has: the relay finds them with the first row it sends."""
        return bool(self.key_columns or self.messages) or self.value_schema_id is not None


@dataclass(frozen=True, slots=True)
class SnapshotWorker:
    """A process that reads tables, or ranges of them, for the first snapshot."""

    pid: int
    #: What it reads at present, or a few of that.
    tables: tuple[str, ...] = ()
    #: Of that, rows so far.
    rows: int = 0
    #: Without the pages of files, libraries above all, which the relay's own process has, too, if it is here.
    resident_bytes: int = 0
    cpu_seconds: float = 0.0
    #: The machine that it is on; empty: the relay's own.
    host: str = ""

    @property
    def place(self) -> str:
        """How people find it."""
        if not self.host:
            return f"pid {self.pid}"
        return f"{self.host}:{self.pid}"


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """One error, or one warning, that the relay met; never holds a row value or a password."""

    time: float
    kind: str
    table: str | None
    message: str
    hint: str | None = None
    #: How often the same error came in a row; ``time`` is the latest.
    count: int = 1
    #: When it came first, and when it was over; None: it is not over, or is nothing that passes.
    since: float | None = None
    until: float | None = None
    #: Whose it is, where it passes once that answers again: "Kafka", "the schema registry", "PostgreSQL"…
    dependency: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it is history: what it was about has recovered."""
        return self.until is not None


@dataclass(frozen=True, slots=True)
class RecordingStatus:
    """The recording that a relay writes; sizes in bytes."""

    path: str
    #: "recording"; "failed" when the disk refuses it; "stopped" when the relay goes on without.
    state: str = "recording"
    bytes: int = 0
    segments: int = 0
    bytes_per_second: float = 0.0
    #: On its disk; None where the disk does not answer.
    free_bytes: int | None = None
    #: Until the disk is full at the present rate, or None.
    seconds_left: float | None = None
    durable_lsn: int = 0


@dataclass(frozen=True, slots=True)
class ExactlyOnceStatus:
    """That a relay runs with --exactly-once, and how its Kafka transactions go; times in seconds."""

    transactional_id: str
    #: The topic of its position.
    topic: str
    #: Since it started.
    commits: int = 0
    #: Of the last ten seconds; the times are None where none was committed. A commit takes from the end of
    #: its transaction, the recording's disk included, to Kafka's word.
    commits_per_second: float = 0.0
    commit_p50: float | None = None
    commit_p99: float | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """One immutable picture of the relay."""

    state: State
    name: str
    slot: str
    #: One plain sentence on what the engine is doing or waiting for.
    detail: str = ""
    #: What it is at, also while ``state`` is "stalled": "starting", "snapshot" or "streaming".
    phase: str = ""
    #: How it is, and why. Its sentence stands in JSON as ``reason`` too.
    verdict: Verdict = field(default_factory=Verdict)
    pid: int = 0
    started: float = 0.0
    time: float = 0.0
    publication: str = ""
    #: Where the ends are, without passwords: "host:port/dbname", broker list, registry URL.
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
    #: Bytes of WAL until the slot is in danger (pg_replication_slots.safe_wal_size); None: no limit is set.
    safe_wal_bytes: int | None = None
    #: Transactions and bytes that the server spilled to disk while decoding for this slot, or None before 14.
    spill_bytes: int | None = None
    transactions: int = 0
    resident_bytes: int = 0
    cpu_seconds: float = 0.0
    tables: dict[str, TableStatus] = field(default_factory=dict)
    stages: dict[str, StageStatus] = field(default_factory=dict)
    #: How long messages took to each of `LATENCY_STAGES`, of those acknowledged in the last ten seconds, the
    #: last minute, and ever; a stage without any is missing. Rows of a snapshot are not measured.
    latency: dict[str, Percentiles] = field(default_factory=dict)
    latency_minute: dict[str, Percentiles] = field(default_factory=dict)
    latency_since_start: dict[str, Percentiles] = field(default_factory=dict)
    errors: tuple[ErrorEntry, ...] = ()
    #: Tables that the relay is to carry and that its publications lack: nothing of them is sent.
    not_captured: tuple[str, ...] = ()
    #: Tables whose topic may differ from them.
    not_proven: tuple[NotProven, ...] = ()
    #: A slot that was lost and made anew, while topics may differ from tables for it.
    heal: HealStatus | None = None
    #: A first snapshot beside the stream that is not through: topics lack rows of its tables.
    first_snapshot: FirstSnapshot | None = None
    recording: RecordingStatus | None = None
    exactly_once: ExactlyOnceStatus | None = None
    #: What is sent again, or to be, and what was last: the oldest request first.
    backfills: tuple[BackfillStatus, ...] = ()
    #: While a snapshot is taken by several processes. ``resident_bytes`` and ``cpu_seconds`` count them, too.
    snapshot_workers: tuple[SnapshotWorker, ...] = ()
    #: Set when the engine ended on an error: the exit code of its process.
    exit_code: int | None = None

    @property
    def is_copying(self) -> bool:
        """Whether a snapshot is under way, also one that is stalled."""
        return (self.phase or self.state) == "snapshot"

    @property
    def aside(self) -> str:
        """What ``detail`` says beside the verdict's sentence: that the lag is old; or ""."""
        return self.detail if self.verdict.sentence and self.detail.startswith(LAG_IS_OLD) else ""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the command-line contract."""
        data = dataclasses.asdict(self)
        for name in _LSN_FIELDS:
            data[name] = format_lsn(data[name])
        data["not_proven"] = [entry.to_json() for entry in self.not_proven]
        data["verdict"], data["verdict_details"] = self.verdict.word, data["verdict"]
        data["reason"] = self.verdict.sentence
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Status":
        """Rebuild a status from `to_json`; keys that this version does not know are left out."""
        known = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        for name in _LSN_FIELDS:
            if name in values:
                values[name] = parse_lsn(values[name])
        for name, kind in (("tables", TableStatus), ("stages", StageStatus)):
            values[name] = {key: made_of(kind, value) for key, value in values.get(name, {}).items()}
        for name in ("latency", "latency_minute", "latency_since_start"):
            values[name] = latency_from_json(values.get(name, {}))
        # Older versions, and every recording, have the details under the name of the word.
        values["verdict"] = Verdict.from_json(data.get("verdict_details", data.get("verdict", {})))
        recording = values.get("recording")
        values["recording"] = made_of(RecordingStatus, recording) if recording else None
        exactly = values.get("exactly_once")
        values["exactly_once"] = made_of(ExactlyOnceStatus, exactly) if exactly else None
        heal = values.get("heal")
        values["heal"] = HealStatus.from_json(heal) if heal else None
        first = values.get("first_snapshot")
        values["first_snapshot"] = FirstSnapshot.from_json(first) if first else None
        values["not_captured"] = tuple(values.get("not_captured", ()))
        values["not_proven"] = tuple(map(NotProven.from_json, values.get("not_proven", ())))
        values["backfills"] = tuple(map(BackfillStatus.from_json, values.get("backfills", ())))
        workers = values.get("snapshot_workers", ())
        values["snapshot_workers"] = tuple(made_of(SnapshotWorker, value) for value in workers)
        values["errors"] = tuple(made_of(ErrorEntry, value) for value in values.get("errors", ()))
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
    """One column of a sampled change, as text for people; None is NULL, and absent means not known."""

    name: str
    before: str | None
    after: str | None
    #: "same", "changed", "unknown before" or "unchanged TOAST"; for inserts and deletes "new" and "gone".
    mark: str = "new"


@dataclass(frozen=True, slots=True)
class ChangeSample:
    """One change out of the stream, decoded field by field; a bounded sample, not a log."""

    #: Grows by one with every sample, so that a client can ask for what it has not seen.
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
    #: Its number among the row changes of its transaction, from 1; 0: not told.
    ordinal: int = 0
    key_schema_id: int | None = None
    value_schema_id: int | None = None
    #: The message's key in hexadecimal; empty without one, and of a long one.
    message_key: str = ""
    #: When its batch had passed "received", "encoded", "produced" and "acknowledged", in Unix seconds, 0
    #: where it had not yet; empty where that is not measured. ``batch`` is the number of its messages.
    passed: tuple[float, ...] = ()
    batch: int = 0
    #: The session ended before Kafka had acknowledged it: it is read and sent again.
    is_given_up: bool = False
    #: Where Kafka put it; None unless that is known, as while recording.
    partition: int | None = None
    offset: int | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "ChangeSample":
        """Rebuild a sample from ``dataclasses.asdict``; what this version does not know is left out."""
        made: ChangeSample = made_of(
            cls, {**data, "fields": [made_of(FieldChange, f) for f in data["fields"]]}
        )
        return made
