"""The tables that `bwtui.verify.folding.Fold` keeps in DuckDB.

In all of them ``topic`` and ``key`` are texts (a key's is JSON, with how it is
written if that differs from its topic's other keys), ``partition_id`` and ``log_offset`` say where a record
is, and ``timestamp_ms`` is its timestamp in milliseconds since 1970:

- ``latest``: the latest record of each key in each partition; ``arrived``: records read since it was folded.
- ``differing``: keys that differ at this fence; ``doubtful``: those that differed at the one before.
  ``class`` and ``fields`` (JSON) say how, ``note`` why. ``key_bytes`` is the key of the topic's newest
  record, ``key_texts`` PostgreSQL's texts of the key (JSON) where they are not those of ``key``.
- ``doubted``: what ``doubtful`` was after the first fence.
- ``changed_key``: doubtful keys with a record since; ``history``: every record that may have been a doubtful
  key's latest at the fence; ``agreed``: keys of which one of these says the row.
- ``in_letter``: differing keys of which the relay has a dead letter.
- ``wrong``: what is decided; ``undecided``: what can't be.
- ``stray``: rows of keys whose newest record is in another partition, ``newest_id``, at the last fence; null:
  the key's partition is another one. Those are found in ``away``.
- ``table_row``: the rows of the table being compared, as texts; ``key_texts`` as above.
- ``row_count``: how often (``n``) the topic had a row, by its MD5: rows without a key, and those sent under
  none, or under another key than the table's.
"""

#: Separates a key's text from how it is written, where its topic's other keys are written otherwise.
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
