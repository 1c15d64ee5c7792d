"""Digest each key, value and header list on both sides of an audit to a number of 63 bits.

The digest is DuckDB's MD5, or, in a quarter of the time, SipHash-2-4 (Aumasson and Bernstein, 2012) of the C
extension, with a random key for each audit. Equal values have equal digests; two different ones have the same
with a probability of 1 in 2^63, whatever their producer. One audit uses only one of the two: tasks on other
machines may lack the extension.
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
    """The digest function of one audit."""

    #: SipHash's key, 16 bytes; None: MD5.
    key: bytes | None = None

    def __repr__(self) -> str:
        return "Digest(MD5)" if self.key is None else "Digest(SipHash-2-4)"

    def columns(self, headers: str) -> str:
        """Return the columns that a query selects for `put_in`; ``headers`` is SQL for the headers' text."""
        if self.key is not None:
            return f"key, value, {headers} as headers"
        texts = zip(_PARTS, ("key", "value", headers), strict=True)
        return ", ".join(f"(md5_number({text}) >> 65)::bigint as {part}_digest" for part, text in texts)

    def put_in(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with digests in place of the parts; headers may be missing.

        The digests are its last columns. Digests that a query has computed are there already.
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
        digests = PACKAGE.digests(offsets, data or b"", cells.offset, len(cells), self.key)
        numbers = pa.Array.from_buffers(pa.int64(), len(cells), [None, pa.py_buffer(digests)])
        return pc.if_else(cells.is_valid(), numbers, None) if cells.null_count else numbers


def drawn(*, is_here: bool) -> Digest:
    """Return the digest function for an audit; ``is_here``: all of its tasks run in this process."""
    return Digest(secrets.token_bytes(16) if is_here and PACKAGE is not None else None)
