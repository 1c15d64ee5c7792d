"""The messages of --transaction-topic, read as by a consumer of Debezium's."""

import io
import json
from typing import Any

import fastavro
import pytest

from bwtui.encode.transaction_metadata import KEY_SCHEMA, VALUE_SCHEMA, MetadataEncoder

EVENTS = {"public.orders": 2, "public.päckchen": 70_000}
SAID: list[dict[str, Any]] = [
    {"status": "BEGIN", "id": "571:53195829", "event_count": None, "data_collections": None, "ts_ms": 7},
    {
        "status": "END",
        "id": "571:53195832",
        "event_count": 70_002,
        "data_collections": [
            {"data_collection": "public.orders", "event_count": 2},
            {"data_collection": "public.päckchen", "event_count": 70_000},
        ],
        "ts_ms": 7,
    },
    {"status": "END", "id": "571:1", "event_count": 0, "data_collections": [], "ts_ms": 7},
]


def told(form: MetadataEncoder) -> list[tuple[bytes, bytes]]:
    return [
        form.begin("571:53195829", 7),
        form.end("571:53195832", 7, EVENTS),
        form.end("571:1", 7, {}),
    ]


def test_json() -> None:
    messages = told(MetadataEncoder())
    assert [json.loads(value) for _, value in messages] == SAID
    assert [json.loads(key) for key, _ in messages] == [{"id": one["id"]} for one in SAID]


@pytest.mark.parametrize("part", [0, 1])
def test_avro(part: int) -> None:
    schema = fastavro.parse_schema(json.loads((KEY_SCHEMA, VALUE_SCHEMA)[part]))
    found: list[Any] = []
    for message in told(MetadataEncoder(3, 4)):
        data = io.BytesIO(message[part])
        assert data.read(5) == b"\x00" + (3, 4)[part].to_bytes(4)
        found.append(fastavro.schemaless_reader(data, schema, None))
        assert not data.read()
    assert found == (SAID if part else [{"id": one["id"]} for one in SAID])
