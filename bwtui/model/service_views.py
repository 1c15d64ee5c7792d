"""Service views: data that the engine provides only on request, in addition to its `Status`.

Sizes are bytes, durations seconds, times seconds since the Unix epoch, and LSNs PostgreSQL's text form. Each
view has the ``time`` of its poll, 0 before the first. ``failure`` says in one sentence why there is no data,
and ``notes`` what is missing, each with the way to get it.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from bwtui.model.from_json import from_json_object

#: Requests the newest two versions of a subject that are not deleted.
NEWEST = "newest"
#: Requests a comparison of all versions of a subject with the ones before them.
CHANGES = "changes"
LookName = Literal[
    "slots", "consumers", "commands", "configuration", "stages", "subject", "letters", "transactions"
]


@dataclass(frozen=True, slots=True)
class SettingEntry:
    """One setting: its value, with secrets masked, and where it was set."""

    name: str
    value: str | bool | int | tuple[str, ...] | None
    origin: str

    @property
    def text(self) -> str:
        """The value for display, "-" if there is none."""
        value = self.value
        if value is None or value in ("", ()):
            return "-"
        if isinstance(value, bool):
            return str(value).lower()
        return ", ".join(value) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, slots=True)
class SlotEntry:
    """One replication slot of the server, of any database and kind."""

    name: str
    type: str
    plugin: str | None = None
    database: str | None = None
    temporary: bool = False
    active: bool = False
    active_pid: int | None = None
    wal_status: str | None = None
    restart_lsn: str | None = None
    confirmed_lsn: str | None = None
    retained_wal_bytes: int | None = None
    #: None if there is no limit, or the slot lost its WAL.
    safe_wal_bytes: int | None = None
    #: When its last reader left; None while it has a reader, and before PostgreSQL 17.
    inactive_since: float | None = None
    #: Why the server invalidated it, from PostgreSQL 17 on.
    invalidation_reason: str | None = None
    #: Bytes that decoding for it has spilled to disk so far; None for a physical slot.
    spill_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LongRunningTransaction:
    """A long-running transaction; once it has written, it holds back the restart_lsn of all slots."""

    #: "pid 4711", or "prepared NAME" for a prepared transaction.
    name: str
    user: str = ""
    database: str = ""
    application: str = ""
    #: "active", "idle in transaction" …, "prepared"; empty if unknown.
    state: str = ""
    #: When it began; None if the role may not see it.
    since: float | None = None
    #: True if it has written, so that slots must keep WAL from its beginning on.
    writes: bool = False
    #: Age in transactions of the oldest one that it can see; None if it does not hold back vacuum.
    xmin_age: int | None = None


@dataclass(frozen=True, slots=True)
class Standby:
    """A standby, or a different reader of physical WAL."""

    name: str
    client: str = ""
    #: Empty if the role may not see it; then the lags are None too.
    state: str = ""
    sync_state: str = ""
    slot: str | None = None
    replay_lag_bytes: int | None = None
    replay_lag_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Slots:
    """Slots and transactions that make the server keep WAL."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    #: max_slot_wal_keep_size, or None if there is no limit.
    keep_limit_bytes: int | None = None
    #: The value of -d that selects the server, without passwords; "" if none is needed.
    postgres: str = ""
    slots: tuple[SlotEntry, ...] = ()
    holders: tuple[LongRunningTransaction, ...] = ()
    standbys: tuple[Standby, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a group in one partition, according to its last committed offset."""

    topic: str
    partition: int
    #: The next offset to read; None if it has never committed one.
    committed: int | None
    end: int
    #: Number of offsets up to the end. In a compacted topic some of them may be empty.
    unread: int = 0
    #: Timestamp of the first unread message; None if unknown.
    unread_since: float | None = None


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A consumer group with committed offsets in topics of the relay."""

    name: str
    #: In Kafka's words: "stable", "empty", "preparing rebalance" …
    state: str = ""
    #: Number of its consumers; None if the user may not see it.
    members: int | None = None
    topics: tuple[str, ...] = ()
    unread: int = 0
    unread_since: float | None = None
    #: Number of partitions that it reads; ``partitions`` has those with the largest lag, the worst one first.
    partition_count: int = 0
    #: Number of these with messages but without a commit: what it has read there is unknown.
    uncommitted: int = 0
    partitions: tuple[PartitionLag, ...] = ()


@dataclass(frozen=True, slots=True)
class Consumers:
    """The consumers of the relay's topics."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    #: Duration of the poll.
    seconds: float = 0.0
    groups: tuple[GroupEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A statement or request, combined with all equal ones that had the same result."""

    #: "PostgreSQL", "registry" or "Kafka".
    service: str
    #: Without row values and secrets.
    text: str
    #: Empty on success, otherwise the kind of failure; "under way" before the answer.
    result: str = ""
    count: int = 1
    #: When the first and the last of them were issued.
    first: float = 0.0
    time: float = 0.0
    #: Duration of the last, of the slowest, and of all together.
    seconds: float = 0.0
    slowest: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Commands:
    """The statements and requests of the engine's process; the newest comes last."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    commands: tuple[CommandEntry, ...] = ()
    #: Number of entries dropped in favour of newer ones.
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of the running engine."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    settings: tuple[SettingEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class StageEntry:
    """The progress of a sampled change (see `bwtui.model.status.ChangeSample`)."""

    sequence: int
    passed: tuple[float, ...] = ()
    batch: int = 0
    is_given_up: bool = False
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Stages:
    """The progress of the sampled changes that the engine still has."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    changes: tuple[StageEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One version of a subject, with what was read of it."""

    version: int
    id: int | None = None
    #: The registration time if the registry reports it; most do not.
    registered: float | None = None
    #: True if softly deleted: it no longer counts for compatibility, but its id is still readable.
    is_deleted: bool = False
    #: Number of fields of the record, and number added, removed or changed since the version before; None if
    #: unknown, or without a version before.
    fields: int | None = None
    added: int | None = None
    removed: int | None = None
    changed: int | None = None


@dataclass(frozen=True, slots=True)
class VersionText:
    """The schema of one version, as JSON text."""

    version: int
    schema: str


@dataclass(frozen=True, slots=True)
class SubjectVersions:
    """The versions of one subject of the schema registry."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    name: str = ""
    #: Its compatibility level, its own or the global one.
    level: str = ""
    #: Oldest first.
    versions: tuple[VersionEntry, ...] = ()
    #: The requested versions' schemas, once they are known.
    texts: tuple[VersionText, ...] = ()


@dataclass(frozen=True, slots=True)
class DeadLetterPosition:
    """The position of a dead letter in the dead-letter topic."""

    #: Identity of the change, see `bwtui.kafka.dead_letter_topic.identity`.
    identity: str
    partition: int
    offset: int
    #: Number of earlier dead letters of the same change: only the newest few positions are kept.
    before: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """The dead-letter topic."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    #: Empty if the relay has no dead-letter topic.
    topic: str = ""
    #: Number of records read, of those that are not dead letters, and of older ones that were not read.
    records: int = 0
    foreign: int = 0
    left_out: int = 0
    #: Positions of the requested dead letters.
    places: tuple[DeadLetterPosition, ...] = ()


@dataclass(frozen=True, slots=True)
class RelayedTransaction:
    """A transaction with rows of the relay's tables, as the relay has processed it."""

    #: Identifies the transaction, since xids repeat after a wraparound. 0 if it is being read now.
    number: int
    xid: int
    commit_lsn: str
    #: By PostgreSQL's clock.
    commit_time: float
    #: Number of row changes and TRUNCATEs so far, with or without messages.
    rows: int
    #: Total size of the keys and values of its messages.
    bytes: int
    #: When its first change was available.
    received: float
    #: Number of messages by table, 0 if they were not counted; None in a backlog of small transactions of
    #: many tables, where they are not recorded.
    tables: dict[str, int] | None = field(default_factory=dict)
    #: True if all of it was acknowledged. The times until then are from its first received row, and from its
    #: COMMIT; None if not acknowledged yet, or unknown.
    acknowledged: bool = False
    relayed_seconds: float | None = None
    commit_seconds: float | None = None
    #: Number of times it was read; more than one after a reconnect.
    reads: int = 1
    #: Only the largest tables are named: number of further ones, and of their messages.
    more_tables: int = 0
    more_messages: int = 0
    #: True if the server that took over does not have it: it will never be acknowledged.
    is_given_up: bool = False


@dataclass(frozen=True, slots=True)
class Transactions:
    """The newest transactions, and the largest of the last ten minutes, in no particular order."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    #: Number of transactions since the relay's start, including those without rows of its tables.
    total: int = 0
    #: Number of the newest, and of the largest by rows and by bytes, that are included.
    newest: int = 0
    largest: int = 0
    #: The transaction that is being read now, if any.
    under_way: tuple[RelayedTransaction, ...] = ()
    transactions: tuple[RelayedTransaction, ...] = ()


Look: TypeAlias = (
    Slots | Consumers | Commands | Configuration | Stages | SubjectVersions | DeadLetterTopic | Transactions
)
LOOKS: dict[str, type[Any]] = {
    "slots": Slots,
    "consumers": Consumers,
    "commands": Commands,
    "configuration": Configuration,
    "stages": Stages,
    "subject": SubjectVersions,
    "letters": DeadLetterTopic,
    "transactions": Transactions,
}
_PARTS: dict[str, type[Any]] = {
    "slots": SlotEntry,
    "holders": LongRunningTransaction,
    "standbys": Standby,
    "groups": GroupEntry,
    "partitions": PartitionLag,
    "commands": CommandEntry,
    "settings": SettingEntry,
    "changes": StageEntry,
    "versions": VersionEntry,
    "texts": VersionText,
    "places": DeadLetterPosition,
    "under_way": RelayedTransaction,
    "transactions": RelayedTransaction,
}


def look_from_json(name: LookName, data: dict[str, Any]) -> Look:
    """Rebuild a view from ``dataclasses.asdict``, ignoring keys that this version does not know."""
    return _rebuilt(LOOKS[name], data)  # type: ignore[no-any-return]


def _rebuilt(kind: type[Any], data: dict[str, Any]) -> Any:
    parts = {
        key: tuple(_rebuilt(_PARTS[key], one) for one in value) if key in _PARTS else value
        for key, value in data.items()
    }
    return from_json_object(kind, parts)
