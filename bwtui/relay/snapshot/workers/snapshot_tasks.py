"""Divide the snapshot into tasks for workers: tables, or ranges of tables, that are read as a unit."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bwtui.settings import RelaySettings
from bwtui.source.chunks.page_ranges import TableSize, conditions
from bwtui.source.snapshot import SnapshotTable

#: A worker costs half a second and 50 MB: by default none is started for less than this much data.
WORKER_BYTES = 64 << 20
#: Maximum workers by default: with the engine they take 300 MB.
_MOST_WORKERS = 3
#: Maximum size of a range, and its minimum size if it is for an additional worker.
_MOST_BYTES, _LEAST_BYTES = 64 << 20, 8 << 20
#: Number of ranges for each worker, so that the last ones end at about the same time.
_RANGES_EACH = 4
#: Maximum number of small tables that are read as one task.
_MOST_TABLES = 100


@dataclass(slots=True)
class SnapshotTask:
    """Tables, or one range of a table."""

    number: int
    tables: Sequence[SnapshotTable]
    #: How often a worker was lost while it read this task.
    losses: int = 0
    #: Dead letters stored for it, by digest: when it is read again, each is stored only once.
    stored_letters: dict[bytes, int] = field(default_factory=dict)
    #: Dead letters met since it was last started.
    letters_seen: dict[bytes, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Its tables."""
        return [table.relation.qualified_name for table in self.tables]


def tasks_for(
    tables: Sequence[SnapshotTable], sizes: Mapping[int, TableSize], workers: int, server_version: int
) -> list[SnapshotTask]:
    """Return the tasks, largest tables first; small tables are combined."""
    by_size = sorted(tables, key=lambda table: sizes[table.relation.oid].bytes, reverse=True)
    total = sum(size.bytes for size in sizes.values())
    most = min(_MOST_BYTES, max(_LEAST_BYTES, total // (workers * _RANGES_EACH)))
    groups: list[list[SnapshotTable]] = []
    group: list[SnapshotTable] = []
    group_bytes = 0
    for table in by_size:
        size = sizes[table.relation.oid]
        ranges = conditions(size, most, server_version)
        if len(ranges) > 1 or size.bytes >= most:
            groups += [[replace(table, pages=pages)] for pages in ranges]
            continue
        if group and (group_bytes + size.bytes > most or len(group) >= _MOST_TABLES):
            groups.append(group)
            group, group_bytes = [], 0
        group.append(table)
        group_bytes += size.bytes
    if group:
        groups.append(group)
    return [SnapshotTask(number, members) for number, members in enumerate(groups, start=1)]


def cores() -> int:
    """Return how many cores this process may use."""
    ours = getattr(os, "sched_getaffinity", None)
    return len(ours(0)) if ours is not None else os.cpu_count() or 1


def workers_for(settings: RelaySettings, cores: int, sizes: Mapping[int, TableSize]) -> int:
    """Return the configured number of workers, or the one that pays off; with 1 the relay reads itself."""
    if settings.snapshot_workers is not None:
        return settings.snapshot_workers
    return max(1, min(cores, _MOST_WORKERS, sum(size.bytes for size in sizes.values()) // WORKER_BYTES))
