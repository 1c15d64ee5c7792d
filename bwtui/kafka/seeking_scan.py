"""Read a partition at offsets that are far apart, by seeking instead of reading what is in between."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar

from confluent_kafka import Message

from bwtui.kafka.client import Config
from bwtui.kafka.scan import Isolation, ScannedMessages, SplitScan
from bwtui.kafka.splits import Split

#: Maximum distance in messages that is read rather than skipped by a seek.
LEAP = 2_000


class SeekingScan(SplitScan):
    """Reads a partition at ascending ``offsets``; it may also deliver messages between them."""

    #: The broker sends whole batches anyway, and nothing after them is needed.
    tuned: ClassVar[Config] = {"queued.min.messages": 1, "fetch.message.max.bytes": 16_384}

    def __init__(
        self,
        config: Config,
        place: tuple[str, int],
        offsets: Sequence[int],
        isolation: Isolation,
        patience: float,
    ) -> None:
        """Create the consumer; ``place`` is topic and partition, ``patience`` as in `SplitScan`."""
        split = Split(*place, offsets[0], offsets[-1] + 1)
        super().__init__(config, split, isolation, patience)
        self._offsets = offsets
        self._leap()

    def _take(self, messages: list[Message]) -> ScannedMessages:
        delivered = super()._take(messages)
        if (to := self._leap()) is not None:
            self._assign(to)
        return delivered

    def _leap(self) -> int | None:
        """Seek to the next offset if it is far away, and limit the read to offsets close together."""
        at = bisect_left(self._offsets, self._next)
        if at == len(self._offsets):
            return None
        is_far = self._offsets[at] - self._next > LEAP
        if is_far:
            self._next = self._offsets[at]
        end = at
        while end + 1 < len(self._offsets) and self._offsets[end + 1] - self._offsets[end] <= LEAP:
            end += 1
        self._count = min(self._count if not is_far else LEAP, self._offsets[end] + 1 - self._next)
        return self._next if is_far else None
