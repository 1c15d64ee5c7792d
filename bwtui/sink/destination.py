"""The destination of a relay's messages: a sink, and the other interfaces that its kind has.

Another kind of sink is a module in this package with the functions of `SinkKind`; `RelaySettings.sink` names
it.
"""

import contextlib
import importlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from bwtui.durable_files import open_private, private_parent
from bwtui.errors import RefusedError
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.model.service_views import Consumers
from bwtui.model.status import ExactlyOnceStatus
from bwtui.settings import RelaySettings

# Count messages by topic, in memory and in a file that outlives a killed process.
#
# Each count is written without waiting for the disk: the kernel keeps it when the process is killed, and
# only a
# crash of the machine loses it. The file is not mapped into memory, because a full disk would then end the
# process on a file system that copies on write.

#: Maximum number of topics whose counts are in the file.
_MOST_TOPICS = 8_191
#: Each is a signed integer of eight bytes, which is written at once.
_BYTES = 8


class MessageCounts:
    """The numbers of messages handed over to Kafka; only one thread may call `add`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._places: dict[str, int] = {}
        self._path = Path()
        self._fd: int | None = None
        self._has_failed = False

    def __getitem__(self, topic: str) -> int:
        return self._counts[topic]

    def add(self, topic: str, count: int) -> None:
        """Count messages before they are handed over, or subtract those that were not accepted."""
        self._counts[topic] += count
        if (place := self._places.get(topic)) is not None:
            self._store(place, self._counts[topic])

    def keep(self, path: Path, run: int, topics: Iterable[str]) -> dict[str, int]:
        """Also count ``topics`` in the file ``path`` from now on; return their places in it.

        The first call creates the file with the number ``run`` in front. If a count could not be written, it
        returns nothing. Raises OSError.
        """
        if self._fd is None:
            self._path, self._fd = path, _created(path)
            self._store(0, run)
        for topic in topics:
            if topic not in self._places and len(self._places) < _MOST_TOPICS:
                self._places[topic] = place = len(self._places) + 1
                written = None
                # `add` may count a message in another thread between reading and writing.
                while written != self._counts[topic]:
                    written = self._counts[topic]
                    self._store(place, written)
        return {} if self._has_failed else dict(self._places)

    def _store(self, place: int, count: int) -> None:
        if self._has_failed or self._fd is None:
            return
        try:
            os.pwrite(self._fd, count.to_bytes(_BYTES, sys.byteorder, signed=True), place * _BYTES)
        except OSError:
            # Without the file, the next start knows no bounds.
            self._has_failed = True
            with contextlib.suppress(OSError):
                self._path.unlink()


def stored_counts(path: Path) -> tuple[int, ...]:
    """Return the content of such a file: the run's number, then the counts by place. Raises OSError."""
    content = path.read_bytes()
    return tuple(memoryview(content[: len(content) // _BYTES * _BYTES]).cast("q"))


def _created(path: Path) -> int:
    private_parent(path)
    # A process that still has the former file open keeps it.
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    with open(path, "wb", opener=open_private) as file:
        # The whole file at once: a count that does not fit on the disk would only be noticed later.
        file.write(bytes((1 + _MOST_TOPICS) * _BYTES))
        file.flush()
        return os.dup(file.fileno())


# The interface of every sink, and the distinction between a failed delivery and a service outage.


class Message(NamedTuple):
    """One message: framed key and value bytes (None is null), and the commit time in Unix milliseconds."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes]] | None = None


#: The fields of a `Message`, equivalent to one for code that only unpacks it.
MessageTuple = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes]] | None]


@dataclass(frozen=True, slots=True)
class DeliveryFailure:
    """The reason why a message was not delivered.

    ``is_outage``: the service is at fault, so the same message may succeed later; otherwise the message is.
    ``span`` still counts the message as pending and failed.
    """

    topic: str
    reason: str
    is_outage: bool
    hint: str = "the broker's log says why"
    message: Message | None = None
    span: DeliverySpan | None = None
    #: A retry can't help: the topic does not exist, or the producer has a fatal error.
    is_final: bool = False
    #: Rights or settings are at fault, so every other message for the topic fails too.
    is_setup: bool = False
    #: The receipt that the message was sent with, if any, and its place in it.
    receipt: Receipt | None = None
    index: int = 0


class Sink(Protocol):
    """Delivers messages: each is accepted, then durable or failed; called from the relay's main thread.

    Interfaces that only some kinds of sinks have are separate, in `bwtui.sink.destination`.
    """

    def send(
        self, topic: str, messages: Sequence[MessageTuple], span: DeliverySpan, receipt: Receipt | None = None
    ) -> None:
        """Accept ``messages``, in order, and count them in ``span.pending`` until each is durable.

        ``receipt`` records where each of them is then.
        """

    def poll(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for delivery reports, and let them count down their spans."""

    def flush(self, timeout: float) -> bool:
        """Wait until every message was delivered or has failed; return False after ``timeout`` seconds."""

    def take_failures(self) -> list[DeliveryFailure]:
        """Return the failures since the last call, in the order of their reports."""

    def queued(self) -> int:
        """Return the number of messages that were accepted and are neither durable nor failed."""

    def answered(self) -> int:
        """Return the number of messages that became durable or failed; discarded messages do not count."""

    def discard(self, *, in_order: bool) -> None:
        """Drop everything that is in flight and start again: those messages will be read again.

        ``in_order``: after a message that fails, nothing more is delivered until the next call; otherwise
        messages are independent. It is True initially.
        """


if TYPE_CHECKING:
    from bwtui.encode.registry import LocalRegistry, SchemaRegistry

#: Maximum message size if only the recording's own format limits it.
_MAX_MESSAGE_BYTES = 1 << 30
#: A name, and a check that returns its result in a few words, or raises BwtuiError.
Precondition = tuple[str, Callable[[], str]]
#: Offsets by partition.
Offsets = dict[int, int]
#: The end of a partition that has no leader.
UNKNOWN_END = -1


class TopicEnd(NamedTuple):
    """The end offsets of a topic's partitions, and its id, which a recreated topic does not share.

    The id is "" if it is unknown; for offsets see `UNKNOWN_END`.
    """

    id: str
    offsets: Offsets

    @classmethod
    def from_json(cls, id: Any, offsets: Any) -> "TopicEnd":
        """Return the end that JSON stores as a list of both."""
        return cls(str(id), {int(number): int(end) for number, end in offsets.items()})


class KeyRecord(NamedTuple):
    """The key of a record; ``session`` is the header bwtui.session, or None."""

    key: bytes
    is_tombstone: bool
    session: bytes | None


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """The limits of a topic: ``compacted`` ones require keys, ``max_message_bytes`` limits one message.

    The limit is the producer's. The topic's own limit applies to the compressed batch, which only the broker
    sees.
    """

    max_message_bytes: int
    compacted: bool
    partitions: int = 1
    #: Kafka's own ID of the topic; "" if unknown.
    id: str = ""
    #: True if it was just created, so that it was empty.
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class PresentTopic:
    """Identifies a topic among those of the same name, and counts the records lost at its start."""

    #: "" if the service has none.
    id: str
    partitions: int
    #: The sum of the first offsets of all partitions; None if unknown.
    lost: int | None = None
    #: True if it deletes records by age or size.
    deletes: bool = False


#: Topics by name; None for a missing one.
PresentTopics = dict[str, PresentTopic | None]
#: The limits of topics by name, or why a topic can't be used.
Limits = dict[str, TopicLimits | RefusedError]


class SinkService:
    """The service of a sink, and its topics. This class is for sinks without one: any topic is valid."""

    name = ""
    #: Maximum time that a message waits for others to be sent with it (seconds), from the settings.
    lingers = 0.0

    def check(self) -> str:
        """Return the service's identity. Raises ConnectionFailed."""
        return ""

    def outage(self) -> str | None:
        """Return one sentence on why nothing can be delivered at present, or None."""
        return None

    def ensure_topics(self, topics: Mapping[str, bool]) -> Limits:
        """Create those of the ``topics`` topics that are missing; the value says whether a topic is keyed.

        They are created all together. Any thread may call it. Raises ConnectionFailed, which is worth a
        retry.
        """
        return {topic: TopicLimits(_MAX_MESSAGE_BYTES, compacted=False) for topic in topics}

    def present_topics(self, topics: Collection[str], *, with_beginnings: bool) -> PresentTopics:
        """Return the present state of ``topics``, as far as it can be determined; any thread may call it.

        ``with_beginnings``: include how many records they have lost. Raises ConnectionFailed.
        """
        return {}

    def compact_command(self, topic: str) -> str:
        """Return the command that makes ``topic`` keep the latest record of each key."""
        return ""

    def delete_command(self, topic: str) -> str:
        """Return the command that deletes ``topic``."""
        return ""

    def ends(self, topics: Collection[str]) -> dict[str, TopicEnd]:
        """Return the end offset of each partition of ``topics``; missing topics are left out.

        Only one thread at a time may call it. Raises ConnectionFailed.
        """
        return {}

    def cluster_now(self) -> str:
        """Return the service's ID, "" if it has none; same thread as `ends`. Raises ConnectionFailed."""
        return ""

    def refresh(self, topic: str) -> None:
        """Have the producer fetch a topic's partitions now. Any thread may call it."""

    def take_limits(self, limits: Limits) -> None:
        """Pass the result of `ensure_topics` to the sink; for the main thread, which alone owns the sink."""

    def close(self) -> None:
        """Close every connection, the sink's too, without waiting for messages in flight."""


class Purgeable:
    """Holds back messages that are accepted but not in flight; here no message waits."""

    def hold_back(self) -> None:
        """Send no more accepted messages until `Sink.discard`; any thread may call it.

        Messages in flight to the service can't be stopped. The others fail.
        """

    def exactly_once(self) -> ExactlyOnceStatus | None:
        """Return the state of transactions, or None if messages are sent without; any thread may call it."""
        return None

    def handed_over(self, topic: str) -> int:
        """Return how many messages were sent to ``topic`` or are in flight; any thread may call it."""
        return 0

    def message_counts(self) -> MessageCounts:
        """Return what counts the messages, so that they can also be counted in a file."""
        return MessageCounts()

    def transactions(self, topic: str) -> int:
        """Return how many transactions have a message for ``topic``, an open one included; any thread."""
        return 0

    def before_sending(self, check: Callable[[], None]) -> None:
        """Call ``check`` before anything is sent to the service; it may call `hold_back`."""


class TopicScanner:
    """Reads topics back, for the rows of an interrupted snapshot; here they are empty."""

    def end_offsets(self, topic: str) -> Offsets:
        """Return each partition's end offset in ``topic``; any thread may call it. Raises
        ConnectionFailed.
        """
        return {}

    def keys(
        self, topic: str, start: Offsets, end: Offsets, on_wait: Callable[[], None]
    ) -> Iterator[KeyRecord]:
        """Yield every keyed record in ``[start, end)``, in order within a partition. Raises ConnectionFailed.

        ``on_wait`` is called between reads, and may raise to stop.
        """
        return iter(())

    def count(self, topic: str, start: Offsets, end: Offsets, on_wait: Callable[[], None]) -> int:
        """Return the number of records in ``[start, end)``, without the markers of transactions; see `keys`.

        Raises ConnectionFailed.
        """
        return 0


class ConsumerFinder(Protocol):
    """Finds the consumers of the topics; for one thread."""

    def poll(self, topics: Collection[str]) -> Consumers:
        """Return the consumers of ``topics`` and their lag; the result reports what can't be determined."""

    def close(self) -> None:
        """Disconnect; the next call of `look` connects again."""


class NoConsumerFinder:
    """For a destination without topics; see `ConsumerFinder`."""

    def poll(self, topics: Collection[str]) -> Consumers:
        """Return that there are no topics."""
        return Consumers(time.time(), "this relay only records: it writes into no topic")

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Destination:
    """A sink with all interfaces that belong to it."""

    sink: Sink
    #: Assigns IDs to the schemas of its messages.
    registry: "SchemaRegistry | LocalRegistry"
    service: SinkService = field(default_factory=SinkService)
    recall: Purgeable = field(default_factory=Purgeable)
    readback: TopicScanner = field(default_factory=TopicScanner)
    readers: ConsumerFinder = field(default_factory=NoConsumerFinder)
    #: The service's address as the user gave it.
    address: str = ""
    #: The services that are checked before the relay starts, in addition to PostgreSQL, in words.
    checked: str = ""

    def close(self) -> None:
        """Close every connection."""
        self.service.close()
        self.registry.close()


class SinkKind(Protocol):
    """The module of one kind of sink."""

    def open_destination(self, settings: RelaySettings) -> Destination:
        """Open it; no connection is needed yet. Raises UsageError."""

    def open_service(self, settings: RelaySettings) -> tuple[Sink, SinkService]:
        """Open only the sink and its service, in a process that needs nothing else. Raises UsageError."""

    def preconditions(self, settings: RelaySettings) -> Sequence[Precondition]:
        """Return the prerequisites there for starting a relay; the checks create and change nothing."""

    def present_limits(self, settings: RelaySettings, topics: Sequence[str]) -> Limits:
        """Return the limits of those of ``topics`` that exist. Raises ConnectionFailed."""


def kind_of(settings: RelaySettings) -> SinkKind:
    """Return the kind of sink that ``settings`` name."""
    return cast(SinkKind, importlib.import_module(f"bwtui.sink.{settings.sink}"))
