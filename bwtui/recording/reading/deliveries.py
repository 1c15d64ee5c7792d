"""Find the delivery reports of a batch's messages: the DELIVERY blocks after it, until its pass ends."""

from collections.abc import Sequence

from bwtui.recording.format.batch import unpack_delivery
from bwtui.recording.format.blocks import BlockKind, SegmentPlace, damaged
from bwtui.recording.reading.segment_reader import SegmentReader

#: Number of batches whose delivery reports are kept while reading forward: about a million messages.
_KEPT = 250


class DeliveryBook:
    """Reads ahead of a reader of consecutive batches; after a jump, call `go_to`."""

    def __init__(self, segments: Sequence[SegmentReader]) -> None:
        self._segments = segments
        self._segment = 0
        self._number = 0
        self._newest = -1
        #: True if everything was read: a delivery report not found so far may still be written.
        self.is_at_end = False
        self.found: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        #: When the relay recorded that, in Unix microseconds: the whole batch was acknowledged at that time.
        self.noted: dict[tuple[int, int], int] = {}

    def go_to(self, segment: int, number: int) -> None:
        """Restart at block ``number`` of a segment's index."""
        self._segment, self._number = segment, number
        self._newest = -1
        self.is_at_end = False
        self.found.clear()
        self.noted.clear()

    def read_for(self, batch: int) -> None:
        """Read until all recorded delivery reports of ``batch`` are in ``found``."""
        if len(self.found) > _KEPT:
            for key in [key for key in self.found if key[0] < batch]:
                del self.found[key]
                self.noted.pop(key, None)
        while self._newest <= batch and not self.is_at_end:
            self._step(batch)

    def _step(self, batch: int) -> None:
        segment = self._segments[self._segment]
        if self._number >= len(segment.index):
            if self._segment + 1 == len(self._segments):
                self.is_at_end = True
            else:
                self._segment, self._number = self._segment + 1, 0
            return
        entry = segment.index[self._number]
        self._number += 1
        if entry.kind == BlockKind.DELIVERY:
            block = segment.block(entry)
            try:
                delivery = unpack_delivery(block.payload)
            except ValueError as error:
                raise damaged(
                    SegmentPlace(segment.name, entry.offset), "a DELIVERY block can't be parsed"
                ) from error
            self._newest = max(self._newest, delivery.batch)
            if delivery.batch < batch:
                # No caller needs it any more. An exactly-once snapshot has all its reports after its last
                # row.
                return
            self.noted[delivery.batch, delivery.section] = block.received
            partitions, offsets = self.found.setdefault((delivery.batch, delivery.section), ([], []))
            if delivery.first > len(partitions):
                # No relay writes a report that skips messages, and filling the gap could take any memory.
                raise damaged(
                    SegmentPlace(segment.name, entry.offset), "a DELIVERY block skips earlier messages"
                )
            stop = delivery.first + len(delivery.partitions)
            partitions.extend([-1] * (stop - len(partitions)))
            offsets.extend([-1] * (stop - len(offsets)))
            partitions[delivery.first : stop] = delivery.partitions
            offsets[delivery.first : stop] = delivery.offsets
        elif entry.kind == BlockKind.EVENT:
            event = segment.event_at(entry)
            if event["event"] == "pass" and event["first_batch"] > batch:
                # Messages in flight have their delivery reports recorded by now, or never will.
                self._newest = max(self._newest, event["first_batch"])
