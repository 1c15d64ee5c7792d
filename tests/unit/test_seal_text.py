"""The fast path for a frame's texts gives the slow path's result, even for texts that look like heads."""

import pytest

from bwtui.pgoutput.messages import Column, Relation
from bwtui.pgoutput.tuples import MISLEADING
from bwtui.seal.rows import TextMaker

RELATION = Relation(1, "public", "t", "d", (Column("id", 23, -1, True), Column("note", 25, -1, False)))


def frame(tag: bytes, *texts: bytes) -> bytes:
    row = b"".join(b"t" + len(one).to_bytes(4, "big") + one for one in texts)
    return b"w" + bytes(24) + tag + b"\0\0\0\1N" + len(texts).to_bytes(2, "big") + row


@pytest.mark.parametrize("length", [MISLEADING - 1, MISLEADING, MISLEADING | 0x1000000])
def test_a_text_with_a_misleading_length_is_read_as_it_is(length: int) -> None:
    maker = TextMaker(RELATION, ("id",), 0)
    texts = maker.insert(frame(b"I", b"7", b"z" * length))
    assert texts == maker._any_insert(frame(b"I", b"7", b"z" * length))
    assert texts[3] == f'{{"id": "7", "note": "{"z" * length}"}}'
    assert texts[4] == '{"id": "7"}'
    assert maker.update(frame(b"U", b"7", b"z" * length))[3] == texts[3]
