"""What becomes of a key, a value, or headers on both sides of an audit: a number of 63 bits.

It is DuckDB's MD5, or in a quarter of the time SipHash-2-4 (Aumasson and Bernstein, 2012) of the compiled
twin, with a key that is drawn for each audit. What is equal has the same one, and what differs has another
but for one pair in 2^63, whoever has made it. The ways are not mixed in an audit: tasks on other machines may
lack the twin.
"""

import secrets
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from bwtui.compiled import PACKAGE

#: In this order.
_PARTS = ("key", "value", "headers")


@dataclass(frozen=True, slots=True)
class Digest:
    """The way of one audit."""

    #: SipHash's, of 16 bytes; None: it is MD5.
    key: bytes | None = None

    def __repr__(self) -> str:
        return "Digest(MD5)" if self.key is None else "Digest(SipHash-2-4)"

    def columns(self, headers: str) -> str:
        """Return what a query selects of ``rows``, for `put_in`; ``headers`` makes a text of those."""
        if self.key is not None:
            return f"key, value, {headers} as headers"
        texts = zip(_PARTS, ("key", "value", headers), strict=True)
        return ", ".join(f"(md5_number({text}) >> 65)::bigint as {part}_digest" for part, text in texts)

    def put_in(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch that has digests in place of the parts, of which headers may be left out.

        They stand at its end. Those that a query has made are there already.
        """
        if self.key is None:
            return batch
        for part in _PARTS:
            has_it = part in batch.schema.names
            digests = self._of(batch.column(part)) if has_it else pa.nulls(batch.num_rows, pa.int64())
            batch = (batch.drop_columns([part]) if has_it else batch).append_column(f"{part}_digest", digests)
        return batch

    def _of(self, cells: pa.Array) -> pa.Array:
        if cells.null_count == len(cells):
            return pa.nulls(len(cells), pa.int64())
        cells = cells.cast(pa.binary())
        _, offsets, data = cells.buffers()
        made = PACKAGE.digests(offsets, data or b"", cells.offset, len(cells), self.key)
        numbers = pa.Array.from_buffers(pa.int64(), len(cells), [None, pa.py_buffer(made)])
        return pc.if_else(cells.is_valid(), numbers, None) if cells.null_count else numbers


def drawn(*, is_here: bool) -> Digest:
    """Return the way of an audit; ``is_here``: all its tasks run in this process."""
    return Digest(secrets.token_bytes(16) if is_here and PACKAGE is not None else None)
