"""Which records are of a key: by the bytes of its messages, or, where none of them is known, by its text."""

from collections.abc import Callable

from bwtui.recording.reading.explain import Key
from bwtui.tui.audit.kafka import Reader

#: Of Confluent's wire format: a zero byte, and the schema's id.
_HEAD = 5
#: Keys whose texts are remembered.
_REMEMBERED = 100_000


def same_bytes(known: bytes) -> Callable[[bytes], bool]:
    """Return what knows the key by its bytes; under another schema it has another id in front of them."""
    if known[:1] != b"\0" or len(known) <= _HEAD:
        return known.__eq__
    body = known[_HEAD:]
    return lambda key: key[:1] == b"\0" and key[_HEAD:] == body


def same_text(key: Key, reader: Reader) -> Callable[[bytes], bool]:
    """Return what decodes each key that it has not met, and compares it with ``key`` field by field."""
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
