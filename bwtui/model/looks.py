"""What the engine answers only while somebody looks, beside the `Status` that it always has.

Sizes are bytes, durations seconds, times seconds since the Unix epoch, and LSNs PostgreSQL's text form. Each
look has the ``time`` at which it was taken, 0 before the first; ``failure`` says in one sentence why there is
nothing, and ``notes`` what is missing from it, each with what would show it.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from bwtui.model.from_json import made_of
from bwtui.model.option_checks import SettingEntry

#: Stands for the newest two versions of a subject that are not deleted.
NEWEST = "newest"
#: Has all versions of a subject compared with those before them.
CHANGES = "changes"
LookName = Literal[
    "slots", "consumers", "commands", "configuration", "stages", "subject", "letters", "transactions"
]


@dataclass(frozen=True, slots=True)
class SlotEntry:
    """One replication slot of the server, of whichever database and kind."""

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
    #: None: no limit is set, or the slot lost its WAL.
    safe_wal_bytes: int | None = None
    #: Since when nobody reads it; None while somebody does, and before PostgreSQL 17.
    inactive_since: float | None = None
    #: Why the server gave it up, from PostgreSQL 17 on.
    invalidation_reason: str | None = None
    #: What decoding for it wrote to disk so far; None for a physical slot.
    spill_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """A transaction that has been open for a while; while it writes, no slot's restart_lsn passes it."""

    #: "pid 4711", or "prepared NAME" of a transaction that was prepared.
    name: str
    user: str = ""
    database: str = ""
    application: str = ""
    #: "active", "idle in transaction" …, "prepared"; empty when it is not told.
    state: str = ""
    #: Since when it is open; None when the role may not know.
    since: float | None = None
    #: It has written something, so that slots have to keep WAL from its begin on.
    writes: bool = False
    #: Transactions since the oldest one that it can see; None when it keeps vacuum from nothing.
    xmin_age: int | None = None


@dataclass(frozen=True, slots=True)
class Standby:
    """A standby, or another reader of physical WAL."""

    name: str
    client: str = ""
    #: Empty when the role may not know; the lags are None then, too.
    state: str = ""
    sync_state: str = ""
    slot: str | None = None
    replay_lag_bytes: int | None = None
    replay_lag_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Slots:
    """What keeps WAL on the server."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    #: max_slot_wal_keep_size, or None when there is no limit.
    keep_limit_bytes: int | None = None
    slots: tuple[SlotEntry, ...] = ()
    holders: tuple[Holder, ...] = ()
    standbys: tuple[Standby, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is in one partition, by what it last committed."""

    topic: str
    partition: int
    #: The next offset that it will read; None when it has never committed one.
    committed: int | None
    end: int
    #: Offsets from there to the end. Where a topic is compacted some of them may be empty.
    unread: int = 0
    #: The timestamp of the first message that it has not read; None when it is not known.
    unread_since: float | None = None


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A consumer group that has committed offsets in topics of the relay."""

    name: str
    #: As Kafka says it: "stable", "empty", "preparing rebalance" …
    state: str = ""
    #: Consumers in it now; None when the user may not know.
    members: int | None = None
    topics: tuple[str, ...] = ()
    unread: int = 0
    unread_since: float | None = None
    #: How many partitions it reads, and those that are furthest behind, the worst one first.
    partition_count: int = 0
    #: Partitions of them with messages, in which it has never committed: nobody knows what it has read there.
    uncommitted: int = 0
    partitions: tuple[PartitionLag, ...] = ()


@dataclass(frozen=True, slots=True)
class Consumers:
    """Who reads the relay's topics."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    #: How long the look took.
    seconds: float = 0.0
    groups: tuple[GroupEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A statement or request that was issued, with all those that were the same and ended in the same way."""

    #: "PostgreSQL", "registry" or "Kafka".
    service: str
    #: Without values of rows, and without secrets.
    text: str
    #: Empty when it went well, else the kind of failure; "under way" while there is no answer.
    result: str = ""
    count: int = 1
    #: When the first of them was issued, and the last.
    first: float = 0.0
    time: float = 0.0
    #: How long the last of them took, the slowest, and all together.
    seconds: float = 0.0
    slowest: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Commands:
    """What the engine's process has issued; the newest comes last."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    commands: tuple[CommandEntry, ...] = ()
    #: How many entries had to make room for newer ones.
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings that the engine was started with."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    settings: tuple[SettingEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class StageEntry:
    """How far a sampled change has come: see `bwtui.model.status.ChangeSample`."""

    sequence: int
    passed: tuple[float, ...] = ()
    batch: int = 0
    is_given_up: bool = False
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Stages:
    """How far the sampled changes have come that the engine still holds."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    changes: tuple[StageEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One version of a subject, as far as it was looked at."""

    version: int
    id: int | None = None
    #: What the registry says; most say nothing.
    registered: float | None = None
    #: Softly deleted: no schema is compared with it any more, and its id can still be read.
    is_deleted: bool = False
    #: Fields of the record, and how many were added, removed, or changed since the version before; None: not
    #: known, or nothing to compare with.
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
class Subject:
    """The versions of one subject of the schema registry."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    name: str = ""
    #: The compatibility level that it is held to, its own or the one for all.
    level: str = ""
    #: The oldest one first.
    versions: tuple[VersionEntry, ...] = ()
    #: Of the versions whose texts were asked for, as soon as they are known.
    texts: tuple[VersionText, ...] = ()


@dataclass(frozen=True, slots=True)
class LetterPlace:
    """Where a dead letter stands in the topic of dead letters."""

    #: Of which change, as `bwtui.kafka.letters.identity` has it.
    identity: str
    partition: int
    offset: int
    #: Letters of the same change that were read before it: only the newest few places are kept.
    before: int = 0


@dataclass(frozen=True, slots=True)
class Letters:
    """The topic of dead letters."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    #: Empty: the relay sends its letters to none.
    topic: str = ""
    #: Records that were read, how many of them are no letters, and how many before them were not read.
    records: int = 0
    foreign: int = 0
    left_out: int = 0
    #: Of the letters that were asked for.
    places: tuple[LetterPlace, ...] = ()


@dataclass(frozen=True, slots=True)
class RelayedTransaction:
    """A transaction with rows of the relay's tables, as the relay has met it."""

    #: Tells transactions apart: their xids come again after a wraparound. 0: it is being read now.
    number: int
    xid: int
    commit_lsn: str
    #: By PostgreSQL's clock.
    commit_time: float
    #: Changes of rows, and each TRUNCATE, whether they made a message or not; so far, while it is read.
    rows: int
    #: Keys and values of its messages.
    bytes: int
    #: When the first of it was there to read.
    received: float
    #: The tables that messages were made for, with their number, or 0 where they were not counted; None: in
    #: a backlog of small transactions of many tables they are not noted.
    tables: dict[str, int] | None = field(default_factory=dict)
    #: All of it was acknowledged. From its first row received, and from its COMMIT, until then; None: not
    #: yet, or nobody knows when.
    acknowledged: bool = False
    relayed_seconds: float | None = None
    commit_seconds: float | None = None
    #: How often it was read; more than once after a reconnect.
    reads: int = 1
    #: Only the largest tables are named: so many more there are, with so many messages.
    more_tables: int = 0
    more_messages: int = 0
    #: The server that went on does not have it, so that it will never be acknowledged.
    is_given_up: bool = False


@dataclass(frozen=True, slots=True)
class Transactions:
    """The newest transactions, and the largest of the last ten minutes, in no particular order."""

    time: float = 0.0
    failure: str = ""
    notes: tuple[str, ...] = ()
    #: All that were read since the relay's start, those without rows of its tables included.
    total: int = 0
    #: So many of the newest, and of the largest by rows and by bytes, are among them.
    newest: int = 0
    largest: int = 0
    #: The one that is being read now, if there is one.
    under_way: tuple[RelayedTransaction, ...] = ()
    transactions: tuple[RelayedTransaction, ...] = ()


Look: TypeAlias = Slots | Consumers | Commands | Configuration | Stages | Subject | Letters | Transactions
LOOKS: dict[str, type[Any]] = {
    "slots": Slots,
    "consumers": Consumers,
    "commands": Commands,
    "configuration": Configuration,
    "stages": Stages,
    "subject": Subject,
    "letters": Letters,
    "transactions": Transactions,
}
_PARTS: dict[str, type[Any]] = {
    "slots": SlotEntry,
    "holders": Holder,
    "standbys": Standby,
    "groups": GroupEntry,
    "partitions": PartitionLag,
    "commands": CommandEntry,
    "settings": SettingEntry,
    "changes": StageEntry,
    "versions": VersionEntry,
    "texts": VersionText,
    "places": LetterPlace,
    "under_way": RelayedTransaction,
    "transactions": RelayedTransaction,
}


def look_from_json(name: LookName, data: dict[str, Any]) -> Look:
    """Rebuild a look from ``dataclasses.asdict``; what this version does not know is left out."""
    return _rebuilt(LOOKS[name], data)  # type: ignore[no-any-return]


def _rebuilt(kind: type[Any], data: dict[str, Any]) -> Any:
    parts = {
        key: tuple(_rebuilt(_PARTS[key], one) for one in value) if key in _PARTS else value
        for key, value in data.items()
    }
    return made_of(kind, parts)
