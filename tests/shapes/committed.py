"""Compare committed changes, one by one in commit order, with the records of a topic."""

from collections import defaultdict
from collections.abc import Sequence

from tests.faults.records import OUTSIDE, Record
from tests.shapes.trees import Change


def assert_as_committed(records: Sequence[Record], committed: Sequence[Sequence[Change]]) -> None:
    """Check that the topic has each change once, none that was rolled back, and all in commit order.

    ``committed`` holds the changes of each transaction that made any, in the order in which the writer's
    COMMITs returned.
    """
    streamed = [record for record in records if record.operation not in OUTSIDE]
    last: dict[int, tuple[int, int]] = {}
    transactions: dict[int, list[Record]] = defaultdict(list)
    for record in streamed:
        place = (record.lsn, record.ordinal)
        assert place > last.get(record.partition, (0, 0)), f"partition {record.partition} at {place}"
        last[record.partition] = place
        transactions[record.lsn].append(record)
    for (lsn, found), expected in zip(sorted(transactions.items()), committed, strict=False):
        found.sort(key=lambda record: record.ordinal)
        changes = [Change(one.key[0], one.value["number"] if one.value else None) for one in found]
        assert changes == list(expected), f"the transaction that commits at {lsn:X}"
        # Ordinals count the row changes of the transaction, without those that were rolled back.
        assert [record.ordinal for record in found] == list(range(1, len(found) + 1))
    assert len(transactions) == len(committed)
