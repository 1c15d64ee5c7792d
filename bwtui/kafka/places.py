"""Reads some offsets of a partition that lie far apart: by seeking, since nobody wants what is in between."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar

from confluent_kafka import Message

from bwtui.kafka.client import Config
from bwtui.kafka.scan import Delivered, Isolation, SplitScan
from bwtui.kafka.splits import Split

#: So many messages are read sooner than the next place is sought.
LEAP = 2_000


class PlaceScan(SplitScan):
    """One reading of a partition at ``offsets``, which rise; messages between them may come, too."""

    #: Whole batches come in any case, and nothing behind them is wanted.
    tuned: ClassVar[Config] = {"queued.min.messages": 1, "fetch.message.max.bytes": 16_384}

    def __init__(
        self,
        config: Config,
        place: tuple[str, int],
        offsets: Sequence[int],
        isolation: Isolation,
        patience: float,
    ) -> None:
        """Make the consumer; ``place`` is topic and partition, ``patience`` as in `SplitScan`."""
        split = Split(*place, offsets[0], offsets[-1] + 1)
        super().__init__(config, split, isolation, patience)
        self._offsets = offsets
        self._leap()

    def _take(self, messages: list[Message]) -> Delivered:
        delivered = super()._take(messages)
        if (to := self._leap()) is not None:
            self._assign(to)
        return delivered

    def _leap(self) -> int | None:
        """Go on at the next place if it is far; ask for no more than lies close together from there on."""
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
