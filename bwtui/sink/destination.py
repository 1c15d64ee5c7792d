"""Where a relay's messages go: a sink, and what stands beside it where its kind has that.

Another kind of sink is a file in this package with the functions of `Kind`; `RelaySettings.sink` names it.
"""

import importlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from bwtui.errors import RefusedError
from bwtui.model.looks import Consumers
from bwtui.model.status import ExactlyOnceStatus
from bwtui.settings import RelaySettings
from bwtui.sink.base import Sink

if TYPE_CHECKING:
    from bwtui.encode.local_registry import LocalRegistry
    from bwtui.encode.registry import SchemaRegistry

#: Where nothing bounds a message but the recording's own format.
_MAX_MESSAGE_BYTES = 1 << 30
#: A name, and what checks it: returns what it found in a few words, or raises BwtuiError.
Precondition = tuple[str, Callable[[], str]]
#: Offsets by partition.
Offsets = dict[int, int]


class KeyRecord(NamedTuple):
    """A record as far as its key goes; ``session`` is the header bwtui.session, or None."""

    key: bytes
    is_tombstone: bool
    session: bytes | None


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What may be sent to a topic: ``compacted`` wants keys, ``max_message_bytes`` bounds one message.

    The bound is the producer's: what the topic takes the broker says, which looks at the compressed batch.
    """

    max_message_bytes: int
    compacted: bool
    partitions: int = 1
    #: Kafka's own id of the topic; "" where it is not known.
    id: str = ""
    #: Whether it was created for this, so that nothing was in it.
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class PresentTopic:
    """What tells a topic from another one of its name, and how many records its beginnings have lost."""

    #: "" where the service has none.
    id: str
    partitions: int
    #: The sum of the first offsets of all partitions; None where it is not known.
    lost: int | None = None
    #: Whether it deletes records by age or size.
    deletes: bool = False


#: Topics by name; None for one that is not there.
PresentTopics = dict[str, PresentTopic | None]
#: The limits of topics by name, or why a topic can't be used.
Limits = dict[str, TopicLimits | RefusedError]


class Service:
    """The service behind a sink, and its topics. This one stands for none: every topic will do."""

    name = ""
    #: So many seconds a message may wait for others to go with it, as the settings say.
    lingers = 0.0

    def check(self) -> str:
        """Return the service's identity. Raises ConnectionFailed."""
        return ""

    def outage(self) -> str | None:
        """Return one sentence on why nothing can be delivered at present, or None."""
        return None

    def ensure_topics(self, wanted: Mapping[str, bool]) -> Limits:
        """Make sure that the ``wanted`` topics exist, all of them together; the value says if one is keyed.

        Any thread may ask. Raises ConnectionFailed, which is worth another try.
        """
        return {topic: TopicLimits(_MAX_MESSAGE_BYTES, compacted=False) for topic in wanted}

    def present_topics(self, topics: Collection[str], *, with_beginnings: bool) -> PresentTopics:
        """Return what ``topics`` are now, as far as that can be told; any thread may ask.

        ``with_beginnings``: look at what they have lost, too. Raises ConnectionFailed.
        """
        return {}

    def compact_command(self, topic: str) -> str:
        """Return the command that has ``topic`` keep the latest record of each key."""
        return ""

    def ends(self, topics: Collection[str]) -> dict[str, Offsets]:
        """Return where each partition of ``topics`` ends now; one that does not exist is left out.

        One thread at a time may ask. Raises ConnectionFailed.
        """
        return {}

    def cluster_now(self) -> str:
        """Return the service's own id, "" where it has none; for the same thread. Raises ConnectionFailed."""
        return ""

    def refresh(self, topic: str) -> None:
        """Have the producer learn of a topic's partitions now. Any thread may ask."""

    def take_limits(self, limits: Limits) -> None:
        """Give what `ensure_topics` found to the sink; for the main thread, which alone owns that."""

    def close(self) -> None:
        """Let go of every connection, the sink's too, without waiting for messages in flight."""


class Recall:
    """What is accepted and not under way can be kept back; here nothing waits."""

    def hold_back(self) -> None:
        """Send nothing more of what is accepted, until `Sink.discard`; any thread may call it.

        What is under way to the service can't be called back. The rest fails.
        """

    def exactly_once(self) -> ExactlyOnceStatus | None:
        """Return how transactions go where messages are sent in them; any thread may ask."""
        return None

    def handed_over(self, topic: str) -> int:
        """Return how many messages went to ``topic`` or are on their way; any thread may ask."""
        return 0

    def before_sending(self, look: Callable[[], None]) -> None:
        """Call ``look`` from now on before anything goes to the service; it may call `hold_back`."""


class Readback:
    """What topics hold, for the rows of a snapshot that was cut off; here they are empty."""

    def end_offsets(self, topic: str) -> Offsets:
        """Return where each partition of ``topic`` ends now; any thread may ask. Raises ConnectionFailed."""
        return {}

    def keys(
        self, topic: str, start: Offsets, end: Offsets, on_wait: Callable[[], None]
    ) -> Iterator[KeyRecord]:
        """Yield every keyed record in ``[start, end)``, in order within a partition. Raises ConnectionFailed.

        ``on_wait`` is called between reads, and may raise to end it.
        """
        return iter(())


class Readers(Protocol):
    """Who reads the topics; for one thread."""

    def look(self, topics: Collection[str]) -> Consumers:
        """Return who reads ``topics``, and how far behind they are; what can't be told is said in it."""

    def close(self) -> None:
        """Hang up; the next look connects again."""


class NoReaders:
    """There are no topics; see `Readers`."""

    def look(self, topics: Collection[str]) -> Consumers:
        """Say so."""
        return Consumers(time.time(), "this relay only records: it writes into no topic")

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A sink with all that goes with it."""

    sink: Sink
    #: Gives ids to the schemas of its messages.
    registry: "SchemaRegistry | LocalRegistry"
    service: Service = field(default_factory=Service)
    recall: Recall = field(default_factory=Recall)
    readback: Readback = field(default_factory=Readback)
    readers: Readers = field(default_factory=NoReaders)
    #: Where the service is, as the user named it.
    address: str = ""
    #: What is asked before the relay begins, beside PostgreSQL, in words.
    checked: str = ""

    def close(self) -> None:
        """Let go of every connection."""
        self.service.close()
        self.registry.close()


class Kind(Protocol):
    """The module of one kind of sink."""

    def open_destination(self, settings: RelaySettings) -> Destination:
        """Open it; no connection is needed yet. Raises UsageError."""

    def open_service(self, settings: RelaySettings) -> tuple[Sink, Service]:
        """Open the sink and its service alone, in a process that needs nothing else. Raises UsageError."""

    def preconditions(self, settings: RelaySettings) -> Sequence[Precondition]:
        """Return what must hold there before a relay starts; nothing is made or changed by looking."""


def kind_of(settings: RelaySettings) -> Kind:
    """Return the kind of sink that ``settings`` name."""
    return cast(Kind, importlib.import_module(f"bwtui.sink.{settings.sink}"))
