"""A reader with read_committed, beside relays that are killed: what it sees is whole, once, and in order."""

import time
import uuid
from types import TracebackType

from confluent_kafka import Consumer, KafkaError, TopicPartition

from bwtui.kafka.client import WITHOUT_LEADER, headers_of
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.records import OUTSIDE
from tests.raw_topic import place_of

_SETTLED_SECONDS = 0.3
_PATIENCE = 120.0


class Outside:
    """Reads topics on and on. It knows nothing of the relay but the headers of its messages."""

    def __init__(self, services: ServiceAddresses, topics: list[str]) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": services.broker,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                # At the end of a partition, which is where it nearly always stands.
                "fetch.wait.max.ms": 10,
            }
        )
        self._topics = topics
        self._next: dict[tuple[str, int], int] = {}
        #: What was seen: topic, LSN, ordinal, operation and key.
        self._seen: set[tuple[str, bytes, bytes, bytes, bytes | None]] = set()
        #: All of the transactions up to this LSN were seen, but for the later parts of one that is split.
        self._whole = 0
        self._newest = 0
        self.split = 0
        #: Which session has sent a transaction, but for the later parts of one that is split.
        self._sessions: dict[int, bytes] = {}

    def __enter__(self) -> "Outside":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    @property
    def records(self) -> int:
        """How many were seen."""
        return len(self._seen)

    @property
    def transactions(self) -> int:
        """Of how many transactions of PostgreSQL those are."""
        return len(self._sessions)

    def settle(self) -> None:
        """Look, while no relay runs, until nothing more comes: what is there now is whole transactions."""
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < _SETTLED_SECONDS:
            if self.look():
                quiet_since = time.monotonic()
        self._whole = self._newest

    def look(self) -> int:
        """Read what is committed by now, and return how many records that were."""
        known = self._consumer.list_topics(timeout=30).topics
        places = {(t, p) for t in self._topics if t in known for p in known[t].partitions}
        self._consumer.assign([TopicPartition(*place, self._next.get(place, 0)) for place in places])
        before, until = len(self._seen), time.monotonic() + _PATIENCE
        while places:
            assert time.monotonic() < until, f"nobody could read {places}"
            for message in self._consumer.consume(5_000, 0.05):
                error = message.error()
                if error is None:
                    topic, partition, offset = place_of(message)
                    self._next[topic, partition] = offset + 1
                    self._take(topic, message.key(), dict(headers_of(message)))
                elif error.code() == KafkaError._PARTITION_EOF:
                    places.discard((message.topic(), message.partition()))
                else:
                    assert error.code() in WITHOUT_LEADER or error.retriable(), error
        return len(self._seen) - before

    def _take(self, topic: str, key: bytes | None, headers: dict[str, bytes | None]) -> None:
        operation = headers.get("bwtui.op") or b"leftover"
        lsn, ordinal = headers.get("bwtui.lsn") or b"", headers.get("bwtui.ordinal") or b""
        # A change of a key has two messages of one number.
        identity = (topic, lsn, ordinal, operation, key)
        assert identity not in self._seen, f"it came twice: {identity}"
        self._seen.add(identity)
        if operation.decode() in OUTSIDE:
            return
        at = int.from_bytes(lsn)
        if "bwtui.part" in headers:
            self.split += 1
        else:
            assert at > self._whole, (
                f"the transaction at {at:X} was torn: {identity} came behind {self._whole:X}"
            )
            session = headers["bwtui.session"] or b""
            assert self._sessions.setdefault(at, session) == session, (
                f"the transaction at {at:X} was torn: {identity} is another session's"
            )
        self._newest = max(self._newest, at)
