"""The destination of a relay's messages: a sink, and the other interfaces that its kind has.

Another kind of sink is a module in this package with the functions of `SinkKind`; `RelaySettings.sink` names
it.
"""

import importlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from bwtui.errors import RefusedError
from bwtui.model.service_views import Consumers
from bwtui.model.status import ExactlyOnceStatus
from bwtui.settings import RelaySettings
from bwtui.sink.base import Sink

if TYPE_CHECKING:
    from bwtui.encode.local_registry import LocalRegistry
    from bwtui.encode.registry import SchemaRegistry

#: Maximum message size if only the recording's own format limits it.
_MAX_MESSAGE_BYTES = 1 << 30
#: A name, and a check that returns its result in a few words, or raises BwtuiError.
Precondition = tuple[str, Callable[[], str]]
#: Offsets by partition.
Offsets = dict[int, int]


class TopicEnd(NamedTuple):
    """The end offsets of a topic, and its id, which a recreated topic does not share; "" if unknown."""

    id: str
    offsets: Offsets


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

    def before_sending(self, look: Callable[[], None]) -> None:
        """Call ``look`` before anything is sent to the service; it may call `hold_back`."""


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


class ConsumerFinder(Protocol):
    """Finds the consumers of the topics; for one thread."""

    def look(self, topics: Collection[str]) -> Consumers:
        """Return the consumers of ``topics`` and their lag; the result reports what can't be determined."""

    def close(self) -> None:
        """Disconnect; the next call of `look` connects again."""


class NoConsumerFinder:
    """For a destination without topics; see `ConsumerFinder`."""

    def look(self, topics: Collection[str]) -> Consumers:
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


def kind_of(settings: RelaySettings) -> SinkKind:
    """Return the kind of sink that ``settings`` name."""
    return cast(SinkKind, importlib.import_module(f"bwtui.sink.{settings.sink}"))
