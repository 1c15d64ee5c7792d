"""Choose the number of rows of sealed files to read at a time, so that they fit into memory."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

#: Candidates: the first whose keys and values have at most this many bytes, over two row groups or more.
_ROWS = (100_000, 20_000, 5_000, 1_000, 200, 50, 10)
_BYTES = 160 << 20


def rows_at_a_time(paths: Iterable[Path], most: int = 20_000) -> int:
    """Return how many rows (at most ``most``) of consecutive files to read together.

    Even the largest ones then fit into memory. Raises OSError.
    """
    groups = [group for path in paths for group in _groups(path)]
    return next((rows for rows in _ROWS if rows <= most and _largest(groups, rows) <= _BYTES), 1)


def _groups(path: Path) -> list[tuple[int, int]]:
    metadata = pq.read_metadata(path)
    return [_group(metadata.row_group(number)) for number in range(metadata.num_row_groups)]


def _group(group: Any) -> tuple[int, int]:
    columns = map(group.column, range(group.num_columns))
    size = sum(one.total_uncompressed_size for one in columns if one.path_in_schema in ("key", "value"))
    return group.num_rows, size


def _largest(groups: Sequence[tuple[int, int]], rows: int) -> int:
    """Return the maximum size of that many rows; a touched row group may contribute all of its bytes."""
    largest, first, within, size = 0, 0, 0, 0
    for count, more in groups:
        size, within = size + more, within + count
        largest = max(largest, size)
        # The next group is included too as long as the rows can span from the first group into it.
        while first < len(groups) and within - groups[first][0] + 2 > rows:
            within, size = within - groups[first][0], size - groups[first][1]
            first += 1
    return largest
