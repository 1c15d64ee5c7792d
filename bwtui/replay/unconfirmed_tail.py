"""Find messages that a killed run has written after its last saved progress, so that they are not sent again.

An idempotent producer writes a lane in order. So of the next messages of the recording, a prefix is already
in the topic, perhaps mixed with other producers' messages: the search finds them one by one, and everything
after the first that is missing was never written.

But requests in flight when a connection broke may still be written after that search: the kernel continues to
send its buffers, and a broker accepts the request of a client that has gone. So `count_duplicates` checks
again afterwards.
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from confluent_kafka import Message

from bwtui.errors import BwtuiError
from bwtui.kafka.client import Config
from bwtui.kafka.offsets import ends
from bwtui.kafka.scan import SplitScan
from bwtui.kafka.splits import Split

_CREATE_TIME = 1


class UnconfirmedTail:
    """The messages of a partition from some offset on, as of the time it was read."""

    def __init__(self, records: list[tuple[int, int]], *, with_times: bool) -> None:
        """``records`` has the digest and the offset of each message."""
        self._found = records
        self._with_times = with_times
        self._at = 0
        self._seen = 0
        self.is_passed = not records

    @property
    def doubtful(self) -> int:
        """Number of its messages that may be duplicates: those that were not recognized."""
        return len(self._found) - self._seen

    def find(self, key: bytes | None, value: bytes | None, stamp: int) -> int | None:
        """Return the offset of the recording's next message; None if it and all after it are missing."""
        if self.is_passed:
            return None
        expected = digest(key, value, stamp if self._with_times else 0)
        for at in range(self._at, len(self._found)):
            if self._found[at][0] == expected:
                self._at = at + 1
                self._seen += 1
                return self._found[at][1]
        self.is_passed = True
        return None


def digest(key: bytes | None, value: bytes | None, stamp: int) -> int:
    """Return a digest of a message that is valid only within this process."""
    return hash((key, value, stamp))


def message_digest(message: Message) -> int:
    """Return the digest of a consumed message."""
    kind, stamp = message.timestamp()
    # With LogAppendTime, the message's own timestamp is lost.
    return digest(message.key(), message.value(), stamp if kind == _CREATE_TIME else 0)


def read_tail(
    config: Config, topic: str, partition: int, start: int, check: Callable[[], None] = lambda: None
) -> UnconfirmedTail:
    """Read a partition from ``start`` on. Raises ConnectionFailed or RefusedError.

    ``check`` is called regularly, and may raise to end the read.
    """
    low, _, high = ends(config, (topic, partition))
    start = max(start, low)
    if start >= high:
        return UnconfirmedTail([], with_times=True)
    messages: list[tuple[int, int]] = []
    with_times = True
    split = Split(topic, partition, start, high)
    for part in SplitScan(config, split, "read_uncommitted", 5.0, check):
        for message, offset in zip(part.messages, part.offsets, strict=True):
            with_times = message.timestamp()[0] == _CREATE_TIME
            messages.append((message_digest(message), offset))
    return UnconfirmedTail(messages, with_times=with_times)


@dataclass(slots=True)
class LaneCutoff:
    """A lane when its task was first cut off: where the unknown messages begin, and its progress."""

    tail: int
    noted: int
    #: Number of messages without a delivery report over all attempts: only these can arrive late.
    unknown: int = 0


def count_duplicates(
    config: Config, cuts: Mapping[tuple[str, int], LaneCutoff], acknowledged: Callable[[tuple[str, int]], int]
) -> int:
    """Return the maximum number of messages that are in the partitions twice after the cuts.

    ``noted(place)`` returns the number of durable messages of a lane. If Kafka does not answer, all messages
    without a delivery report may be there twice.
    """
    return sum(_of_one(config, place, cut, acknowledged(place) - cut.noted) for place, cut in cuts.items())


def _of_one(config: Config, place: tuple[str, int], cut: LaneCutoff, sent: int) -> int:
    digests, has_holes = array("q"), False
    try:
        low, _, high = ends(config, place)
        split = Split(*place, max(cut.tail, low), high)
        has_holes = low > cut.tail
        for part in SplitScan(config, split, "read_uncommitted", patience=5.0) if split.low < high else ():
            has_holes = has_holes or bool(part.holes)
            digests.extend(message_digest(message) for message in part.messages)
    except BwtuiError:
        return cut.unknown
    return twice(digests, sent, cut.unknown, has_holes=has_holes)


def twice(digests: "array[int]", sent: int, unknown: int, *, has_holes: bool) -> int:
    """Return how many of a log's messages may be duplicates, if ``sent`` of them are expected.

    A recording may have equal messages, and other producers may write to the topic: so duplicates require
    both more messages than expected, and equal ones. With holes in the log, the expected number is unknown.
    """
    equal = len(digests) - len(np.unique(np.frombuffer(digests, np.int64))) if digests else 0
    more = unknown if has_holes else max(0, len(digests) - sent)
    return min(equal, more, unknown)
