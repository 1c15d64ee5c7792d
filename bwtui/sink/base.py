"""The interface of every sink, and the distinction between a failed delivery and a service outage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bwtui.model.delivery import DeliverySpan, Receipt


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
