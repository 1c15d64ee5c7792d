"""Track the records that arrive in a topic while a process other than its relay writes there."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from bwtui.audit.canonical_values import ODD, Schemas, UndecodableMessage, decode_key
from bwtui.audit.partitioner import murmur2_of
from bwtui.errors import RefusedError
from bwtui.kafka.client import Config
from bwtui.kafka.scan import Split, SplitScan, pin
from bwtui.sink.destination import Offsets, TopicScanner

#: Maximum number of keys that are remembered while a table is repaired.
_MOST_KEYS = 500_000
#: Number of a partition's records that are sampled for key encodings, and how far before its end they begin.
_ENOUGH, _BEFORE = 1_000, 2_000
_PATIENCE_SECONDS = 5.0


class ConcurrentWrites:
    """The keys that others have sent since a topic was compared, and which of them preceded the repair's
    own.
    """

    def __init__(self, reader: TopicScanner, topic: str, start: Offsets, session: bytes) -> None:
        """Take the ``session`` that is in the headers of the repair's own messages."""
        self._reader = reader
        self._topic = topic
        self._at = start
        self._session = session
        #: The number of looks so far, and the look in which each key was last seen.
        self.looks = 0
        self._last_look: dict[bytes, int] = {}

    def since(self, number: int) -> set[bytes]:
        """Return the keys that others have sent after that look; 0: since the topic was compared."""
        return {key for key, advance_number in self._last_look.items() if advance_number > number}

    def advance(self) -> set[bytes]:
        """Read on to the end; return the keys whose own message came after another producer's in this look.

        Raises ConnectionFailed, and RefusedError if too many keys arrived.
        """
        end = self._reader.end_offsets(self._topic)
        foreign_keys: set[bytes] = set()
        overtaken: set[bytes] = set()
        for record in self._reader.keys(self._topic, self._at, end, lambda: None):
            if record.session != self._session:
                foreign_keys.add(record.key)
                overtaken.discard(record.key)
            elif record.key in foreign_keys:
                overtaken.add(record.key)
        self._at = end
        self.looks += 1
        self._last_look |= dict.fromkeys(foreign_keys, self.looks)
        if len(self._last_look) > _MOST_KEYS:
            raise RefusedError(
                f"more than {_MOST_KEYS:,} keys were written to topic {self._topic} since it was compared",
                "repair fewer tables at a time (--table), or when there are fewer writes",
            )
        return overtaken


@dataclass(slots=True)
class KeySample:
    """The encodings and partitions of a topic's newest keys."""

    spellings: Counter[str] = field(default_factory=Counter)
    #: Number of keys that Kafka's usual partitioner (murmur2) would have put into a different partition.
    misplaced: int = 0

    @property
    def spelling(self) -> str | None:
        """The most common encoding, in the terms of `decode_key`; None if there are no keys."""
        return self.spellings.most_common(1)[0][0] if self.spellings else None

    @property
    def is_misplaced(self) -> bool:
        """Whether most of them are not where that partitioner would put them."""
        return 2 * self.misplaced > self.spellings.total()


def sample_of(config: Config, topic: str, schemas: Schemas) -> KeySample:
    """Return a sample of the newest keys of a topic. Raises ConnectionFailed."""
    offsets = pin(config, [topic]).offsets
    for before in (_BEFORE, None):
        sample = KeySample()
        for (_, partition), (low, high) in offsets.items():
            start = low if before is None else max(low, high - before)
            keys = list(islice(_keys(config, Split(topic, partition, start, high)), _ENOUGH))
            sample.spellings.update(_spelled(key, schemas) for key in keys)
            places = murmur2_of(pa.array(keys, pa.binary())).to_pylist()
            sample.misplaced += sum(place % len(offsets) != partition for place in places)
        if sample.spellings:
            break
    return sample


def _spelled(key: bytes, schemas: Schemas) -> str:
    try:
        return decode_key(key, schemas)[1]
    except UndecodableMessage:
        return ODD


def _keys(config: Config, split: Split) -> Iterator[bytes]:
    for part in SplitScan(config, split, "read_uncommitted", _PATIENCE_SECONDS):
        yield from (key for message in part.messages if (key := message.key()) is not None)
