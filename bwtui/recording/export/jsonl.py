"""Export changes as JSON, one object per line (see docs/export.md). Values are exact."""

import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO

from bwtui.pgoutput.messages import Field, UnchangedToast
from bwtui.recording.change import Change, SentMessage
from bwtui.recording.export.writer import Writer
from bwtui.recording.query.rows import UnknownValue, key_is_old, sent_value, unchanged_columns

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class JsonWriter(Writer):
    """Writes one line per change, with exact values."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

    def write(self, change: Change) -> None:
        self._file.write(self._encode(change_object(change)).encode() + b"\n")


def change_object(change: Change) -> dict[str, Any]:
    """Return the JSON object of a change."""
    return {
        "position": change.position,
        "pass": change.pass_number,
        "lsn": change.lsn_text,
        "ordinal": change.ordinal,
        "xid": change.xid,
        "op": change.operation,
        "schema": change.relation.namespace,
        "table": change.relation.name,
        "tables": list(change.tables),
        "commit_time": time_text(change.commit_time),
        "received": time_text(change.received),
        "key": _key(change),
        "before": _row(change, old=True),
        "after": _row(change, old=False),
        "unchanged": unchanged_columns(change),
        "filled": list(change.filled),
        "without": change.without,
        "is_repeat": change.is_repeat,
        "messages": [_message(message) for message in change.messages],
    }


def time_text(micros: int) -> str:
    """Return a time as ISO 8601 in UTC, with microseconds."""
    moment = _EPOCH + timedelta(microseconds=micros)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _key(change: Change) -> dict[str, Any] | None:
    row = _row(change, old=key_is_old(change, None))
    if row is None or not change.key_columns:
        return None
    return {name: row[name] for name in change.key_columns if name in row}


def _row(change: Change, *, old: bool) -> dict[str, Any] | None:
    if (change.before if old else change.after) is None:
        return None
    row = {}
    for index, column in enumerate(change.relation.columns):
        value = sent_value(change, index, old=old)
        if not isinstance(value, UnknownValue | UnchangedToast):
            row[column.name] = exact(value)
    return row


def exact(value: Field) -> Any:
    """Return a value's text; bytes that are not UTF-8 become ``{"hex": …}``, which no text value can be."""
    if value is None:
        return None
    assert isinstance(value, bytes)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _message(message: SentMessage) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "state": message.state,
        "key_schema_id": message.key_schema_id,
        "value_schema_id": message.value_schema_id,
        "key": _base64(message.key),
        "value": _base64(message.value),
        "headers": [[name, _base64(value)] for name, value in message.headers],
    }


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else b64encode(raw).decode()
