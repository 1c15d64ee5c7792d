"""Kafka's own segment files: record batches of format 2, read and written as a broker does.

`write` makes one batch for each record, so that offsets may have gaps as in a compacted log.
"""

import struct
from dataclasses import dataclass, field
from pathlib import Path

#: Base offset, length, leader epoch, magic, checksum; then the fields that the checksum covers: attributes,
#: last offset's delta, first and last timestamp, producer's id, epoch and sequence, number of records.
_HEAD, _BODY = struct.Struct(">qiibI"), struct.Struct(">hiqqqhii")
_SEGMENT = "00000000000000000000"
_TABLE: list[int] = []
for _number in range(256):
    for _ in range(8):
        _number = _number >> 1 ^ 0x82F63B78 * (_number & 1)
    _TABLE.append(_number)


@dataclass
class Rec:
    """A record of a log."""

    offset: int
    ts: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    #: Write the record with an invalid checksum.
    is_damaged: bool = False


def crc32c(data: bytes) -> int:
    """Return the checksum of a batch."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def varint(number: int) -> bytes:
    """Return a number as Kafka, and Avro, write it: zigzag, in groups of seven bits."""
    number = number << 1 ^ number >> 63
    out = bytearray()
    while number & ~0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return number >> 1 ^ -(number & 1), at


def _cell(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _read_varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _cell_of(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def read(folder: Path) -> list[Rec]:
    """Return the records of a partition's one segment, whose batches are not compressed."""
    data = (folder / f"{_SEGMENT}.log").read_bytes()
    records, at = [], 0
    while at + _HEAD.size <= len(data):
        base, length, *_ = _HEAD.unpack_from(data, at)
        if length <= 0:
            break
        attributes, _, first_ts, *_, count = _BODY.unpack_from(data, at + _HEAD.size)
        assert not attributes & 0x27, "compressed, or a control batch"
        record = at + _HEAD.size + _BODY.size
        for _ in range(count):
            size, record = _read_varint(data, record)
            records.append(_record(data[record : record + size], base, first_ts))
            record += size
        at += 12 + length
    return records


def _record(data: bytes, base: int, first_ts: int) -> Rec:
    ts, at = _read_varint(data, 1)
    delta, at = _read_varint(data, at)
    key, at = _cell(data, at)
    value, at = _cell(data, at)
    count, at = _read_varint(data, at)
    headers = []
    for _ in range(count):
        name, at = _cell(data, at)
        content, at = _cell(data, at)
        headers.append((name or b"", content))
    return Rec(base + delta, first_ts + ts, key, value, headers)


def write(folder: Path, records: list[Rec]) -> None:
    """Write the records as a partition's only segment; the stopped broker rebuilds indexes when it starts."""
    for path in folder.glob(f"{_SEGMENT}.*"):
        path.unlink()
    for path in folder.glob("*.snapshot"):
        path.unlink()
    (folder / f"{_SEGMENT}.log").write_bytes(b"".join(map(_batch, records)))


def _batch(record: Rec) -> bytes:
    content = b"\0" + varint(0) + varint(0) + _cell_of(record.key) + _cell_of(record.value)
    content += varint(len(record.headers))
    content += b"".join(_cell_of(name) + _cell_of(value) for name, value in record.headers)
    body = _BODY.pack(0, 0, record.ts, record.ts, -1, -1, -1, 1) + varint(len(content)) + content
    return _HEAD.pack(record.offset, len(body) + _HEAD.size - 12, 0, 2, crc32c(body)) + body


def damage(folder: Path, records: list[Rec]) -> None:
    """Make the checksums of damaged records wrong while the broker runs: its start would truncate them."""
    with (folder / f"{_SEGMENT}.log").open("r+b") as file:
        at = 0
        for batch, record in ((_batch(one), one) for one in records):
            if record.is_damaged:
                file.seek(at + _HEAD.size - 1)
                file.write(bytes([batch[_HEAD.size - 1] ^ 1]))
            at += len(batch)
