"""Ranges of a table's pages, which sessions that share one snapshot read side by side.

A snapshot shows each row in one place, whatever is written meanwhile: so ranges of pages that leave no page
out, the last of them without an end, are all the rows once. Nothing has to be known of keys, and none has to
be indexed; a page is read by one session. From PostgreSQL 14 on a range is a scan of its pages alone.

Of a partitioned table a range is those pages of every partition: the right to read the table is enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bwtui.source.connection import Connection, query

#: TID range scans came with it; before, each range would read the whole table.
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
class Size:
    """How large a table is, with all of its partitions: ``pages`` are those of its largest file.

    ``bytes`` has its large values, too; ``is_heap``: what is in it has pages as PostgreSQL's own tables have.
    """

    pages: int
    bytes: int
    is_heap: bool


def sizes(connection: Connection, oids: Sequence[int]) -> dict[int, Size]:
    """Return the sizes of tables now, by oid. Raises psycopg2.Error."""
    rows = query(connection, _SIZES_SQL, list(oids))
    return {oid: Size(pages, size, is_heap) for oid, pages, size, is_heap in rows}


def conditions(size: Size, most_bytes: int, server_version: int) -> list[str]:
    """Return conditions that each have the rows of some pages: about ``most_bytes``, with large values.

    Together they have every row once. One that is empty is the whole table, which is too small for ranges, or
    has none.
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
