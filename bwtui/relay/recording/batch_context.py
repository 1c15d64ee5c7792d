"""The context of a batch's frames: a transaction of the stream, or rows of a table.

Rows belong to a snapshot, or they are backfilled at a place where no transaction is open. After backfilled
rows the stream continues as if they were not there: they don't affect its numbering.
"""

from array import array
from collections.abc import Mapping, Sequence

from bwtui.pgoutput.messages import Relation
from bwtui.recording.format.batch import LARGEST_ORDINAL, NO_FRAME, HeaderForm, MessageSection, Transaction
from bwtui.recording.format.blocks import BlockKind
from bwtui.recording.format.parsing import Counts, count_changes, scan, tags
from bwtui.recording.segment import OutgoingBlock
from bwtui.sink.base import MessageTuple


class BatchContext:
    """The recorder's current position; only the recorder calls its methods."""

    def __init__(self) -> None:
        #: The open transaction. For rows: their LSN, their time, 0, and the ordinal of the last row.
        self.transaction = Transaction()
        #: The table whose rows the frames are, or None for frames of the stream.
        self.table: Relation | None = None
        #: The place where the stream continues after backfilled rows; None if there are none.
        self._stream: Transaction | None = None

    def begin_pass(self) -> None:
        """Begin a pass without an open transaction."""
        self.transaction, self.table, self._stream = Transaction(), None, None

    def begin_table(self, relation: Relation, lsn: int, time_ms: int, ordinal: int = 0) -> None:
        """Begin a table of a snapshot; ``ordinal`` is that of the row before."""
        self.table = relation
        self.transaction = Transaction(lsn, time_ms * 1000, 0, ordinal)

    def begin_rows(self, relation: Relation, lsn: int, time_ms: int, ordinal: int) -> None:
        """Begin backfilled rows; ``ordinal`` is that of the row before them."""
        if self._stream is None:
            self._stream = self.transaction
        self.table = relation
        self.transaction = Transaction(lsn, time_ms * 1000, 0, ordinal)

    def end_rows(self) -> None:
        """Return to the stream."""
        if self._stream is not None:
            self.transaction, self.table, self._stream = self._stream, None, None

    @property
    def headers(self) -> HeaderForm:
        """The headers that messages carry without --headers."""
        return HeaderForm.SESSION if self.table else HeaderForm.NONE

    def frames_of(
        self, messages: Sequence[MessageTuple], positions: Sequence[int], frames: int
    ) -> Sequence[int]:
        """Return the frame of each message: ``positions`` among ``frames`` frames, none for tombstones."""
        if self.table is None:
            return positions
        if frames:
            # Tombstones among rows would not be counted.
            assert not positions or positions[-1] < frames
            return positions
        assert all(message[1] is None for message in messages)
        return array("I", [NO_FRAME]) * len(messages)

    def past_numbering(self, frames: Sequence[bytes], messages: int) -> str:
        """Return a description of what exceeds the available numbers in this batch, or an empty string."""
        if self.transaction.ordinal + (len(frames) or messages) <= LARGEST_ORDINAL:
            return ""
        if self.table is not None:
            return "rows of one table"
        return "" if tags(frames[:1]) == b"B" else "changes of one transaction"

    def rows(
        self, parts: Sequence[bytes], frames: int, sections: Sequence[MessageSection], counts: Counts
    ) -> tuple[OutgoingBlock, Transaction]:
        """Return the block of a batch of rows or of tombstones, and the position after it."""
        assert self.table is not None
        before, tombstones = self.transaction, sum(len(section.keys) for section in sections)
        if frames:
            counter = "snapshot_rows" if self._stream is None else "backfill_rows"
            counts = [*counts, (self.table.qualified_name, counter, frames)]
        # Tombstones that clean up after a snapshot are not numbered.
        numbered = frames if self._stream is None else frames or tombstones
        lsns = (before.commit_lsn, before.commit_lsn)
        block = OutgoingBlock(BlockKind.ROWS, parts, lsns, frames or tombstones, counts=counts)
        return block, before._replace(ordinal=before.ordinal + numbered)

    def changes(
        self,
        parts: Sequence[bytes],
        frames: Sequence[bytes],
        counts: Counts,
        relations: Mapping[int, Relation],
        only: str | None,
        position: int,
    ) -> tuple[OutgoingBlock, Transaction]:
        """Return the block of a batch of the stream, and the transaction that is open after it.

        ``only`` is the table of all changes if there is only one, and known; ``position`` is the number of
        changes in the segment before this batch.
        """
        letters = tags(frames)
        result = scan(frames, letters, self.transaction, position)
        counts = count_changes(frames, letters, relations, only) + counts
        lsns = (result.first_lsn, result.last.commit_lsn)
        block = OutgoingBlock(
            BlockKind.CHANGES, parts, lsns, result.changes, result.entries, result.transactions, counts
        )
        return block, result.last
