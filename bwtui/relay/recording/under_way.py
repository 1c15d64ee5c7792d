"""What the frames of a batch belong to: a transaction of the stream, or rows of a table.

Rows are those of a snapshot, or they are put into the stream, at a place where no transaction is open. The
stream goes on behind those as if they were not there: its numbering is not theirs.
"""

from array import array
from collections.abc import Mapping, Sequence

from bwtui.pgoutput.messages import Relation
from bwtui.recording.format.batch import LARGEST_ORDINAL, NO_FRAME, HeaderForm, Section, Transaction
from bwtui.recording.format.blocks import Kind
from bwtui.recording.format.parsing import Counts, count_changes, scan, tags
from bwtui.recording.segment import BlockOut
from bwtui.sink.base import MessageTuple


class UnderWay:
    """Where the recorder is; its methods are the recorder's own."""

    def __init__(self) -> None:
        #: The open transaction; of rows their LSN, their time, 0, and the ordinal of the last one.
        self.transaction = Transaction()
        #: The table whose rows the frames are, or None: they are frames of the stream.
        self.table: Relation | None = None
        #: Where the stream goes on behind rows that are put into it; None: there are none.
        self._stream: Transaction | None = None

    def begin_pass(self) -> None:
        """Take that no transaction is open."""
        self.transaction, self.table, self._stream = Transaction(), None, None

    def begin_table(self, relation: Relation, lsn: int, time_ms: int, ordinal: int = 0) -> None:
        """Go on with a table of a snapshot; ``ordinal`` is that of the row before."""
        self.table = relation
        self.transaction = Transaction(lsn, time_ms * 1000, 0, ordinal)

    def begin_rows(self, relation: Relation, lsn: int, time_ms: int, ordinal: int) -> None:
        """Go on with rows that are put into the stream; ``ordinal`` is that of the row before them."""
        if self._stream is None:
            self._stream = self.transaction
        self.table = relation
        self.transaction = Transaction(lsn, time_ms * 1000, 0, ordinal)

    def end_rows(self) -> None:
        """Go on with the stream."""
        if self._stream is not None:
            self.transaction, self.table, self._stream = self._stream, None, None

    @property
    def headers(self) -> HeaderForm:
        """Which headers messages carry without --headers."""
        return HeaderForm.SESSION if self.table else HeaderForm.NONE

    def frames_of(
        self, messages: Sequence[MessageTuple], positions: Sequence[int], frames: int
    ) -> Sequence[int]:
        """Return of which of ``frames`` frames messages were made, which were collected at ``positions``."""
        if self.table is None:
            return positions
        if frames:
            # Tombstones among rows would be counted as nothing.
            assert not positions or positions[-1] < frames
            return positions
        assert all(message[1] is None for message in messages)
        return array("I", [NO_FRAME]) * len(messages)

    def past_numbering(self, frames: Sequence[bytes], messages: int) -> str:
        """Return of what a batch holds more than can be numbered, or an empty text."""
        if self.transaction.ordinal + (len(frames) or messages) <= LARGEST_ORDINAL:
            return ""
        if self.table is not None:
            return "rows of one table"
        return "" if tags(frames[:1]) == b"B" else "changes of one transaction"

    def rows(
        self, parts: Sequence[bytes], frames: int, sections: Sequence[Section], counts: Counts
    ) -> tuple[BlockOut, Transaction]:
        """Return the block of a batch of rows, or of tombstones, and what is under way behind it."""
        assert self.table is not None
        before, tombstones = self.transaction, sum(len(section.keys) for section in sections)
        if frames:
            counter = "snapshot_rows" if self._stream is None else "backfill_rows"
            counts = [*counts, (self.table.qualified_name, counter, frames)]
        # Tombstones that clear up behind a snapshot have no numbers of their own.
        numbered = frames if self._stream is None else frames or tombstones
        lsns = (before.commit_lsn, before.commit_lsn)
        block = BlockOut(Kind.ROWS, parts, lsns, frames or tombstones, counts=counts)
        return block, before._replace(ordinal=before.ordinal + numbered)

    def changes(
        self,
        parts: Sequence[bytes],
        frames: Sequence[bytes],
        counts: Counts,
        relations: Mapping[int, Relation],
        only: str | None,
        position: int,
    ) -> tuple[BlockOut, Transaction]:
        """Return the block of a batch of the stream, and the transaction that is under way behind it.

        ``only``: the one table of which all changes are, if it is known; ``position``: the segment's changes
        before.
        """
        letters = tags(frames)
        seen = scan(frames, letters, self.transaction, position)
        counts = count_changes(frames, letters, relations, only) + counts
        lsns = (seen.first_lsn, seen.last.commit_lsn)
        block = BlockOut(Kind.CHANGES, parts, lsns, seen.changes, seen.entries, seen.transactions, counts)
        return block, seen.last
