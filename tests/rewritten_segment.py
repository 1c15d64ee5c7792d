"""Rewrite a segment with different payloads, and with valid checksums and offsets."""

from collections.abc import Callable
from pathlib import Path

from bwtui.recording.blocks import (
    UNMARKED,
    BlockKind,
    JournalBlock,
    mark_after,
    pack_header,
    pack_index,
    pack_trailer,
    unpack_index,
)

#: Function of a block and of the preceding bytes and headers; returns the payload.
Say = Callable[[JournalBlock, bytearray, bytearray], bytes]


def rewrite(path: Path, blocks: list[JournalBlock], say: Say) -> None:
    """Write ``blocks`` with the payloads that ``say`` returns; an unchanged index gets the new offsets."""
    written, headers, offsets, index, mark = bytearray(), bytearray(), [], 0, UNMARKED
    for block in blocks:
        offsets.append(len(written))
        said = say(block, written, headers)
        if block.kind == BlockKind.INDEX:
            index = len(written)
            if said is block.payload:
                entries = zip(unpack_index(said), offsets, strict=False)
                said = pack_index([entry._replace(offset=at) for entry, at in entries])
        header = pack_header(block.kind, block.number, *block[2:5], [said], mark)
        if block.kind == BlockKind.HEAD:
            mark = mark_after(header, said)
        headers += header
        written += header + said
    path.write_bytes(written + (pack_trailer(index) if index else b""))
