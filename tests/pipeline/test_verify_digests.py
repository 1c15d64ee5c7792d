"""Two messages whose bytes differ have different digests, however alike they are."""

from array import array
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bwtui.recording.parquet import SCHEMA
from bwtui.recording.sealed import SealedFile
from bwtui.verify import digests as verify_digests
from bwtui.verify.digests import Digest
from tests.compiled_twin import COMPILER, built


@pytest.fixture(params=["MD5", "SipHash"] if COMPILER else ["MD5"])
def digest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Digest:
    """Each implementation."""
    if request.param == "MD5":
        return Digest()
    monkeypatch.setattr(verify_digests, "speedups", built())
    return Digest(bytes(range(16)))


def digests(values: Iterable[bytes | None], digest: Digest) -> list[tuple[int | None, int | None]]:
    """Return the digests of records that have each of the values as key and as value."""
    made = list(values)
    nothing = [None] * len(made)
    columns = dict.fromkeys(("kind", "topic", "partition", "offset", "offset_end", "timestamp"), nothing)
    batch = pa.RecordBatch.from_pydict(
        columns | {"key": pa.array(made, pa.binary()), "value": pa.array(made, pa.binary())}
    )
    (found,) = verify_digests._actual([batch], digest, with_headers=False)
    assert found.column("headers_digest").null_count == len(made)
    return list(
        zip(found.column("key_digest").to_pylist(), found.column("value_digest").to_pylist(), strict=True)
    )


def test_two_bytes_that_are_eight_apart(digest: Digest) -> None:
    """DuckDB's own hash has one value for 256 rows that differ in the last bytes of two words."""
    row = bytearray(b"\x00\x00\x00\x00\x07\x02\x0e\x00 balance \x00 and more")
    rows = []
    for left in range(64):
        for right in range(64):
            row[7], row[15] = left, right
            rows.append(bytes(row))
    assert len(set(digests(rows, digest))) == len(rows)


def test_null_and_empty_are_two_things(digest: Digest) -> None:
    null, empty, zero = digests([None, b"", b"\x00"], digest)
    assert null == (None, None)
    assert None not in empty
    assert len({empty, zero}) == 2


def test_large_values_are_taken_a_few_at_a_time(
    digest: Digest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole values leave DuckDB if it does not hash them itself, and Arrow accepts at most 2 GiB."""
    count, value = 2_000, b"x" * 100_000
    columns = {field.name: pa.nulls(count, field.type) for field in SCHEMA}
    columns |= {
        "position": pa.array(range(count), pa.int64()),
        "part": pa.array([0] * count, SCHEMA.field("part").type),
        "key": pa.array([b"k"] * count, SCHEMA.field("key").type),
        "value": pa.array([value] * count, SCHEMA.field("value").type),
    }
    pq.write_table(pa.table(columns), tmp_path / "large.parquet", row_group_size=600, use_dictionary=False)
    taken: list[int] = []
    put_in = Digest.put_in

    def noted(self: Digest, batch: pa.RecordBatch) -> pa.RecordBatch:
        taken.append(batch.nbytes)
        return put_in(self, batch)

    monkeypatch.setattr(Digest, "put_in", noted)
    file = SealedFile("large.parquet", "changes", count, 1, "")
    with verify_digests._database() as connection:
        made = list(verify_digests._expected(connection, tmp_path, [file], digest, with_headers=False))
    assert max(taken) < 160 << 20
    assert sum(batch.num_rows for batch in made) == count
    assert {one for batch in made for one in batch["value_digest"].to_pylist()} == {
        digests([value], digest)[0][1]
    }


def test_a_part_of_a_column_has_its_own_digests(digest: Digest) -> None:
    values = [None, b"a", b"", b"abcdefgh", None, b"abcdefghi"]
    whole = pa.array(values, pa.binary())
    every = [key for key, _ in digests(values, digest)]
    assert digest.key is None or digest._of(whole.slice(1, 4)).to_pylist() == every[1:5]


@pytest.mark.skipif(not COMPILER, reason="there is no C compiler, so there is no twin")
def test_siphash_is_what_its_authors_say() -> None:
    """The authors' test vectors of SipHash-2-4: key 00 to 0f, input bytes 00, 01, …; 63 bits are kept."""
    said = {0: 0x726FDB47DD0E0E31, 1: 0x74F839C593DC67FD, 2: 0x0D6C8009D9A94F5A, 15: 0xA129CA6149BE45E5}
    cells = pa.array([bytes(range(size)) for size in said], pa.binary())
    _, offsets, data = cells.buffers()
    made = built().digests(offsets, data, 0, len(cells), bytes(range(16)))
    assert list(memoryview(made).cast("q")) == [one >> 1 for one in said.values()]


@pytest.mark.skipif(not COMPILER, reason="there is no C compiler, so there is no twin")
@pytest.mark.parametrize(
    ("offsets", "first", "count", "key"),
    [
        ((0, 3), 0, 1, b"k" * 15),
        ((0, 3), 0, 2, b"k" * 16),
        ((0, 3), 2, 0, b"k" * 16),
        ((0, 3), -1, 1, b"k" * 16),
        ((0, 3), 0, -1, b"k" * 16),
        ((0, 3), 1, 2**62, b"k" * 16),
        ((0, 4), 0, 1, b"k" * 16),
        ((2, 1, 3), 0, 2, b"k" * 16),
        ((-1, 1), 0, 1, b"k" * 16),
        ((), 0, 0, b"k" * 16),
    ],
)
def test_what_is_no_array_is_refused(offsets: tuple[int, ...], first: int, count: int, key: bytes) -> None:
    with pytest.raises(ValueError, match="no cells"):
        built().digests(pa.py_buffer(array("i", offsets)), b"abc", first, count, key)
