"""Every packed payload is read back unchanged; any other bytes raise ValueError."""

import io
import tracemalloc
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bwtui.errors import DamagedRecording
from bwtui.pgoutput.messages import Binary, Column, Relation
from bwtui.recording import payloads
from bwtui.recording.blocks import (
    HEADER_SIZE,
    LAST_LSN,
    LAST_TIME,
    BlockKind,
    IndexEntry,
    SegmentFile,
    pack_header,
    pack_index,
    pack_trailer,
    unpack_index,
)
from bwtui.recording.payloads import (
    NO_FRAME,
    Cells,
    DeliveredRange,
    FilledValue,
    HeaderForm,
    MessageSection,
    NoMessageReason,
    Transaction,
    pack_batch,
    pack_delivery,
    pack_relation,
    unpack_batch,
    unpack_delivery,
    unpack_relation,
)
from tests.compiled_twin import COMPILER, built

#: A table has at most 1,600 columns (MaxHeapAttributeNumber).
COLUMN = st.integers(0, 1_599)
VALUE = st.binary(max_size=9).flatmap(lambda raw: st.sampled_from((raw, Binary(raw))))
U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
#: Values of a block's header.
TIMES = st.integers(0, LAST_TIME)
LSNS = st.integers(0, LAST_LSN)
CELL = st.one_of(st.none(), st.binary(max_size=30))


@st.composite
def batches(draw: Any) -> tuple[Any, ...]:
    """Draw the arguments of `pack_batch`."""
    frames = draw(st.lists(st.binary(max_size=40), max_size=8))
    frame = st.integers(0, len(frames) - 1) if frames else st.nothing()
    sections = []
    for _ in range(draw(st.integers(0, 3))):
        messages = draw(st.lists(st.tuples(st.one_of(frame, st.just(NO_FRAME)), CELL, CELL), max_size=8))
        columns = [list(column) for column in zip(*messages, strict=True)] or [[], [], []]
        sections.append(MessageSection(draw(U16), draw(st.sampled_from(HeaderForm)), *columns))
    without = draw(st.dictionaries(frame, st.sampled_from(NoMessageReason), max_size=3)) if frames else {}
    filled = draw(st.lists(st.builds(FilledValue, frame, COLUMN, VALUE), max_size=3)) if frames else []
    before = Transaction(draw(U64), draw(I64), draw(U32), draw(U32))
    return draw(U64), draw(U32), before, frames, sections, list(without.items()), filled


@given(batches())
def test_a_batch_comes_back(packed: tuple[Any, ...]) -> None:
    number, relation, before, frames, sections, without, filled = packed
    found = unpack_batch(b"".join(pack_batch(*packed)))
    assert found[:4] == (number, relation, before, frames)
    assert [section._replace(frames=list(section.frames)) for section in found.sections] == sections
    assert found.without == dict(without)
    assert found.filled == filled
    assert [type(one.text) for one in found.filled] == [type(one.text) for one in filled]


@given(batches())
def test_the_compiled_twin_and_python_pack_the_same(packed: tuple[Any, ...]) -> None:
    """Columns of the relay's messages, and cells that the C extension leaves to Python, are included."""
    *start, frames, sections, without, filled = packed
    large = [
        MessageSection(1, HeaderForm.NONE, [0], [b"k"], [b"x" * large]) for large in (1 << 16, (1 << 16) + 1)
    ]
    lists = [*sections, *large]
    cells = []
    for section in lists:
        messages = [(*message, 0, None) for message in zip(section.keys, section.values, strict=True)]
        cells.append(section._replace(keys=Cells(messages, 0), values=Cells(messages, 1)))
    wanted = pack_by(None, *start, frames, lists, without, filled)
    for compiled in (None, built().pack) if COMPILER else (None,):
        for given_sections in (lists, cells):
            assert pack_by(compiled, *start, frames, given_sections, without, filled) == wanted


def pack_by(compiled: Any, *packed: Any) -> bytes:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(payloads, "_compiled", compiled)
        return b"".join(pack_batch(*packed))


@pytest.mark.skipif(not COMPILER, reason="what is compiled can't be there without a compiler")
def test_what_the_compiled_twin_does_not_pack_is_left() -> None:
    pack = built().pack
    for cells, place in (([7], -1), ([b"", bytearray()], -1), ([b"a"], 0), ([(b"a",)], 1), ([[b"a"]], 0)):
        assert pack(cells, place, 9) is None
    assert pack([(b"a", b"b"), (None, b"")], 0, 1) == (b"\1\0\0\0\xff\xff\xff\xff", b"a")
    assert pack([b"ab"], -1, 1) is None
    assert pack([], 5, 1) == (b"", b"")
    for wrongly in (((b"a",), -1, 9), ([b"a"], -1), ([b"a"], "1", 9)):
        with pytest.raises(TypeError):
            pack(*wrongly)


def test_a_large_batch_comes_back() -> None:
    frames = [bytes([number % 256]) * (number % 50) for number in range(100_000)]
    section = MessageSection(1, HeaderForm.NONE, range(100_000), frames, [None, *frames[1:]])
    found = unpack_batch(b"".join(pack_batch(1, 0, Transaction(), frames, [section])))
    assert found.frames == frames
    assert found.sections[0].values == section.values


@given(batches(), st.integers(0, 1 << 20), st.integers(1, 255))
def test_a_mutated_batch_is_refused_or_read(packed: tuple[Any, ...], at: int, flip: int) -> None:
    data = bytearray(b"".join(pack_batch(*packed)))
    data[at % len(data)] ^= flip
    refused_or_read(unpack_batch, bytes(data))
    refused_or_read(unpack_batch, bytes(data[: at % len(data)]))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    refused_or_read(unpack_batch, data)
    refused_or_read(unpack_delivery, data)
    refused_or_read(unpack_index, data)


def refused_or_read(unpack: Any, data: bytes) -> None:
    """Allow only ValueError, and no more memory than a payload's own size requires."""
    tracemalloc.start()
    try:
        unpack(data)
    except ValueError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 100_000 + 200 * len(data)


@given(U64, U16, U32, st.lists(st.tuples(st.integers(-2, 1 << 30), I64), max_size=20))
def test_a_delivery_comes_back(
    payloads: int, section: int, first: int, places: list[tuple[int, int]]
) -> None:
    partitions, offsets = array("i", [p for p, _ in places]), array("q", [o for _, o in places])
    delivery = DeliveredRange(payloads, section, first, partitions, offsets)
    assert unpack_delivery(b"".join(pack_delivery(delivery))) == delivery


@given(st.lists(st.builds(IndexEntry, U64, U32, U32, U32, I64, U64, U64), max_size=20))
def test_an_index_comes_back(entries: list[IndexEntry]) -> None:
    assert unpack_index(pack_index(entries)) == entries


@given(
    st.builds(
        Relation,
        U32,
        st.text("aä\U0001f600 \"'.", min_size=1, max_size=9),
        st.text("aä\U0001f600 \"'.", max_size=9),
        st.sampled_from("dnfi"),
        st.lists(
            st.builds(Column, st.text("aä", max_size=9), U32, st.integers(-1, 1 << 30), st.booleans()),
            max_size=9,
        ).map(tuple),
        st.none(),
    )
)
def test_a_relation_comes_back(relation: Relation) -> None:
    assert unpack_relation(pack_relation(relation)) == relation


@given(
    st.lists(
        st.tuples(st.sampled_from(BlockKind), TIMES, LSNS, LSNS, st.lists(st.binary(max_size=50), max_size=4))
    )
)
def test_blocks_come_back(blocks: list[Any]) -> None:
    with segment_of(blocks) as file:
        found = list(file.blocks())
        sparse = list(file.blocks(with_payload=False))
    assert [(b.kind, b.received, b.first_lsn, b.last_lsn, b.payload) for b in found] == [
        (kind, received, first, last, b"".join(parts)) for kind, received, first, last, parts in blocks
    ]
    assert [block.number for block in sparse] == list(range(len(blocks)))
    assert [block.end for block in sparse] == [block.end for block in found]


@pytest.mark.parametrize("at", range(HEADER_SIZE + 5 + 24))
@pytest.mark.parametrize("bit", [0, 7])
def test_every_bit_of_a_block_and_of_a_trailer_counts(tmp_path: Path, at: int, bit: int) -> None:
    data = bytearray(pack_header(BlockKind.STATUS, 0, 5, 6, 7, [b"hello"]) + b"hello" + pack_trailer(77))
    data[at] ^= 1 << bit
    path = tmp_path / "segment"
    path.write_bytes(data)
    with path.open("rb") as file, pytest.raises(DamagedRecording, match="segment at byte"):
        segment = SegmentFile(file, "segment")
        list(segment.blocks())
        segment.index_offset()


@contextmanager
def segment_of(blocks: list[Any]) -> Iterator[SegmentFile]:
    """Build a segment file in memory, with its trailer."""
    data = b"".join(
        pack_header(kind, number, received, first, last, parts) + b"".join(parts)
        for number, (kind, received, first, last, parts) in enumerate(blocks)
    )
    with closing(SegmentFile(io.BytesIO(data + pack_trailer(0)), "segment")) as file:
        yield file
