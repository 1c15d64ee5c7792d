"""Store the keys of a topic in a temporary database, so that memory stays bounded for a topic of any size."""

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path

from bwtui.sink.destination import KeyRecord

#: Number of records or keys that are processed together.
BATCH = 10_000
#: Size of the page cache in KiB: keys arrive in a different order than their pages have.
_CACHE = 32 << 10


@contextmanager
def keys_on_disk(table: str) -> Iterator[sqlite3.Connection]:
    """Yield a database with one ``table``, whose primary key is named ``key``, and remove it afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="bwtui-") as folder,
        closing(sqlite3.connect(Path(folder) / "keys.sqlite")) as database,
    ):
        database.execute("pragma synchronous = off")
        database.execute("pragma journal_mode = off")
        database.execute(f"pragma cache_size = -{_CACHE}")
        database.execute(f"create table {table} without rowid")
        yield database


def in_batches(records: Iterator[KeyRecord]) -> Iterator[list[KeyRecord]]:
    """Return the records in batches of up to `BATCH`."""
    return iter(lambda: list(islice(records, BATCH)), [])


def each(database: sqlite3.Connection, sql: str, keys: Iterable[bytes]) -> None:
    """Run a statement for each key, in the order of their pages, which halves the cost."""
    database.executemany(sql, ((key,) for key in sorted(keys)))
