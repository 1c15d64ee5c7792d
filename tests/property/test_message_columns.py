"""The C extension makes the same columns of Kafka's messages, and tags of frames, as Python does."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from bwtui.kafka import columns
from bwtui.kafka.columns import SplitBatches
from bwtui.kafka.scan import Split
from bwtui.pgoutput.frames import PAYLOAD_OFFSET
from bwtui.recording import walk
from tests.compiled_twin import COMPILER, built

pytestmark = pytest.mark.skipif(not COMPILER, reason="what is compiled can't be there without a compiler")

_COLUMNS = ("kind", "topic", "partition", "offset", "offset_end", "timestamp", "key", "value")
_CELL = st.one_of(st.none(), st.just(b""), st.binary(max_size=40))
_TIME = st.tuples(st.integers(0, 2), st.integers(-1, (1 << 63) - 1))


class Odd:
    """A message with values that confluent-kafka never returns."""

    def __init__(self, key: Any = b"k", value: Any = b"v", time: Any = (1, 5)) -> None:
        self._key, self._value, self._time = key, value, time

    def key(self) -> Any:
        return self._key() if callable(self._key) else self._key

    def value(self) -> Any:
        return self._value() if callable(self._value) else self._value

    def timestamp(self) -> Any:
        return self._time


def batches(messages: list[Any], offsets: list[int], compiled: Any) -> list[pa.RecordBatch]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "_compiled", compiled)
        return list(SplitBatches(Split("t", 3, 0, 100), _COLUMNS).of_messages(messages, offsets))


@given(st.lists(st.tuples(_CELL, _CELL, _TIME), max_size=40), st.integers(0, 1 << 40), st.data())
def test_columns_are_the_same(rows: list[tuple[Any, Any, tuple[int, int]]], first: int, data: Any) -> None:
    steps = data.draw(st.lists(st.integers(1, 3), min_size=len(rows), max_size=len(rows)))
    offsets = [first + sum(steps[:number]) for number in range(len(rows))]
    messages = [
        Message("t", 3, offset, key, value, timestamp=time)
        for offset, (key, value, time) in zip(offsets, rows, strict=True)
    ]
    found, wanted = (batches(messages, offsets, twin) for twin in (built().columns, None))
    assert found == wanted
    for batch in found:
        batch.validate(full=True)
        assert batch.column("key").to_pylist() == [key for key, _, _ in rows]
        assert batch.column("value").to_pylist() == [value for _, value, _ in rows]
        assert batch.column("timestamp").to_pylist() == [time for _, _, (_, time) in rows]
        assert batch.column("offset").to_pylist() == offsets


@pytest.mark.parametrize(
    "odd",
    [
        Odd(key="text"),
        Odd(value=bytearray(b"v")),
        Odd(time=None),
        Odd(time=(1,)),
        Odd(time=(1, "5")),
        Odd(time=(1, 1 << 63)),
        Odd(time=[1, 5]),
    ],
)
def test_what_is_no_message_is_left_to_python(odd: Odd) -> None:
    assert built().columns([Odd(), odd, Odd()]) is None


def test_what_is_asked_may_do_anything() -> None:
    messages: list[Any] = []

    def clears() -> bytes:
        messages.clear()
        return b"k" * 1_000

    messages += [Odd(clears), Odd(b"x" * 1_000, None), Odd()]
    times, (_, offsets, data), (there, _, values) = built().columns(messages)
    assert (len(times), len(offsets)) == (24, 16)
    assert (data[1_000:], there, values) == (b"x" * 1_000 + b"k", b"\5", b"vv")

    def fails() -> bytes:
        raise RuntimeError("no word")

    with pytest.raises(RuntimeError, match="no word"):
        built().columns([Odd(), Odd(value=fails)])
    with pytest.raises(AttributeError):
        built().columns([Odd(), object()])
    own = SimpleNamespace(key=lambda: b"k", value=lambda: None, timestamp=lambda: (1, 2))
    assert built().columns([own])[1][2] == b"k"
    with pytest.raises(TypeError):
        built().columns((Odd(),))


@given(st.lists(st.binary(max_size=2 * PAYLOAD_OFFSET), max_size=20))
def test_tags_are_the_same(frames: list[bytes]) -> None:
    def told(compiled: Any) -> bytes | str:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(walk, "_compiled", compiled)
            try:
                return walk.tags(frames)
            except IndexError as error:
                return str(error)

    assert told(built().tags) == told(None)


def test_what_are_no_frames_has_no_tags() -> None:
    tags = built().tags
    assert tags([b"ab", b"cd"], 1) == b"bd"
    assert tags([], 1) == b""
    for frames, at in (([b"ab", b"c"], 1), ([b"ab"], -1), ([bytearray(b"ab")], 0), ([None], 0)):
        assert tags(frames, at) is None
    with pytest.raises(TypeError):
        tags((b"ab",), 0)
