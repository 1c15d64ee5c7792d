"""Ranges of a table's pages that sessions sharing one snapshot read in parallel.

A snapshot shows each row in exactly one place, whatever is written meanwhile. So ranges of pages without
gaps, the last of them open-ended, together have every row exactly once. This needs no knowledge of keys and
no index, and only one session reads each page. From PostgreSQL 14 on, a range scans its own pages only. A
range of a partitioned table covers those pages in every partition, so the right to read the parent is enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bwtui.source.connection import Connection, query

#: TID range scans exist since PostgreSQL 14; before, each range would read the whole table.
_RANGES_SINCE = 140000
_SIZES_SQL = """
select t.oid::bigint,
       coalesce(max(pg_catalog.pg_relation_size(c.oid))
                / pg_catalog.current_setting('block_size')::bigint, 0)::bigint,
       coalesce(sum(pg_catalog.pg_table_size(c.oid)), 0)::bigint,
       coalesce(bool_and(c.relkind = 'r' and a.amname = 'heap'), false)
  from unnest(%s::oid[]) as t (oid)
  left join lateral (select p.relid::oid as oid from pg_catalog.pg_partition_tree(t.oid) p where p.isleaf) p
         on true
  left join pg_catalog.pg_class c on c.oid = coalesce(p.oid, t.oid)
  left join pg_catalog.pg_am a on a.oid = c.relam
 group by t.oid
"""


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of a table with all of its partitions; ``pages`` is the page count of its largest file.

    ``bytes`` includes out-of-line (TOAST) values. ``is_heap``: the table's access method is heap, so its rows
    are in pages.
    """

    pages: int
    bytes: int
    is_heap: bool


def sizes(connection: Connection, oids: Sequence[int]) -> dict[int, TableSize]:
    """Return the current sizes of tables by oid. Raises psycopg2.Error."""
    rows = query(connection, _SIZES_SQL, list(oids))
    return {oid: TableSize(pages, size, is_heap) for oid, pages, size, is_heap in rows}


def conditions(size: TableSize, most_bytes: int, server_version: int) -> list[str]:
    """Return conditions that each select the rows of some pages: about ``most_bytes``, TOAST values included.

    Together they select every row once. A single empty condition means the whole table: it is too small for
    ranges, is not a heap, or is on a server before PostgreSQL 14.
    """
    count = min(-(-size.bytes // most_bytes), size.pages)
    if count < 2 or not size.is_heap or server_version < _RANGES_SINCE:
        return [""]
    step = -(-size.pages // count)
    firsts = range(0, size.pages, step)
    if len(firsts) < 2:
        return [""]
    ends = [*firsts[1:], None]
    return [_condition(first, end) for first, end in zip(firsts, ends, strict=True)]


def _condition(first: int, end: int | None) -> str:
    begins = f"ctid >= '({first},0)'::pg_catalog.tid"
    return begins if end is None else f"{begins} and ctid < '({end},0)'::pg_catalog.tid"
