"""Recognises the records of a key: by the bytes of its messages or, if these are unknown, by its text."""

from collections.abc import Callable

from bwtui.recording.reading.explain import RowKey
from bwtui.recording.reading.sent_keys import body_of
from bwtui.tui.audit.kafka_records import RecordDecoder

#: Maximum number of cached results.
_REMEMBERED = 100_000


def same_bytes(known: bytes) -> Callable[[bytes], bool]:
    """Return a function that recognises the key by its bytes, ignoring the schema id in front of them."""
    body = body_of(known)
    return lambda key: key[:1] == known[:1] and body_of(key) == body


def same_text(key: RowKey, reader: RecordDecoder) -> Callable[[bytes], bool]:
    """Return a function that decodes each new key and compares it with ``key`` field by field."""
    wanted = {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else None
        for name, value in zip(key.columns, key.values, strict=True)
    }
    met: dict[bytes, bool] = {}

    def is_key(data: bytes) -> bool:
        answer = met.get(data)
        if answer is None:
            answer = dict(reader.row(data).fields) == wanted
            if len(met) < _REMEMBERED:
                met[data] = answer
        return answer

    return is_key
