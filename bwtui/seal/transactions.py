"""How many changes each transaction has: up to where the next one begins, or something else comes between."""

from collections.abc import Iterable

from bwtui.recording.format.blocks import Kind
from bwtui.recording.reading.segment_reader import SegmentReader


class TransactionLengths:
    """Counts the changes of each transaction from where they begin and end, in order of position."""

    def __init__(self) -> None:
        self.found: list[int] = []
        self._open: int | None = None

    def begun(self, position: int) -> None:
        """Note that a transaction begins at ``position``."""
        self.interrupted(position)
        self._open = position

    def interrupted(self, position: int) -> None:
        """Note that what comes from ``position`` on belongs to no transaction before it."""
        if self._open is not None:
            self.found.append(position - self._open)
            self._open = None

    def end(self, last: SegmentReader, following: Iterable[SegmentReader]) -> None:
        """Find the end of the transaction that is open after ``last`` in the segments that follow."""
        if self._open is None:
            return
        position = last.stop_position
        for segment in following:
            position = segment.first_position
            first = next(iter(segment.transactions()), None)
            for entry, start in zip(segment.index, segment.starts, strict=True):
                position = segment.first_position + start
                if entry.kind == Kind.CHANGES and entry.transactions:
                    assert first is not None
                    self.interrupted(segment.first_position + first.position)
                    return
                if entry.kind == Kind.EVENT or (entry.kind == Kind.ROWS and entry.changes):
                    self.interrupted(position)
                    return
                position += entry.changes
        self.interrupted(position)
