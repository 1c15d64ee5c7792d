"""Tables as digests of their rows, computed by PostgreSQL: row values never leave it.

A table is read block by block in ranges of ``ctid``, with one statement and one result value each, so that
Python sees no rows. The digest is that of `bwtui.verify.canonical`, with the row's location, which stays the
same as long as the snapshot exists.
"""

from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from bwtui.source.connection import Connection, query
from bwtui.verify.canonical import PARTS
from bwtui.verify.tables import TableShape, from_table

#: Number of blocks that one statement reads: at most some hundred thousand short rows.
_BLOCKS = 2_000
_LINE = np.dtype([("block", ">u4"), ("line", ">u2"), ("table_oid", ">u4"), ("words", "<u8", (4,))])


def digest_table(
    snapshot: Connection, store: duckdb.DuckDBPyConnection, shape: TableShape, number: int
) -> None:
    """Put the rows of a table into ``row_digest`` of `bwtui.verify.agreement`, under the table's ``number``.

    Raises psycopg2.Error.
    """
    assert shape.records is not None
    for digests in _ranges(snapshot, shape):
        lines = np.frombuffer(digests, _LINE)
        words = np.ascontiguousarray(lines["words"])
        columns: dict[str, Any] = {f"{name}{half}": words[:, at * 2 + half]
                                   for at, name in enumerate(("key", "row")) for half in (0, 1)}  # fmt: skip
        columns["part"] = columns["key0" if shape.records.key is not None else "row0"] % PARTS
        for name in ("block", "line", "table_oid"):
            columns[name] = lines[name].astype(lines[name].dtype.newbyteorder("="))
        store.register("digested_rows", pa.table(columns))
        store.execute(
            """insert into row_digest
               select ?, part, key0, key1, row0, row1, table_oid, block, line from digested_rows""",
            [number],
        )
        store.unregister("digested_rows")


def _ranges(snapshot: Connection, shape: TableShape) -> Iterator[memoryview]:
    assert shape.records is not None
    # Without a key, the key's digest is zero.
    key = "pg_catalog.repeat('0', 32)" if shape.records.key is None else _md5(shape.records.key.sql())
    line = (
        "pg_catalog.tidsend(ctid) || pg_catalog.oidsend(tableoid)"
        f" || pg_catalog.decode({key} || {_md5(shape.records.row.sql())}, 'hex')"
    )
    for low in range(0, shape.records.blocks + 1, _BLOCKS):
        # The last range is open-ended.
        end = f" and ctid < '({low + _BLOCKS},0)'" if low + _BLOCKS <= shape.records.blocks else ""
        ((digests,),) = query(
            snapshot,
            f"select pg_catalog.string_agg({line}, ''::pg_catalog.bytea) {from_table(shape)}"
            f" and ctid >= '({low},0)'{end}",
        )
        if digests is not None:
            yield digests


def _md5(record: str) -> str:
    return f"pg_catalog.md5({record})"
