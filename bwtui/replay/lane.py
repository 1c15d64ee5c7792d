"""One partition that a replay writes into: what was handed over, what is durable, and what is not known.

And how long a task waits for Kafka to acknowledge anything of its lanes.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from bwtui.kafka.client import Heard
from bwtui.replay.coordinator import LaneDone
from bwtui.replay.tail import Tail

#: How long a lane's messages may wait while Kafka acknowledges none, also if a connection was lost.
_SILENT_SECONDS, _LOST_SECONDS = 15.0, 3.0


class Sent(NamedTuple):
    """What became of a lane: messages that were sent, and found there; the last one, and its offset."""

    lane: int
    sent: int
    found: int
    doubled: int
    position: int
    part: int
    offset: int
    #: Handed over, and Kafka did not say what became of them; the topic does.
    unknown: int


class Batch(NamedTuple):
    """Handed over together: when the lane has ``until`` acknowledged, all up to (position, part) is."""

    until: int
    bytes: int
    position: int
    part: int


@dataclass(slots=True)
class Lane:
    """One partition of a topic, and what became of its messages."""

    number: int
    topic: str
    partition: int
    tail: Tail | None = None
    handed: int = 0
    acknowledged: int = 0
    found: int = 0
    batches: deque[Batch] = field(default_factory=deque)
    #: What is durable up to the end of a batch: messages, position and part of the last, its offset.
    noted: int = 0
    done: tuple[int, int] = (-1, 0)
    last_offset: int = -1
    is_broken: bool = False
    #: How much was acknowledged at the last look, and since when it is so much; 0: nobody has looked.
    _seen: int = 0
    _since: float = 0.0

    def state(self) -> LaneDone:
        """Return what is durable."""
        return self.noted, *self.done, self.last_offset

    def waits(self, now: float) -> float:
        """Return for how many seconds messages wait of which Kafka acknowledged none meanwhile."""
        is_settled = self.handed == self.acknowledged
        if is_settled or self.acknowledged != self._seen or not self._since:
            self._seen, self._since = self.acknowledged, now
        return now - self._since

    def result(self) -> Sent:
        """Return what became of it."""
        doubled = self.tail.doubtful if self.tail is not None else 0
        unknown = self.handed - self.acknowledged
        return Sent(
            self.number, self.acknowledged, self.found, doubled, *self.done, self.last_offset, unknown
        )


class Patience:
    """Asked every now and then; it is shorter after an error, until all lanes have got over that."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        #: When the error was first seen.
        self._since: float | None = None

    def is_over(self, lanes: Collection[Lane], now: float) -> bool:
        """Return whether a lane waits for too long; ``now`` is in seconds of a monotonic clock."""
        longest = max((lane.waits(now) for lane in lanes), default=0.0)
        if self._heard.error is None:
            self._since = None
        elif self._since is None:
            self._since = now
        elif longest < now - self._since and not self._heard.is_refusal:
            # Each lane that waits was acknowledged something since, or had nothing to wait for then.
            self._heard.forget()
            self._since = None
        return longest > (_SILENT_SECONDS if self._heard.error is None else _LOST_SECONDS)
