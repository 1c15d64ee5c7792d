"""Kafka's records of a key while its journey is shown, queried in threads that nothing waits for."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from bwtui.errors import BwtuiError
from bwtui.tui import figures
from bwtui.tui.audit.kafka_records import Ask, RecordDecoder, SingleRecordReader
from bwtui.tui.journey.call_thread import CallThread
from bwtui.tui.plain import with_hint

if TYPE_CHECKING:
    from bwtui.kafka.key_reader import KeyReader, KeyRecords, StoredRecord
    from bwtui.model.service_views import Consumers

#: Topic, partition and offset.
Place = tuple[str, int, int]
#: Returns whether a record's key bytes are those of the key.
IsKey = Callable[[bytes], bool]
_UNKNOWN = "it is not known where Kafka is: give -b to 'bwtui open'"
_KEY, _RECORD, _GROUPS = "the key's records", "the record", "who reads the topic"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FetchedRecord:
    """The record at a place, or the kind of hole there, and the Unix time of the query."""

    what: "StoredRecord | str"
    time: float


class KafkaLookups:
    """The records of a key, single records, and the consumer groups of their topic."""

    def __init__(
        self,
        connect: Callable[[], SingleRecordReader | None],
        make_reader: Callable[[Ask], RecordDecoder],
        clock: Callable[[], float],
    ) -> None:
        """``connect`` opens the connection to Kafka; it may take a while, and raise BwtuiError.

        ``clock`` returns Unix seconds.
        """
        self._connect = connect
        self._clock = clock
        self._make_reader = make_reader
        self._side: SingleRecordReader | None = None
        self._keys: KeyReader | None = None
        self._records = CallThread("journey records")
        self._groups = CallThread("journey groups")
        self._stopped = threading.Event()
        #: Start of each pending query, by the monotonic clock.
        self._since: dict[str, float] = {}
        #: Increases with every change of the results.
        self.version = 0
        self.failure = ""
        #: Decodes the records found. It has cached their schemas, so that it need not query the registry
        #: again.
        self.reader: RecordDecoder | None = None
        self.found: KeyRecords | None = None
        self.groups: Consumers | None = None
        self.groups_failure = ""
        #: Unix times of these queries; later records and commits are not in the results.
        self.found_time = self.groups_time = 0.0
        self._places: dict[Place, FetchedRecord] = {}

    async def search(
        self, topic: str, knows: Callable[[RecordDecoder], IsKey], partition: int | None = None
    ) -> None:
        """Search for the key's records; ``knows`` creates the function that recognises them."""

        def look() -> "KeyRecords | None":
            keys = self._opened()
            if keys is None or self.reader is None:
                return None
            found = keys.of_key(topic, knows(self.reader), partition)
            # Confluent's wire format begins with a zero byte and the 4-byte schema id: decode one value of
            # each schema.
            heads = {(one.value or b"")[:5]: one.value for one in found.records}
            for value in heads.values():
                self.reader.read(value)
            return found

        try:
            self.found, self.found_time = await self._asked(_KEY, look, self._records)
            self.failure = "" if self.found is not None else _UNKNOWN
        except BwtuiError as error:
            self.failure = with_hint(error)
        self.version += 1

    async def look_at(self, place: Place) -> None:
        """Read the record at a place, unless it is cached or an earlier query failed."""
        if place in self._places or self.failure:
            return

        def look() -> "StoredRecord | str | None":
            keys = self._opened()
            found = None if keys is None else keys.record(*place)
            if self.reader is not None and found is not None and not isinstance(found, str):
                self.reader.read(found.value)
            return found

        try:
            found, asked = await self._asked(_RECORD, look, self._records)
            if found is None:
                self.failure = _UNKNOWN
            else:
                self._places[place] = FetchedRecord(found, asked)
        except BwtuiError as error:
            self.failure = with_hint(error)
        self.version += 1

    async def look_at_groups(self, topic: str) -> None:
        """Query the consumer groups of a topic."""
        try:
            side, _ = await self._asked(_GROUPS, self._connected, self._groups)
            if side is not None:
                ask = partial(side.groups, topic)
                groups, self.groups_time = await self._asked(_GROUPS, ask, self._groups)
                self.groups, self.groups_failure = groups, groups.failure
        except BwtuiError as error:
            self.groups_failure = with_hint(error)
        self.version += 1

    def held(self, place: Place) -> FetchedRecord | None:
        """Return the cached record or hole at a place."""
        if (known := self._places.get(place)) is not None:
            return known
        met = None if self.found is None else self.found.at(*place[1:])
        return None if met is None else FetchedRecord(met, self.found_time)

    def forget(self) -> None:
        """Discard the results, so that they are queried again."""
        self.failure = self.groups_failure = ""
        self.found = self.groups = None
        self._places.clear()
        self.version += 1

    def waits_for_records(self) -> str:
        """Return that records are being queried, and for how long, or an empty string."""
        return self._waits(_RECORD) or self._waits(_KEY)

    def waits_for_groups(self) -> str:
        """Return the same for the consumer groups."""
        return self._waits(_GROUPS)

    @property
    def seconds_waited(self) -> int:
        """Whole seconds since the start of the oldest pending query; the shown text changes with them."""
        return int(time.monotonic() - min(self._since.values(), default=time.monotonic()))

    def close(self) -> None:
        """Start no more queries; pending ones end on their own."""
        self._stopped.set()
        self._groups.close()
        self._records.close(lambda: self._keys.close() if self._keys is not None else None)

    async def _asked(self, what: str, call: Callable[[], T], asking: CallThread) -> tuple[T, float]:
        """Return the result of a query, and the time when it began."""

        def dated() -> tuple[T, float]:
            begun = self._clock()
            return call(), begun

        self._since.setdefault(what, time.monotonic())
        self.version += 1
        try:
            return await asking.make(dated)
        finally:
            self._since.pop(what, None)

    def _waits(self, what: str) -> str:
        if what not in self._since:
            return ""
        broker = f" at {self._side.broker}" if self._side is not None and self._side.broker else ""
        waited = time.monotonic() - self._since[what]
        return f"asking Kafka{broker}…" + (f" for {figures.duration(int(waited))}" if waited >= 1 else "")

    # The rest runs in the threads.

    def _connected(self) -> SingleRecordReader | None:
        if self._side is None:
            self._side = self._connect()
        return self._side

    def _opened(self) -> "KeyReader | None":
        side = self._connected()
        if self._keys is None and side is not None:
            self.reader = self._make_reader(side.ask)
            self._keys = side.reader(self._stopped.is_set)
        return self._keys
