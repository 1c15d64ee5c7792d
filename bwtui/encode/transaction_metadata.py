"""The messages of --transaction-topic: BEGIN and END of a transaction, with the same fields as Debezium's.

::

    form = MetadataEncoder(key_id, value_id)             # or MetadataEncoder() for JSON
    form.begin("571:53195829", 1486500577125)         # framed key and value
    form.end("571:53195832", 1486500577125, {"public.orders": 2})
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

from bwtui.types.varint import NULL, VALUE, long, prefixed, union_long

_frame = struct.Struct(">BI").pack
_NAMESPACE = "io.debezium.connector.common"


def _record(name: str, fields: list[dict[str, Any]], namespace: str = _NAMESPACE) -> dict[str, Any]:
    whole = f"{namespace}.{name}"
    return {
        "type": "record",
        "name": name,
        "namespace": namespace,
        "fields": fields,
        "connect.version": 1,
        "connect.name": whole,
    }


_COLLECTION = _record(
    "collection",
    [{"name": "data_collection", "type": "string"}, {"name": "event_count", "type": "long"}],
    "event",
)
KEY_SCHEMA = json.dumps(_record("TransactionMetadataKey", [{"name": "id", "type": "string"}]))
VALUE_SCHEMA = json.dumps(
    _record(
        "TransactionMetadataValue",
        [
            {"name": "status", "type": "string"},
            {"name": "id", "type": "string"},
            {"name": "event_count", "type": ["null", "long"], "default": None},
            {
                "name": "data_collections",
                "type": ["null", {"type": "array", "items": ["null", _COLLECTION]}],
                "default": None,
            },
            {"name": "ts_ms", "type": "long"},
        ],
    )
)


class MetadataEncoder:
    """Encodes these messages, in Avro with registered schemas, or as JSON."""

    def __init__(self, key_id: int | None = None, value_id: int | None = None) -> None:
        self._key_head = None if key_id is None else _frame(0, key_id)
        self._value_head = None if value_id is None else _frame(0, value_id)

    def begin(self, id: str, ts_ms: int) -> tuple[bytes, bytes]:
        """Return key and value for a transaction's begin; ``ts_ms`` is its commit in Unix milliseconds."""
        return self._key(id), self._value("BEGIN", id, None, ts_ms)

    def end(self, id: str, ts_ms: int, events: Mapping[str, int]) -> tuple[bytes, bytes]:
        """Return key and value for a transaction's end; ``events`` has the number of messages by table."""
        return self._key(id), self._value("END", id, events, ts_ms)

    def _key(self, id: str) -> bytes:
        if self._key_head is None:
            return json.dumps({"id": id}).encode()
        return self._key_head + prefixed(id.encode())

    def _value(self, status: str, id: str, events: Mapping[str, int] | None, ts_ms: int) -> bytes:
        if self._value_head is None:
            return _json(status, id, events, ts_ms)
        parts = [self._value_head, prefixed(status.encode()), prefixed(id.encode())]
        if events is None:
            parts += [NULL, NULL]
        else:
            parts += [union_long(sum(events.values())), VALUE]
            if events:
                parts.append(long(len(events)))
            parts += [
                VALUE + prefixed(table.encode("utf-8", "surrogateescape")) + long(count)
                for table, count in events.items()
            ]
            # An array ends with an empty block.
            parts.append(long(0))
        return b"".join([*parts, long(ts_ms)])


def _json(status: str, id: str, events: Mapping[str, int] | None, ts_ms: int) -> bytes:
    data = {
        "status": status,
        "id": id,
        "event_count": None if events is None else sum(events.values()),
        "data_collections": None
        if events is None
        else [{"data_collection": table, "event_count": count} for table, count in events.items()],
        "ts_ms": ts_ms,
    }
    return json.dumps(data).encode()
