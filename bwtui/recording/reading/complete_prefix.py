"""Find the last completely recorded transaction: the last one of a recording may be incomplete."""

from collections.abc import Sequence
from itertools import islice

from bwtui.recording.format.batch import RecordedBatch
from bwtui.recording.format.blocks import BlockKind
from bwtui.recording.format.context import read_batch
from bwtui.recording.format.parsing import tags
from bwtui.recording.reading.segment_reader import SegmentReader


def complete_until(segments: Sequence[SegmentReader], last_lsn: int) -> int:
    """Return the commit LSN of the newest complete transaction, or 0; ``last_lsn`` is that of the newest.

    In every pass only the last transaction can be incomplete: when another one begins, the one before it has
    ended.
    """
    complete_lsn, is_last_of_pass, open_lsn = 0, True, 0
    for segment in reversed(segments):
        before = sum(entry.transactions for entry in segment.index)
        for entry in reversed(segment.index):
            before -= entry.transactions
            if entry.kind == BlockKind.EVENT and segment.event_at(entry)["event"] == "pass":
                is_last_of_pass, open_lsn = True, 0
            elif entry.kind == BlockKind.ROWS:
                complete_lsn = max(complete_lsn, entry.last_lsn)
            elif entry.kind == BlockKind.CHANGES and is_last_of_pass:
                is_open = _ends_open(read_batch(segment.block(entry), segment.name))
                is_last_of_pass = is_open is None
                if is_open:
                    open_lsn = entry.last_lsn
                elif is_open is not None:
                    complete_lsn = max(complete_lsn, entry.last_lsn)
            if entry.kind == BlockKind.CHANGES and open_lsn:
                stop = before + entry.transactions
                begun = islice(segment.transactions(), before, stop) if entry.transactions else ()
                lsns = (entry.first_lsn, *(transaction.commit_lsn for transaction in begun))
                ended = max(lsn if lsn < open_lsn else 0 for lsn in lsns)
                if ended:
                    # Earlier blocks of this pass are older.
                    complete_lsn, open_lsn = max(complete_lsn, ended), 0
            if complete_lsn >= last_lsn:
                return complete_lsn
    return complete_lsn


def _ends_open(batch: RecordedBatch) -> bool | None:
    """Return whether a transaction is open after a batch of the stream; None when it holds no frames."""
    letters = tags(batch.frames)
    begun, ended = letters.rfind(b"B"), letters.rfind(b"C")
    if begun < 0 and ended < 0:
        return True if letters else None
    return begun > ended
