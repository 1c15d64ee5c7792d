"""The totals of a segment, as its foot records them.

The first versions do not know backfilled rows: they count them as snapshot rows, and compare the foot with
that count. So the foot records them twice, within snapshot_rows and separately.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bwtui.recording.format.blocks import BlockKind, IndexEntry
from bwtui.recording.format.parsing import Count


@dataclass(slots=True)
class SegmentTotals:
    """Totals of the blocks so far; times in Unix microseconds. ``tables`` maps names to counters."""

    changes: int = 0
    transactions: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    first_received: int = 0
    last_received: int = 0
    #: The LSN up to which everything was durable at the sink.
    reached: int = 0
    tables: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, entry: IndexEntry, counts: Sequence[Count]) -> None:
        """Add one block, and its increments of the tables' counters."""
        self.changes += entry.changes
        self.transactions += entry.transactions
        self.first_received = self.first_received or entry.received
        self.last_received = max(self.last_received, entry.received)
        if entry.kind in (BlockKind.CHANGES, BlockKind.ROWS):
            self.first_lsn = self.first_lsn or entry.first_lsn
            self.last_lsn = max(self.last_lsn, entry.last_lsn)
        elif entry.kind == BlockKind.REACHED:
            self.reached = max(self.reached, entry.last_lsn)
        for table, counter, number in counts:
            counters = self.tables.setdefault(table, {})
            counters[counter] = counters.get(counter, 0) + number

    def to_json(self) -> dict[str, Any]:
        """Return the totals in the form of the foot."""
        tables = {table: dict(counters) for table, counters in self.tables.items()}
        backfilled = {table: counters.pop(_PUT, 0) for table, counters in tables.items()}
        for table, rows in backfilled.items():
            if rows:
                tables[table][_ROWS] = tables[table].get(_ROWS, 0) + rows
        content = {**dataclasses.asdict(self), "tables": tables}
        return {**content, _PUT: {table: rows for table, rows in backfilled.items() if rows}}


_ROWS, _PUT = "snapshot_rows", "backfill_rows"


def counters_of(foot: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the tables' counters from a foot, as they were given to `SegmentTotals.add`."""
    tables = {table: dict(counters) for table, counters in foot["tables"].items()}
    for table, rows in foot.get(_PUT, {}).items():
        tables[table][_ROWS] -= rows
        tables[table][_PUT] = rows
        if not tables[table][_ROWS]:
            del tables[table][_ROWS]
    return tables
