"""Counts as of a moving position, derived from those of a nearby position where that is cheaper."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from bwtui.recording.change import COUNTERS, Change
from bwtui.recording.view import RecordingView, TableCounts

#: Maximum number of changes to read from one position's counts to another's.
NEAR = 1_500


class CountCache:
    """Caches the counts of the last requested position."""

    def __init__(self, view: RecordingView) -> None:
        self._view = view
        self._position = 0
        self._counts: dict[str, TableCounts] = {}

    def at(self, position: int) -> dict[str, TableCounts]:
        """Return the counts of what was relayed before ``position``, by table."""
        distance = position - self._position
        if abs(distance) > NEAR or not self._position or not position:
            self._counts = dict(self._view.counts(position))
        elif distance > 0:
            self._add(self._view.changes(self._position, position), 1)
        elif distance < 0:
            self._add(self._view.changes(position, self._position), -1)
        self._position = position
        return self._counts

    def _add(self, changes: Iterator[Change], sign: int) -> None:
        counts = dict(self._counts)
        for change in changes:
            for table in change.tables:
                counts[table] = _counted(counts.get(table, TableCounts()), change, sign)
        self._counts = counts


def _counted(counts: TableCounts, change: Change, sign: int) -> TableCounts:
    messages, name = change.messages, COUNTERS[change.operation]
    last = messages[-1] if messages else None
    return replace(
        counts,
        **{name: getattr(counts, name) + sign},
        topic=last.topic if last else counts.topic,
        messages=counts.messages + sign * len(messages),
        bytes=counts.bytes + sign * change.message_bytes,
        dropped=counts.dropped + sign * (change.without == "dropped"),
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
