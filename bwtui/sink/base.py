"""What the relay needs of every sink, and how a failed delivery is told apart from a service that is down."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bwtui.model.delivery import Receipt, Span


class Message(NamedTuple):
    """One message: framed key and value bytes (None is null), and the commit time in Unix milliseconds."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes]] | None = None


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


class Sink(Protocol):
    """Delivers messages: each is accepted, then durable or failed; called from the relay's main thread.

    What only some kinds of sinks have stands apart, in `bwtui.sink.destination`.
    """

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

    def queued(self) -> int:
        """Messages that were accepted and are neither durable nor failed."""

    def answered(self) -> int:
        """Messages that became durable or failed since the sink was made; what is discarded is neither."""

    def discard(self, *, in_order: bool) -> None:
        """Forget whatever is still in flight and begin anew: those messages will be read again.

        ``in_order``: after a message that fails nothing more is delivered, until the next call; otherwise
        each message stands for itself. It is True in the beginning.
        """
