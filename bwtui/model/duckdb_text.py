"""Names in DuckDB's SQL: of files and of topics, whatever characters they have."""

import glob
from collections.abc import Iterable
from pathlib import Path


def quoted(text: str) -> str:
    """Return a text as a literal."""
    return "'" + text.replace("'", "''") + "'"


def exact(paths: Iterable[Path | str]) -> list[str]:
    """Return paths so that none is taken for a pattern: a recording's own name may look like one."""
    return [glob.escape(str(path)) for path in paths]


def parquet(paths: Iterable[Path | str]) -> str:
    """Return the table of some Parquet files; their folders' names are no columns."""
    return f"read_parquet([{', '.join(map(quoted, exact(paths)))}], hive_partitioning = false)"
