"""The state of one partition that a replay writes to: messages handed over, durable, and unknown.

It also decides how long a task waits for Kafka to acknowledge any message of its lanes.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from bwtui.kafka.client import LastClientError
from bwtui.replay.coordinator import LaneDone
from bwtui.replay.unconfirmed_tail import UnconfirmedTail

#: Timeout for a lane's messages while Kafka acknowledges none, normally and after a lost connection.
_SILENT_SECONDS, _LOST_SECONDS = 15.0, 3.0


class LaneResult(NamedTuple):
    """The result of a lane: messages sent, messages found in the topic, and the last one with its offset."""

    lane: int
    sent: int
    found: int
    doubled: int
    position: int
    part: int
    offset: int
    #: Messages that were handed over without a delivery report; the topic shows whether they were written.
    unknown: int


class LaneBatch(NamedTuple):
    """Messages handed over together, up to (position, part); durable at ``until`` acknowledgements."""

    until: int
    bytes: int
    position: int
    part: int


@dataclass(slots=True)
class Lane:
    """One partition of a topic, and the state of its messages."""

    number: int
    topic: str
    partition: int
    tail: UnconfirmedTail | None = None
    handed: int = 0
    acknowledged: int = 0
    found: int = 0
    batches: deque[LaneBatch] = field(default_factory=deque)
    #: Durable progress up to the end of a batch: number of messages, position and part of the last, its
    #: offset.
    noted: int = 0
    done: tuple[int, int] = (-1, 0)
    last_offset: int = -1
    is_broken: bool = False
    #: Acknowledged messages at the last check, and when that number last changed; 0 before the first check.
    _seen: int = 0
    _since: float = 0.0

    def state(self) -> LaneDone:
        """Return the durable progress."""
        return self.noted, *self.done, self.last_offset

    def waits(self, now: float) -> float:
        """Return for how many seconds Kafka has acknowledged none of the lane's outstanding messages."""
        is_settled = self.handed == self.acknowledged
        if is_settled or self.acknowledged != self._seen or not self._since:
            self._seen, self._since = self.acknowledged, now
        return now - self._since

    def result(self) -> LaneResult:
        """Return the result of the lane."""
        doubled = self.tail.doubtful if self.tail is not None else 0
        unknown = self.handed - self.acknowledged
        return LaneResult(
            self.number, self.acknowledged, self.found, doubled, *self.done, self.last_offset, unknown
        )


class SilenceTimeout:
    """Checks whether Kafka is silent for too long; after an error, the limit is shorter until all recover."""

    def __init__(self, errors: LastClientError) -> None:
        self._heard = errors
        #: When the current error was first seen.
        self._since: float | None = None

    def is_over(self, lanes: Collection[Lane], now: float) -> bool:
        """Return whether a lane has waited too long; ``now`` is in seconds of a monotonic clock."""
        longest = max((lane.waits(now) for lane in lanes), default=0.0)
        if self._heard.error is None:
            self._since = None
        elif self._since is None:
            self._since = now
        elif longest < now - self._since and not self._heard.is_refusal:
            # Every waiting lane got an acknowledgement since the error, or had nothing outstanding at that
            # time.
            self._heard.forget()
            self._since = None
        return longest > (_SILENT_SECONDS if self._heard.error is None else _LOST_SECONDS)
