"""How many rows of sealed files are read at a time, so that their keys and values fit into memory."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

#: The first of these whose keys and values have no more bytes than this: two row groups and more.
_ROWS = (100_000, 20_000, 5_000, 1_000, 200, 50, 10)
_BYTES = 160 << 20


def rows_at_a_time(paths: Iterable[Path], most: int = 20_000) -> int:
    """Return how many rows of files, ``most`` at most, are read together, one file behind the other.

    The largest ones together fit into memory. Raises OSError.
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
    """Return how many bytes so many rows may have at most; of a group that is touched all may be in them."""
    largest, first, within, size = 0, 0, 0, 0
    for count, more in groups:
        size, within = size + more, within + count
        largest = max(largest, size)
        # The next one is in it too as long as the rows can reach from the first group into it.
        while first < len(groups) and within - groups[first][0] + 2 > rows:
            within, size = within - groups[first][0], size - groups[first][1]
            first += 1
    return largest
