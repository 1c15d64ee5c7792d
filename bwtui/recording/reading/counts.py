"""Counts as of a moving position, derived from those of a nearby position where that is cheaper."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from bwtui.recording.change import COUNTERS, Change
from bwtui.recording.view import RecordingView, TableCounts

#: Maximum number of changes to read from one position's counts to another's.
NEAR = 1_500


class CountCache:
    """Caches the counts of the last requested position, and of one before it to step back to."""

    def __init__(self, view: RecordingView) -> None:
        self._view = view
        self._position = 0
        self._counts: dict[str, TableCounts] = {}
        #: A position with the counts that the recording itself returned.
        self._base: tuple[int, dict[str, TableCounts]] = (0, {})

    def at(self, position: int) -> dict[str, TableCounts]:
        """Return the counts of what was relayed before ``position``, by table."""
        distance = position - self._position
        if abs(distance) > NEAR or not self._position or not position:
            self._begin_at(position)
        elif distance < 0:
            # A change has no record of what its table's topic and schemas were before it.
            if not self._base[0] <= position <= self._base[0] + NEAR:
                self._begin_at(max(position - NEAR // 2, 0))
            self._position, self._counts = self._base
        self._add(self._view.changes(self._position, position))
        self._position = position
        return self._counts

    def _begin_at(self, position: int) -> None:
        self._position, self._counts = self._base = position, dict(self._view.counts(position))

    def _add(self, changes: Iterator[Change]) -> None:
        counts = dict(self._counts)
        for change in changes:
            for table in change.tables:
                counts[table] = _counted(counts.get(table, TableCounts()), change)
        self._counts = counts


def _counted(counts: TableCounts, change: Change) -> TableCounts:
    messages, name = change.messages, COUNTERS[change.operation]
    last = messages[-1] if messages else None
    return replace(
        counts,
        **{name: getattr(counts, name) + 1},
        topic=last.topic if last else counts.topic,
        messages=counts.messages + len(messages),
        bytes=counts.bytes + change.message_bytes,
        dropped=counts.dropped + (change.without == "dropped"),
        key_schema_id=last.key_schema_id if last and last.key else counts.key_schema_id,
        value_schema_id=last.value_schema_id if last and last.value else counts.value_schema_id,
        key_columns=change.key_columns if len(change.tables) == 1 else counts.key_columns,
    )


def by_table(changes: Iterator[Change], most: int) -> tuple[Counter[str], int]:
    """Count the changes of each table among the first ``most``, and the changes read."""
    counts: Counter[str] = Counter()
    read = 0
    for change in changes:
        counts.update(change.tables)
        read += 1
        if read >= most:
            break
    return counts, read
