"""Find the encoding of each topic's keys: a key in a different encoding is a different key."""

from collections.abc import Sequence

import duckdb

from bwtui.verify.agreement import Agreement
from bwtui.verify.tables import TableShape

_COUNTS = """
select topic, split_part(key, chr(1), 2) as spelling, count(value), max(timestamp_ms)
  from latest
 where starts_with(key, '[') and contains(key, chr(1)) and not list_contains(?::varchar[], topic)
 group by all
"""


def find_key_encodings(
    store: duckdb.DuckDBPyConnection,
    agreement: Agreement,
    quick: Sequence[TableShape],
    spellings: dict[str, str],
) -> None:
    """Find the most common key encoding of each topic, and record it in ``spellings``.

    An encoding is a schema's ID, "json" or "odd". For the topics of ``quick``, nearly all keys are in
    ``agreement``; for others they are in ``latest``.
    """
    counts = store.execute(_COUNTS, [list(spellings)]).fetchall()
    counts += agreement.spellings([one for one in quick if one.table.key], {topic for topic, *_ in counts})
    for topic, spelling, _, _ in sorted(counts, key=lambda one: (-one[2], -one[3], one[1])):
        if topic in spellings:
            continue
        spellings[topic] = spelling
        store.execute(
            "update latest set key = split_part(key, chr(1), 1)"
            " where topic = ? and starts_with(key, '[') and split_part(key, chr(1), 2) = ?",
            [topic, spelling],
        )
        # A topic that had no keys before: all of them arrived since.
        for table, columns in (("changed_key", "distinct topic, key"), ("history", "*")):
            store.execute(
                f"insert into {table} select {columns} from latest semi join doubtful using (topic, key)"
                " where topic = ?",
                [topic],
            )
