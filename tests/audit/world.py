"""A made-up recording and its topics, with the truth about every message and every record.

`making` makes one, and `planting` then breaks it.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

DAY_MS = 86_400_000
NOW_MS = 2_000_000_000_000


@dataclass(eq=False)
class Send:
    """A message of the recording; ``truth`` is the class that the audit must find."""

    id: int
    pass_number: int
    lsn: int
    ordinal: int
    part: int
    op: str
    time_ms: int
    topic: str | None
    key_digest: int | None
    value_digest: int | None
    key_hash: int | None
    is_repeat: bool = False
    state: str = "acknowledged"
    without: str | None = None
    partition: int | None = None
    offset: int | None = None
    truth: str = "matched"
    #: The digest of its headers.
    headers_digest: int | None = None

    @property
    def in_transaction(self) -> bool:
        """Return whether it belongs to a transaction."""
        return self.op not in ("snapshot", "backfill", "cleanup")

    @property
    def identity(self) -> tuple[int, int, int, str | None]:
        """The fields that a repeat has in common with the first message."""
        return self.lsn, self.ordinal, self.part, self.topic

    @property
    def place(self) -> tuple[str, int, int]:
        """The topic, partition and offset of an acknowledged message."""
        assert self.topic is not None and self.partition is not None and self.offset is not None
        return self.topic, self.partition, self.offset


@dataclass(eq=False)
class Record:
    """A record in Kafka."""

    key_digest: int | None
    value_digest: int | None
    ts: int
    truth: str
    #: The message that the audit must match with it.
    send: Send | None = None
    is_ours: bool = True
    lsn: int | None = None
    ordinal: int | None = None
    #: Its headers name a run that is not in the recording.
    has_other_session: bool = False
    #: Compacted between the scan and the inspection.
    is_gone: bool = False
    headers_digest: int | None = None


@dataclass(eq=False)
class Topic:
    """A topic with one log for each partition: offset → record, with holes."""

    name: str
    partitions: int
    compacts: bool
    deletes: bool
    retention_ms: int = -1
    retention_bytes: int = -1
    lag_ms: int = 0
    delete_retention_ms: int = DAY_MS
    log_append: bool = False
    settings_known: bool = True
    keyed: bool = True
    logs: list[dict[int, Record]] = field(default_factory=list)
    low: list[int] = field(default_factory=list)
    high: list[int] = field(default_factory=list)
    #: Holes of other transactions' markers, which foreign records may fill.
    slots: list[list[int]] = field(default_factory=list)
    hole_kinds: dict[tuple[int, int], str] = field(default_factory=dict)

    def home(self, key_hash: int | None) -> int:
        """Return the partition of a key, which must exist."""
        assert key_hash is not None
        return key_hash % self.partitions

    def append(self, p: int, record: Record) -> int:
        """Put a record at the end of a partition and return its offset."""
        offset = self.high[p]
        self.logs[p][offset] = record
        self.high[p] = offset + 1
        return offset

    def records(self) -> Iterator[tuple[int, int, Record]]:
        """Yield (partition, offset, record) of all records."""
        for p, log in enumerate(self.logs):
            for o in sorted(log):
                yield p, o, log[o]


@dataclass(eq=False)
class World:
    """The recording, the topics, and the truth."""

    rng: random.Random
    topics: dict[str, Topic]
    sends: list[Send] = field(default_factory=list)
    confirmed: int = 0
    passes: dict[int, bool] = field(default_factory=dict)
    #: Pass over the stream → one past the last LSN that the pass recorded as reached.
    reached: dict[int, int] = field(default_factory=dict)
    #: Passes of a relay with --exactly-once.
    exactly_once: set[int] = field(default_factory=set)
    #: Pass → the id before which all of its messages are known to be committed.
    committed: dict[int, int] = field(default_factory=dict)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    equal_pairs: set[int] = field(default_factory=set)
    miscoded: set[int] = field(default_factory=set)
    keys: dict[tuple[str, int], int] = field(default_factory=dict)
    used_keys: set[tuple[str | None, int | None]] = field(default_factory=set)
    next_value: int = 1_000_000

    def fresh_value(self) -> int:
        """Return a value that no other message has."""
        self.next_value += 1
        return self.next_value

    def topic_of(self, send: Send) -> Topic:
        assert send.topic is not None
        return self.topics[send.topic]

    def place_of(self, send: Send) -> tuple[int, int] | None:
        """Return (partition, offset) of the record that matches this message, or None."""
        for p, o, record in self.topic_of(send).records():
            if record.send is send:
                return p, o
        return None

    def is_confirmed(self, send: Send) -> bool:
        """Return whether the relay would not send it again."""
        if send.in_transaction:
            return send.lsn <= self.confirmed
        reached = self.reached.get(send.pass_number)
        return self.passes[send.pass_number] and (reached is None or send.lsn < reached)
