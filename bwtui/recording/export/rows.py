"""A change as rows with the columns of a sealed recording: one per message, or one if it has no message.

A TRUNCATE yields one row per table. Times are Unix microseconds.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from bwtui.model.headers import SESSION
from bwtui.recording.change import KEY_CHANGE, Change, SentMessage
from bwtui.recording.query.rows import key_texts, row_texts, rows, unchanged_columns

COLUMNS = (
    "position",
    "pass",
    "session",
    "is_repeat",
    "lsn",
    "ordinal",
    "part",
    "op",
    "schema",
    "table",
    "xid",
    "commit_time",
    "received",
    "topic",
    "partition",
    "offset",
    "state",
    "without",
    "key",
    "value",
    "key_schema_id",
    "value_schema_id",
    "key_json",
    "before",
    "after",
    "filled",
    "unchanged",
    "header_form",
)


def message_rows(change: Change) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ``change``, each with a value for every column of `COLUMNS`."""
    before, after = _object(row_texts(change, old=True)), _object(row_texts(change, old=False))
    unchanged = unchanged_columns(change)
    for number, (part, message) in enumerate(rows(change)):
        yield (
            change.position,
            change.pass_number,
            _session(message),
            change.is_repeat,
            change.lsn,
            change.ordinal,
            number if message is None else message.part,
            _operation(change, message),
            part.relation.namespace,
            part.relation.name,
            change.xid,
            change.commit_time,
            change.received,
            *_delivery(message),
            change.without,
            *_encoded(message),
            _object(key_texts(part, message)),
            before,
            after,
            list(change.filled),
            unchanged,
            _header_form(message),
        )


def _operation(change: Change, message: SentMessage | None) -> str:
    """Return the operation; a tombstone of an update means that the row has left this key."""
    is_tombstone = message is not None and message.value is None
    return KEY_CHANGE if is_tombstone and change.operation == "update" else change.operation


def _delivery(message: SentMessage | None) -> tuple[Any, ...]:
    if message is None:
        return None, None, None, None
    return message.topic, message.partition, message.offset, message.state


def _encoded(message: SentMessage | None) -> tuple[Any, ...]:
    if message is None:
        return None, None, None, None
    return message.key, message.value, message.key_schema_id, message.value_schema_id


def _session(message: SentMessage | None) -> str | None:
    if message is None:
        return None
    return next((value.hex() for name, value in message.headers if name == SESSION), None)


def _header_form(message: SentMessage | None) -> str | None:
    """Return which record headers the message has; all but the session follow from the other columns."""
    if message is None:
        return None
    return ("none", "session")[len(message.headers)] if len(message.headers) < 2 else "full"


def _object(texts: Mapping[str, str | None] | None) -> str | None:
    return None if texts is None else json.dumps(texts, ensure_ascii=False)
