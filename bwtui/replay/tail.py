"""What a killed run has written after what it noted: found in the topic, so that it is not doubled.

A producer that is idempotent writes a lane in order. So of what comes next in the recording, a beginning is
in the topic already, perhaps among the messages of others: it is looked for one by one, and what follows the
first that is not there was never written.
"""

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


def read_tail(config: Config, topic: str, partition: int, start: int) -> Tail:
    """Read what stands in a partition from ``start`` on. Raises ConnectionFailed or RefusedError."""
    low, _, high = ends(config, (topic, partition))
    start = max(start, low)
    if start >= high:
        return Tail([], with_times=True)
    messages: list[tuple[int, int]] = []
    with_times = True
    for part in SplitScan(config, Split(topic, partition, start, high), "read_uncommitted", patience=5.0):
        for message, offset in zip(part.messages, part.offsets, strict=True):
            kind, stamp = message.timestamp()
            # A topic whose times are the broker's has no other ones.
            with_times = kind == _CREATE_TIME
            messages.append((digest(message.key(), message.value(), stamp if with_times else 0), offset))
    return Tail(messages, with_times=with_times)
