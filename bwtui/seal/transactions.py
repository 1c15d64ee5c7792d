"""Count the changes of each transaction: up to the next one, or to anything else in between."""

from collections.abc import Iterable

from bwtui.recording.format.blocks import BlockKind
from bwtui.recording.reading.segment_reader import SegmentReader


class TransactionLengths:
    """Counts the changes of each transaction from begin and end positions, in ascending order."""

    def __init__(self) -> None:
        self.found: list[int] = []
        self._open: int | None = None

    def begun(self, position: int) -> None:
        """Note that a transaction begins at ``position``."""
        self.interrupted(position)
        self._open = position

    def interrupted(self, position: int) -> None:
        """Note that the changes from ``position`` on do not belong to an earlier transaction."""
        if self._open is not None:
            self.found.append(position - self._open)
            self._open = None

    def end(self, last: SegmentReader, following: Iterable[SegmentReader]) -> None:
        """Find the end of the transaction that is open after ``last`` in the following segments."""
        if self._open is None:
            return
        position = last.stop_position
        for segment in following:
            position = segment.first_position
            first = next(iter(segment.transactions()), None)
            for entry, start in zip(segment.index, segment.starts, strict=True):
                position = segment.first_position + start
                if entry.kind == BlockKind.CHANGES and entry.transactions:
                    assert first is not None
                    self.interrupted(segment.first_position + first.position)
                    return
                if entry.kind == BlockKind.EVENT or (entry.kind == BlockKind.ROWS and entry.changes):
                    self.interrupted(position)
                    return
                position += entry.changes
        self.interrupted(position)
