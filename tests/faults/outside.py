"""A read_committed consumer alongside killed relays.

Its view must be complete, in order and free of repeats.
"""

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
    """Reads topics continuously. It uses nothing of the relay but the headers of its messages."""

    def __init__(self, services: ServiceAddresses, topics: list[str]) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": services.broker,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                # The consumer is at the end of a partition, as it usually is.
                "fetch.wait.max.ms": 10,
            }
        )
        self._topics = topics
        self._next: dict[tuple[str, int], int] = {}
        #: The changes seen so far: topic, LSN, ordinal, operation and key.
        self._seen: set[tuple[str, bytes, bytes, bytes, bytes | None]] = set()
        #: All transactions up to this LSN were seen, except for the later parts of one that is split.
        self._whole = 0
        self._newest = 0
        self.split = 0
        #: The session that sent each transaction, except for the later parts of one that is split.
        self._sessions: dict[int, bytes] = {}

    def __enter__(self) -> "Outside":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    @property
    def records(self) -> int:
        """Return the number of changes seen."""
        return len(self._seen)

    @property
    def transactions(self) -> int:
        """Return the number of PostgreSQL transactions seen."""
        return len(self._sessions)

    def settle(self) -> None:
        """Read until no more records arrive, while no relay runs; every transaction must be complete then."""
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < _SETTLED_SECONDS:
            if self.look():
                quiet_since = time.monotonic()
        self._whole = self._newest

    def look(self) -> int:
        """Read the records committed so far, and return their number."""
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
        # A change of a key sends two messages with the same ordinal.
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
