"""What the relay needs of a sink, and how a failed delivery is told apart from a service that is down."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from bwtui.errors import RefusedError
from bwtui.model.delivery import Receipt, Span

#: Offsets by partition.
Marks = dict[int, int]


class Message(NamedTuple):
    """One message: framed key and value bytes (None is null), and the commit time in Unix milliseconds."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes]] | None = None


class KeyRecord(NamedTuple):
    """A record as far as its key goes; ``session`` is the header bwtui.session, or None."""

    key: bytes
    is_tombstone: bool
    session: bytes | None


#: What a `Message` is made of, and as good as one wherever it is only taken apart.
MessageTuple = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes]] | None]


@dataclass(frozen=True, slots=True)
class DeliveryFailure:
    """Why a message was not delivered.

    ``is_outage``: the service is at fault, so the same message may succeed later; otherwise the message is.
    ``span`` still counts the message as pending and failed.
    """

    topic: str
    reason: str
    is_outage: bool
    hint: str = "the broker's log says why"
    message: Message | None = None
    span: Span | None = None
    #: Trying again can't help: the topic is gone, or the producer is broken for good.
    is_final: bool = False
    #: Rights or settings are at fault, so no other message for the topic fares better.
    is_setup: bool = False
    #: The receipt that the message was sent with, if any, and its place in it.
    receipt: Receipt | None = None
    index: int = 0


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What may be sent to a topic: ``compacted`` wants keys, ``max_message_bytes`` bounds one message.

    The bound is the producer's: what the topic takes the broker says, which looks at the compressed batch.
    """

    max_message_bytes: int
    compacted: bool
    partitions: int = 1


#: The limits of topics by name, or why a topic can't be used.
TopicsFound = dict[str, TopicLimits | RefusedError]


class Sink(Protocol):
    """A destination of messages; every method but `marks` is called from the relay's main thread."""

    def send(
        self, topic: str, messages: Sequence[MessageTuple], span: Span, receipt: Receipt | None = None
    ) -> None:
        """Accept ``messages``, in order, and count them in ``span.pending`` until each is durable.

        Where each of them then is goes into ``receipt``.
        """

    def poll(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for reports of delivery, and let them count down their spans."""

    def flush(self, timeout: float) -> bool:
        """Wait until every message was delivered or has failed; False when ``timeout`` seconds passed."""

    def take_failures(self) -> list[DeliveryFailure]:
        """Return the failures since the last call, in the order of their reports."""

    def outage(self) -> str | None:
        """Return one sentence on why nothing can be delivered at present, or None."""

    def hold_back(self) -> None:
        """Send nothing more of what is accepted, until `discard`; any thread may call it.

        What is under way to the service can't be called back. The rest fails.
        """

    def before_sending(self, look: Callable[[], None]) -> None:
        """Call ``look`` from now on before anything goes to the service; it may call `hold_back`."""

    def discard(self, *, in_order: bool) -> None:
        """Forget whatever is still in flight and begin anew: those messages will be read again.

        ``in_order``: behind a message that fails nothing more is delivered, until the next call; otherwise
        each message stands for itself. It is True in the beginning.
        """

    def queued(self) -> int:
        """Messages that were accepted and are neither durable nor failed."""

    def ensure_topic(self, topic: str, *, keyed: bool) -> TopicLimits:
        """Make sure that ``topic`` exists.

        Raises ConnectionFailed, which is worth another try, or RefusedError.
        """

    def ensure_topics(
        self, wanted: Mapping[str, bool], call: Callable[[Callable[[], TopicsFound]], TopicsFound]
    ) -> TopicsFound:
        """Make sure that the ``wanted`` topics exist, all of them together; the value says if one is keyed.

        The service is asked within ``call``, which may do that in another thread. Raises ConnectionFailed.
        """

    def marks(self, topic: str) -> Marks:
        """Return where each partition of ``topic`` ends now; any thread may ask. Raises ConnectionFailed."""

    def keys(self, topic: str, start: Marks, end: Marks, on_wait: Callable[[], None]) -> Iterator[KeyRecord]:
        """Yield every keyed record in ``[start, end)``. Raises ConnectionFailed.

        ``on_wait`` is called between reads, and may raise to end it.
        """

    def check(self) -> dict[str, Any]:
        """Ask the service for its identity. Raises ConnectionFailed."""

    def close(self) -> None:
        """Let go of every connection, without waiting for messages in flight."""
