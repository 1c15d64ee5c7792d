"""The sink of ``bwtui record``: what is in the recording is all that there is, so it is delivered at once."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bwtui.model.delivery import Receipt, Span
from bwtui.sink.base import DeliveryFailure, KeyRecord, Marks, MessageTuple, TopicLimits, TopicsFound

#: Nothing bounds a message but the recording's own format.
_MAX_MESSAGE_BYTES = 1 << 30


class NoSink:
    """Sends nothing anywhere; see `bwtui.sink.base.Sink`."""

    def send(
        self, topic: str, messages: Sequence[MessageTuple], span: Span, receipt: Receipt | None = None
    ) -> None:
        """The recording has them already, and its own fsync holds the confirmed LSN back."""

    def poll(self, timeout: float) -> None:
        """Nothing will come; what else runs gets its time meanwhile."""
        time.sleep(timeout)

    def flush(self, timeout: float) -> bool:
        """Nothing is ever under way."""
        return True

    def take_failures(self) -> list[DeliveryFailure]:
        """Nothing fails."""
        return []

    def outage(self) -> str | None:
        """There is no service that could be away."""
        return None

    def hold_back(self) -> None:
        """Nothing is ever sent."""

    def before_sending(self, look: Callable[[], None]) -> None:
        """Nothing is ever sent."""

    def discard(self, *, in_order: bool) -> None:
        """Nothing is in flight."""

    def queued(self) -> int:
        """Nothing is queued."""
        return 0

    def ensure_topic(self, topic: str, *, keyed: bool) -> TopicLimits:
        """Every topic will do."""
        return TopicLimits(_MAX_MESSAGE_BYTES, compacted=False)

    def ensure_topics(
        self, wanted: Mapping[str, bool], call: Callable[[Callable[[], TopicsFound]], TopicsFound]
    ) -> TopicsFound:
        """Every topic will do."""
        return {topic: self.ensure_topic(topic, keyed=keyed) for topic, keyed in wanted.items()}

    def marks(self, topic: str) -> Marks:
        """Topics are empty."""
        return {}

    def keys(self, topic: str, start: Marks, end: Marks, on_wait: Callable[[], None]) -> Iterator[KeyRecord]:
        """Topics are empty."""
        return iter(())

    def check(self) -> dict[str, Any]:
        """There is no service to ask."""
        return {}

    def close(self) -> None:
        """Nothing is open."""
