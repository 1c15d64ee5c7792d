"""Which tables, and ranges of tables, workers read: units that are read, and read again, as one."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bwtui.settings import RelaySettings
from bwtui.source.chunks.page_ranges import Size, conditions
from bwtui.source.snapshot import SnapshotTable

#: A worker costs half a second and 50 MB: by itself none is started for less than so much of tables.
WORKER_BYTES = 64 << 20
#: So many by themselves: with the engine they hold 300 MB.
_MOST_WORKERS = 3
#: A range has at most so much, and at least so much where it is for a worker more.
_MOST_BYTES, _LEAST_BYTES = 64 << 20, 8 << 20
#: So many ranges for each worker: the last ones end at about the same time.
_RANGES_EACH = 4
#: Small tables that are read as one.
_MOST_TABLES = 100


@dataclass(slots=True)
class Task:
    """Tables, or one range of a table."""

    number: int
    tables: Sequence[SnapshotTable]
    #: How often a worker was lost over it.
    losses: int = 0
    #: Dead letters that were kept of it, by digest: what is read again is kept once.
    kept: dict[bytes, int] = field(default_factory=dict)
    #: Those that were met since it was begun last.
    met: dict[bytes, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Its tables."""
        return [table.relation.qualified_name for table in self.tables]


def tasks_for(
    tables: Sequence[SnapshotTable], sizes: Mapping[int, Size], workers: int, server_version: int
) -> list[Task]:
    """Return what is to be read, the largest tables first; small ones are put together."""
    by_size = sorted(tables, key=lambda table: sizes[table.relation.oid].bytes, reverse=True)
    total = sum(size.bytes for size in sizes.values())
    most = min(_MOST_BYTES, max(_LEAST_BYTES, total // (workers * _RANGES_EACH)))
    found: list[list[SnapshotTable]] = []
    together: list[SnapshotTable] = []
    held = 0
    for table in by_size:
        size = sizes[table.relation.oid]
        ranges = conditions(size, most, server_version)
        if len(ranges) > 1 or size.bytes >= most:
            found += [[replace(table, pages=pages)] for pages in ranges]
            continue
        if together and (held + size.bytes > most or len(together) >= _MOST_TABLES):
            found.append(together)
            together, held = [], 0
        together.append(table)
        held += size.bytes
    if together:
        found.append(together)
    return [Task(number, members) for number, members in enumerate(found, start=1)]


def cores() -> int:
    """Return how many cores this process may use."""
    ours = getattr(os, "sched_getaffinity", None)
    return len(ours(0)) if ours is not None else os.cpu_count() or 1


def workers_for(settings: RelaySettings, cores: int, sizes: Mapping[int, Size]) -> int:
    """Return how many workers are wanted, or pay for tables of these sizes; with 1 the relay reads them."""
    if settings.snapshot_workers is not None:
        return settings.snapshot_workers
    return max(1, min(cores, _MOST_WORKERS, sum(size.bytes for size in sizes.values()) // WORKER_BYTES))
