"""The tables that `bwtui.verify.folding.Fold` keeps in DuckDB.

In all of them ``topic`` and ``key`` are texts. A key's text is JSON, followed by its encoding if that differs
from its topic's other keys. ``partition_id`` and ``log_offset`` are the position of a record, and
``timestamp_ms`` is its timestamp in milliseconds since 1970:

- ``latest``: the latest record of each key in each partition; ``arrived``: records read since the last fold.
- ``differing``: keys that differ at this fence; ``doubtful``: those that differed at the previous one.
  ``class`` and ``fields`` (JSON) say how, ``note`` why. ``key_bytes`` is the key of the topic's newest
  record, ``key_texts`` PostgreSQL's texts of the key (JSON) if they differ from those of ``key``.
- ``doubted``: the content of ``doubtful`` after the first fence.
- ``changed_key``: doubtful keys with a newer record; ``history``: every record that may have been a doubtful
  key's latest at the fence; ``agreed``: keys for which one of these equals the row.
- ``in_letter``: differing keys for which the relay has a dead letter.
- ``wrong``: keys that are decided; ``undecided``: keys that can't be.
- ``stray``: rows of keys whose newest record is in another partition, ``newest_id``, at the last fence; null:
  the key belongs into a different partition. ``away`` has the latter.
- ``table_row``: the rows of the table being compared, as texts; ``key_texts`` as above.
- ``row_count``: how often (``n``) the topic had a row, by its MD5: rows without a key, and those sent without
  one, or under a different key than the table's.
"""

#: Separates a key's text from its encoding, if that differs from the topic's other keys.
SPELLED = "\x01"

_DIFFERENCE = (
    "topic varchar, key varchar, class varchar, fields varchar, partition_id integer, log_offset bigint,"
    " note varchar, key_bytes blob, key_texts varchar"
)
_RECORD = (
    "topic varchar, key varchar, partition_id integer, log_offset bigint, timestamp_ms bigint, value blob,"
    " key_bytes blob"
)
#: Name → columns.
TABLES = {
    "latest": _RECORD,
    "arrived": _RECORD,
    "doubtful": _DIFFERENCE,
    "differing": _DIFFERENCE,
    "wrong": _DIFFERENCE,
    "undecided": _DIFFERENCE,
    "stray": f"{_RECORD}, newest_id integer",
    "away": "topic varchar, key varchar, partition_id integer",
    "doubted": "topic varchar, key varchar, class varchar",
    "changed_key": "topic varchar, key varchar",
    "history": _RECORD,
    "agreed": "topic varchar, key varchar",
    "table_row": "key varchar, row varchar, key_texts varchar",
    "in_letter": "topic varchar, key varchar, note varchar",
    "row_count": "topic varchar, digest varchar, n bigint",
}
