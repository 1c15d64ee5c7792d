"""Two messages whose bytes differ have different digests, however alike they are."""

from collections.abc import Iterable

import pyarrow as pa

from bwtui.verify import digests as verify_digests


def digests(values: Iterable[bytes | None]) -> list[tuple[int | None, int | None]]:
    """Return the digests of records that have each of the values as key and as value."""
    made = list(values)
    nothing = [None] * len(made)
    columns = dict.fromkeys(("kind", "topic", "partition", "offset", "offset_end", "timestamp"), nothing)
    batch = pa.RecordBatch.from_pydict(
        columns | {"key": pa.array(made, pa.binary()), "value": pa.array(made, pa.binary())}
    )
    with verify_digests._database() as connection:
        found = verify_digests._digests(connection, batch)
    return list(
        zip(found.column("key_digest").to_pylist(), found.column("value_digest").to_pylist(), strict=True)
    )


def test_two_bytes_that_are_eight_apart() -> None:
    """DuckDB's own hash has one value for 256 rows that differ in the last bytes of two words."""
    row = bytearray(b"\x00\x00\x00\x00\x07\x02\x0e\x00 balance \x00 and more")
    rows = []
    for left in range(64):
        for right in range(64):
            row[7], row[15] = left, right
            rows.append(bytes(row))
    assert len(set(digests(rows))) == len(rows)


def test_null_and_empty_are_two_things() -> None:
    null, empty, zero = digests([None, b"", b"\x00"])
    assert null == (None, None)
    assert None not in empty
    assert len({empty, zero}) == 2
