"""Encodings of keys: equal keys are one key only if their bytes are equal."""

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import pytest

from bwtui.audit.canonical_values import ODD, Schemas, decode, decode_key
from bwtui.audit.core import DifferingPair, RecordPlace
from bwtui.verify.recording import KafkaByteReader, KafkaRecord, RowReader

_KEY = {
    "type": "record", "name": "k",
    "fields": [{"name": "id", "type": ["null", "long"]}, {"name": "s", "type": ["null", "string"]}],
}  # fmt: skip
_SCHEMAS = Schemas({7: json.dumps(_KEY), 8: json.dumps({**_KEY, "doc": "again"})})


def avro(number: int = 7) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(_KEY), {"id": 70, "s": "é"})
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (avro(), "7"),
        (avro(8), "8"),
        # The same varint in three bytes instead of two.
        (avro().replace(b"\x8c\x01", b"\x8c\x81\x00"), ODD),
        (avro()[:5] + b"\x82\x00" + avro()[6:], ODD),
        ('{"id": 70, "s": "é"}'.encode(), "json"),
        (b'{"id":70,"s":"\\u00e9"}', ODD),
        (b'{"id": 70, "s": "\\u00e9"}', ODD),
        (b'{"id": 1.50, "s": "a\\"\\n\\udc80", "b": true, "n": null}', "json"),
    ],
)
def test_a_spelling(data: bytes, expected: str) -> None:
    row, spelled = decode_key(data, _SCHEMAS)
    assert spelled == expected
    assert row == decode(data, _SCHEMAS)


class _AtHand(KafkaByteReader):
    """Has one message and one record."""

    def __init__(self, sent: bytes, there: bytes) -> None:
        super().__init__({}, ["t"], [], RowReader("json", _SCHEMAS), {}, [])
        self._sent, self._there = sent, there

    def messages(self, ids: Sequence[int]) -> dict[int, Any]:
        return {number: (None, self._sent, {}) for number in ids}

    def records(self, places: Sequence[RecordPlace]) -> dict[RecordPlace, KafkaRecord]:
        return {place: KafkaRecord(None, self._there, {}) for place in places}


@pytest.mark.parametrize(
    ("there", "is_same"),
    [
        (b'{"a":1, "b": -0.0}', True),
        (b'{"a": true, "b": -0.0}', False),
        (b'{"a": 1.0, "b": -0.0}', False),
        (b'{"a": 1, "b": 0.0}', False),
        (b'{"a": "1", "b": -0.0}', False),
        (b'{"a": 1, "b": -0.0, "c": null}', False),
    ],
)
def test_rows_are_the_same_if_nothing_can_tell_them_apart(there: bytes, is_same: bool) -> None:
    """In Python 1, 1.0 and true are equal."""
    reader = _AtHand(b'{"a": 1, "b": -0.0}', there)
    assert list(reader.equal_rows([DifferingPair(9, 0, 0, 0)])) == ([9] if is_same else [])
