"""Tombstones for rows in partitions that are not their key's own.

A relay sends a key to one partition. So a row that another producer put elsewhere, or that was sent before
partitions were added to the topic, stays there without end: no change of the row and no compaction reaches
it. The repair sends these tombstones itself, directly into those partitions, where no relay writes the key.
They are acknowledged before the keys' rows are re-sent, so a consumer of all partitions gets the row last.
"""

import base64
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Self

from confluent_kafka import KafkaError, KafkaException, Producer

from bwtui.durable_files import open_private, private_parent
from bwtui.errors import ConnectionFailed, RefusedError, ServiceRefused
from bwtui.file_errors import file_failed
from bwtui.kafka.client import client_config, new_client, producer_config
from bwtui.kafka.columns import hashes_of
from bwtui.kafka.scan import partitions
from bwtui.model.headers import SESSION
from bwtui.repair.hints import REPAIR_AGAIN, REPAIR_WHEN_FIXED
from bwtui.settings import RelaySettings
from bwtui.verify.folding import LiveRecord

#: Number of records that are checked together.
_AT_ONCE = 5_000
#: Maximum time for the brokers to acknowledge the last tombstones (seconds).
_TIMEOUT_SECONDS = 30.0


class KeyPartitioner:
    """Determines the partition to which the relay's producer sends a key."""

    def __init__(self, settings: RelaySettings) -> None:
        """Prepare without any requests. Raises UsageError."""
        self._config = client_config(settings)
        self._hash = hashes_of(str(producer_config(settings)["partitioner"]))
        #: Topic → its number of partitions when first requested.
        self.counts: dict[str, int] = {}

    def of(self, topic: str, keys: Sequence[bytes]) -> list[int]:
        """Return the partition of each key. Raises ConnectionFailed."""
        if topic not in self.counts:
            self.counts[topic] = partitions(self._config)[1][topic]
        homes: list[int] = (self._hash(keys) % self.counts[topic]).tolist()
        return homes

    def check(self, topic: str) -> None:
        """Check that no partitions were added to the topic since the comparison. Raises RefusedError."""
        now = partitions(self._config)[1].get(topic, 0)
        if now != self.counts[topic]:
            raise RefusedError(
                f"topic {topic} had {self.counts[topic]} partitions when it was compared, and has {now} now",
                f"nothing was sent; {REPAIR_AGAIN}",
            )


class StrayList:
    """The tombstones for one topic, in a file readable only by its owner; written within a ``with`` block."""

    def __init__(self, path: Path, topic: str, homes: KeyPartitioner) -> None:
        self.topic = topic
        self.count = 0
        self._path = path
        self._homes = homes
        self._held: list[LiveRecord] = []
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if error[0] is None:
                self._write()
        finally:
            if self._file is not None:
                self._file.close()

    def add(self, places: Iterable[LiveRecord]) -> None:
        """Add the records that are not in their key's partition. Raises StateFailed and ConnectionFailed."""
        self._held += places
        if len(self._held) >= _AT_ONCE:
            self._write()

    def _write(self) -> None:
        pending, self._held = self._held, []
        homes = self._homes.of(self.topic, [place.key for place in pending]) if pending else []
        lines = [
            b"%d %d %s\n" % (place.partition, place.timestamp_ms, base64.b64encode(place.key))
            for place, home in zip(pending, homes, strict=True)
            if place.partition != home
        ]
        if not lines:
            return
        try:
            if self._file is None:
                private_parent(self._path)
                self._file = open(self._path, "wb", opener=open_private)  # noqa: SIM115
            self._file.writelines(lines)
        except OSError as error:
            raise file_failed(f"the list of tombstones {self._path} can't be written", error) from error
        self.count += len(lines)

    def __iter__(self) -> Iterator[LiveRecord]:
        if not self.count:
            return
        with self._path.open("rb") as file:
            for line in file:
                partition, timestamp, key = line.split()
                yield LiveRecord(int(partition), int(timestamp), base64.b64decode(key))


def send_strays(
    settings: RelaySettings,
    homes: KeyPartitioner,
    lists: Sequence[StrayList],
    session: bytes | None,
    on_count: Callable[[int, int], None],
) -> int:
    """Send the tombstones; return their number once all are acknowledged.

    ``session`` is for their headers, if others have to recognise them. Raises RefusedError, ServiceRefused
    and ConnectionFailed.
    """
    lists = [one for one in lists if one.count]
    if not lists:
        return 0
    for one in lists:
        homes.check(one.topic)
    sending = _TombstoneProducer(settings, session)
    total = sum(one.count for one in lists)
    for one in lists:
        for place in one:
            sending.send(one.topic, place)
            on_count(sending.sent, total)
    sending.settle()
    return total


class _TombstoneProducer:
    """A producer of tombstones for given partitions."""

    def __init__(self, settings: RelaySettings, session: bytes | None) -> None:
        self._producer = new_client(Producer, producer_config(settings))
        self._headers: list[tuple[str, str | bytes | None]] | None = [(SESSION, session)] if session else None
        self._error: KafkaError | None = None
        self.sent = 0

    def send(self, topic: str, place: LiveRecord) -> None:
        """Send a tombstone with the timestamp of the row that it deletes: a newer row stays the newest."""
        when = max(0, min(place.timestamp_ms, time.time_ns() // 1_000_000))
        until = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            try:
                self._producer.produce(
                    topic,
                    key=place.key,
                    partition=place.partition,
                    timestamp=when,
                    headers=self._headers,
                    on_delivery=self._noted,
                )
                break
            except BufferError:
                if time.monotonic() > until:
                    self._fail("the brokers accept no more messages")
                self._producer.poll(0.1)
            except KafkaException as error:
                raise ServiceRefused(
                    f"the tombstone can't be sent to topic {topic}: {error}", REPAIR_WHEN_FIXED
                ) from error
        self.sent += 1
        self._producer.poll(0)
        self._raise()

    def settle(self) -> None:
        """Wait until all are acknowledged."""
        if remaining := self._producer.flush(_TIMEOUT_SECONDS):
            self._fail(
                f"{remaining:,} tombstones were not acknowledged within {_TIMEOUT_SECONDS:.0f} seconds"
            )
        self._raise()

    def _noted(self, error: KafkaError | None, _: object) -> None:
        self._error = self._error or error

    def _raise(self) -> None:
        if self._error is not None:
            raise ServiceRefused(
                f"Kafka refused a tombstone of a stray row: {self._error.str()}",
                REPAIR_WHEN_FIXED,
            )

    def _fail(self, why: str) -> None:
        self._producer.purge()
        raise ConnectionFailed(f"not all tombstones were sent: {why}", REPAIR_WHEN_FIXED)
