"""What a killed run has written after what it noted: found in the topic, so that it is not doubled.

A producer that is idempotent writes a lane in order. So of what comes next in the recording, a beginning is
in the topic already, perhaps among the messages of others: it is looked for one by one, and what follows the
first that is not there was never written.

But what was under way when a connection broke may still be written after that look: the kernel sends on what
it was given, and a broker takes the request of a client that is gone. So `came_twice` looks once more.
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


class Tail:
    """The messages of a partition from some offset on, as far as they were there when it was opened."""

    def __init__(self, found: list[tuple[int, int]], *, with_times: bool) -> None:
        """``found`` has digest and offset of each message."""
        self._found = found
        self._with_times = with_times
        self._at = 0
        self._seen = 0
        self.is_passed = not found

    @property
    def doubtful(self) -> int:
        """How many of its messages may be doubled: those that were not recognised."""
        return len(self._found) - self._seen

    def find(self, key: bytes | None, value: bytes | None, stamp: int) -> int | None:
        """Return the offset of the recording's next message; None: this and all after it is not there."""
        if self.is_passed:
            return None
        wanted = digest(key, value, stamp if self._with_times else 0)
        for at in range(self._at, len(self._found)):
            if self._found[at][0] == wanted:
                self._at = at + 1
                self._seen += 1
                return self._found[at][1]
        self.is_passed = True
        return None


def digest(key: bytes | None, value: bytes | None, stamp: int) -> int:
    """Return a number for a message; it means nothing in another process."""
    return hash((key, value, stamp))


def message_digest(message: Message) -> int:
    """Return the number of a message that was read."""
    kind, stamp = message.timestamp()
    # A topic whose times are the broker's has no other ones.
    return digest(message.key(), message.value(), stamp if kind == _CREATE_TIME else 0)


def read_tail(
    config: Config, topic: str, partition: int, start: int, check: Callable[[], None] = lambda: None
) -> Tail:
    """Read what stands in a partition from ``start`` on. Raises ConnectionFailed or RefusedError.

    ``check`` is called now and then, and may raise to end it.
    """
    low, _, high = ends(config, (topic, partition))
    start = max(start, low)
    if start >= high:
        return Tail([], with_times=True)
    messages: list[tuple[int, int]] = []
    with_times = True
    split = Split(topic, partition, start, high)
    for part in SplitScan(config, split, "read_uncommitted", 5.0, check):
        for message, offset in zip(part.messages, part.offsets, strict=True):
            with_times = message.timestamp()[0] == _CREATE_TIME
            messages.append((message_digest(message), offset))
    return Tail(messages, with_times=with_times)


@dataclass(slots=True)
class Cut:
    """A lane when its task was first cut: where what is not known begins, and what was noted before."""

    tail: int
    noted: int
    #: Messages of which Kafka did not say what became of them, in all rounds: no others can come late.
    unknown: int = 0


def came_twice(
    config: Config, cuts: Mapping[tuple[str, int], Cut], noted: Callable[[tuple[str, int]], int]
) -> int:
    """Return how many messages at most are twice behind the cuts of topics' partitions.

    ``noted(place)``: how many of a lane are durable by now. Where nobody answers it may be all that were
    under way.
    """
    return sum(_of_one(config, place, cut, noted(place) - cut.noted) for place, cut in cuts.items())


def _of_one(config: Config, place: tuple[str, int], cut: Cut, sent: int) -> int:
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
    """Return how many of a log's messages may be there twice, of which ``sent`` are to be there.

    A recording may have equal ones, and others may write there: so it takes more than are to be there, and
    equal ones. How many are to be there is not known with holes in the log.
    """
    equal = len(digests) - len(np.unique(np.frombuffer(digests, np.int64))) if digests else 0
    more = unknown if has_holes else max(0, len(digests) - sent)
    return min(equal, more, unknown)
