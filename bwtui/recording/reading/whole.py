"""Up to where transactions are recorded to their end: the last of a recording may be there in part."""

from collections.abc import Sequence

from bwtui.recording.format.batch import Batch
from bwtui.recording.format.blocks import TRANSACTION_ENTRY, Kind
from bwtui.recording.format.context import read_batch
from bwtui.recording.format.parsing import tags
from bwtui.recording.format.walk import Step
from bwtui.recording.reading.segment_reader import SegmentReader

_BEGIN, _COMMIT = b"B", b"C"


class WholeTransactions:
    """Takes the blocks of a segment in order; `lsn` is where the newest transaction commits that is whole."""

    def __init__(self) -> None:
        #: 0 when the segment has none.
        self.lsn = 0

    def take(self, step: Step) -> None:
        """Take a block."""
        if step.entry.kind == Kind.ROWS:
            self.lsn = max(self.lsn, step.entry.last_lsn)
        elif step.entry.kind == Kind.CHANGES and step.batch is not None:
            self.lsn = max(self.lsn, self._whole(step, step.batch))

    def _whole(self, step: Step, batch: Batch) -> int:
        is_open = _ends_open(batch)
        if is_open is None:
            return 0
        if not is_open:
            return step.entry.last_lsn
        begun = [entry[0] for entry in TRANSACTION_ENTRY.iter_unpack(step.transactions)]
        # That another begins is the end of the one that was open.
        before = [step.entry.first_lsn, *begun] if begun[:1] != [step.entry.first_lsn] else begun
        return int(before[-2]) if len(before) > 1 else 0


def whole_until(segments: Sequence[SegmentReader], last_lsn: int) -> int:
    """Return where the newest transaction commits that is recorded to its end; ``last_lsn`` is the newest's.

    In every pass it is the last transaction alone that can be there in part.
    """
    whole, is_last_of_pass = 0, True
    for at in range(len(segments) - 1, -1, -1):
        segment = segments[at]
        for entry in reversed(segment.index):
            if entry.kind == Kind.EVENT:
                is_last_of_pass |= segment.event_at(entry)["event"] == "pass"
            elif entry.kind == Kind.ROWS:
                whole = max(whole, entry.last_lsn)
            elif entry.kind == Kind.CHANGES and is_last_of_pass:
                is_open = _ends_open(read_batch(segment.block(entry), segment.name))
                is_last_of_pass = is_open is None
                if is_open is not None:
                    found = _before(segments[: at + 1], entry.last_lsn) if is_open else entry.last_lsn
                    whole = max(whole, found)
            if whole >= last_lsn:
                return whole
    return whole


def _ends_open(batch: Batch) -> bool | None:
    """Whether a transaction is open behind a batch of the stream; None when it holds no frames."""
    found = tags(batch.frames)
    begun, ended = found.rfind(_BEGIN), found.rfind(_COMMIT)
    if begun < 0 and ended < 0:
        return True if found else None
    return begun > ended


def _before(segments: Sequence[SegmentReader], lsn: int) -> int:
    """Return where the transaction before the one at ``lsn`` commits, or 0."""
    for segment in reversed(segments):
        found = max(
            (entry.commit_lsn for entry in segment.transactions() if entry.commit_lsn < lsn), default=0
        )
        if found:
            return found
    return 0
