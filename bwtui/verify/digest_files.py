"""Keep the digests of both sides of an audit in Parquet files.

This also applies to digests computed by threads of this process: DuckDB loads files faster than memory, in
which every text is stored in full, and they take no memory.
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
#: Columns of the recording's side in addition to `bwtui.audit.core.INPUTS`.
_BESIDE = '"schema" varchar, "table" varchar, session varchar, key_schema_id integer, value_schema_id integer'
#: Maximum rows of an output file of a task; finished files show its progress.
_FILE = 250_000


class DigestFiles:
    """Keeps the output of tasks, each with its own part of one side; a file's name ends with its row
    count.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for side in SIDES:
            (folder / side).mkdir()

    def add(self, side: Side, number: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Write the batches of a task; a task that is repeated replaces its files. Raises StateFailed."""
        target = self._folder / side
        for path in target.glob(f"{number:06}-*"):
            path.unlink()
        pending: list[pa.RecordBatch] = []
        count = 0
        for batch in batches:
            pending.append(batch)
            if sum(one.num_rows for one in pending) >= _FILE:
                _write(target / f"{number:06}-{count:04}", pending)
                pending, count = [], count + 1
        if pending:
            _write(target / f"{number:06}-{count:04}", pending)

    def rows(self) -> int:
        """Return the number of rows in finished files."""
        return sum(int(path.stem.rpartition("-")[2]) for side in SIDES for path in self._found(side))

    def show(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Create the audit's inputs from the files: ``expected_in`` and ``actual_in``."""
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
    # Looking for duplicates among distinct numbers costs half as much as writing them.
    words = [column.name for column in table.schema if pa.types.is_string(column.type)]
    try:
        pq.write_table(table, part, compression="lz4", write_statistics=False, use_dictionary=words)
        part.rename(path.with_name(f"{path.name}-{table.num_rows}.parquet"))
    except OSError as error:
        # Arrow's own message names the file a second time.
        plain = OSError(error.errno, os.strerror(error.errno)) if error.errno else error
        raise file_failed(
            f"digests can't be written into {path.parent}", plain, name=str(path.parent)
        ) from error


def _make_empty(connection: duckdb.DuckDBPyConnection, side: Side) -> None:
    beside = f", {_BESIDE}" if side == "expected" else ""
    connection.execute(f"create table {side}_in ({core.INPUTS[f'{side}_in']}{beside})")
