"""Where the digests of both sides of an audit are kept: in Parquet.

Also those that threads of this process make: DuckDB loads them sooner than out of memory, where every text is
there in full, and they take none.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from bwtui.audit import core
from bwtui.file_errors import file_failed
from bwtui.model.sql import parquet

Side = Literal["expected", "actual"]
SIDES: tuple[Side, Side] = ("expected", "actual")
#: What the recording's side has beside `bwtui.audit.core.INPUTS`.
_BESIDE = '"schema" varchar, "table" varchar, session varchar, key_schema_id integer, value_schema_id integer'
#: A task's output is cut into files of so many rows, which is how its progress is seen.
_FILE = 250_000


class Sides:
    """Keeps what tasks make, each its own part of one side; the files' names end with their rows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for side in SIDES:
            (folder / side).mkdir()

    def add(self, side: Side, number: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Write the batches of a task; one that is run again writes all of it again. Raises StateFailed."""
        target = self._folder / side
        for path in target.glob(f"{number:06}-*"):
            path.unlink()
        held: list[pa.RecordBatch] = []
        count = 0
        for batch in batches:
            held.append(batch)
            if sum(one.num_rows for one in held) >= _FILE:
                _write(target / f"{number:06}-{count:04}", held)
                held, count = [], count + 1
        if held:
            _write(target / f"{number:06}-{count:04}", held)

    def rows(self) -> int:
        """Return how many rows are in files that are finished."""
        return sum(int(path.stem.rpartition("-")[2]) for side in SIDES for path in self._found(side))

    def show(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Make the audit's inputs of the files: ``expected_in`` and ``actual_in``."""
        for side in SIDES:
            if files := list(self._found(side)):
                connection.execute(f"create view {side}_in as select * from {parquet(files)}")
            else:
                _make_empty(connection, side)

    def _found(self, side: Side) -> Iterator[Path]:
        return (self._folder / side).glob("*.parquet")


def _write(path: Path, batches: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(batches)
    part = path.with_suffix(".part")
    # To look for repetitions among numbers that are all different costs half of what writing does.
    words = [column.name for column in table.schema if pa.types.is_string(column.type)]
    try:
        pq.write_table(table, part, compression="lz4", write_statistics=False, use_dictionary=words)
        part.rename(path.with_name(f"{path.name}-{table.num_rows}.parquet"))
    except OSError as error:
        # Arrow's own words name the file a second time.
        plain = OSError(error.errno, os.strerror(error.errno)) if error.errno else error
        raise file_failed(
            f"digests can't be written into {path.parent}", plain, name=str(path.parent)
        ) from error


def _make_empty(connection: duckdb.DuckDBPyConnection, side: Side) -> None:
    beside = f", {_BESIDE}" if side == "expected" else ""
    connection.execute(f"create table {side}_in ({core.INPUTS[f'{side}_in']}{beside})")
