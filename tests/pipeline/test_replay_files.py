"""The rows of many files are read in the order of the recording, however the files overlap."""

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bwtui.recording.sealed import SealedFile
from bwtui.replay.rows import FileSelection, chains, merged, share_out


def _file(first: int, last: int) -> SealedFile:
    name, rows = f"{first}-{last}", last - first + 1
    return SealedFile(name, "changes", rows, 100, "", first_position=first, last_position=last)


def test_files_that_follow_each_other_are_one_chain() -> None:
    files = [_file(20, 29), _file(0, 9), _file(10, 19), _file(5, 25), _file(30, 40)]
    found = [[one.first_position for one in chain] for chain in chains(files)]
    assert found == [[0, 10, 20, 30], [5]]


def _batches(rows: list[tuple[int, int]], size: random.Random) -> Iterator[pa.RecordBatch]:
    while rows:
        count = size.randint(1, 5)
        some, rows = rows[:count], rows[count:]
        yield pa.RecordBatch.from_pydict({"position": [a for a, _ in some], "part": [b for _, b in some]})


@pytest.mark.parametrize("seed", range(50))
def test_rows_are_merged(seed: int) -> None:
    choice = random.Random(seed)
    sources: list[list[tuple[int, int]]] = [[] for _ in range(choice.randint(0, 4))]
    for position in range(choice.randint(0, 60) if sources else 0):
        # A change has one or two messages, which are in one file.
        choice.choice(sources).extend((position, part) for part in range(choice.randint(1, 2)))
    found = merged([_batches(rows, choice) for rows in sources])
    rows = [(one["position"], one["part"]) for batch in found for one in batch.to_pylist()]
    assert rows == sorted(row for source in sources for row in source)


def test_large_values_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "large.parquet"
    schema = pa.schema([("position", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for start in range(0, 240, 60):
            positions = list(range(start, start + 60))
            values = [b"%d" % (at % 10) * (1 << 20) for at in positions]
            table = pa.table([positions, [None] * 60, values], schema)
            writer.write_table(table)
        # Small files follow.
        writer.write_table(pa.table([list(range(240, 3_000)), [b"k"] * 2_760, [b"v"] * 2_760], schema))
    file = SealedFile(str(path), "changes", 3_000, path.stat().st_size, "", last_position=2_999)
    batches = list(FileSelection((file,), "true").in_order(("position", "key", "value"), 0))
    assert max(batch.nbytes for batch in batches) <= 64 << 20
    assert max(batch.num_rows for batch in batches) < 240
    assert [at for batch in batches for at in batch["position"].to_pylist()] == list(range(3_000))


def test_tasks_have_about_the_same_to_do() -> None:
    tasks = share_out({0: 50, 1: 30, 2: 30, 3: 10}, 6, 2)
    assert len(tasks) == 6 and sum((50, 30, 30, 10)[lane] for lane in range(4) if tasks[lane] == 0) == 60
    assert share_out({4: 1}, 5, 8) == [0] * 5
