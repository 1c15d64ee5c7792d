"""Count what a transaction did."""

from collections import Counter
from dataclasses import dataclass, field

from bwtui.recording.view import RecordingView


@dataclass(slots=True)
class TransactionCounts:
    """Counts over the changes of a transaction, or over the first of them."""

    #: Changes by table and operation.
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Messages by state, and changes without one by reason.
    messages: Counter[str] = field(default_factory=Counter)

    @property
    def by_table(self) -> dict[str, list[str]]:
        """The operations on each table as text: ``3 update``."""
        tables: dict[str, list[str]] = {}
        for (table, operation), count in self.changes.items():
            tables.setdefault(table, []).append(f"{count:,} {operation}")
        return tables


def counted(view: RecordingView, start: int, stop: int) -> TransactionCounts:
    """Count the changes at positions ``[start, stop)``. Raises DamagedRecording."""
    counts = TransactionCounts()
    for change in view.changes(start, stop):
        counts.changes[change.table, change.operation] += 1
        counts.messages.update(message.state for message in change.messages)
        if change.without:
            counts.messages[change.without] += 1
    return counts
