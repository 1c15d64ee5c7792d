"""The dead letters: rows dropped on purpose, each with the reason, fsynced before their LSN is confirmed.

One JSON object per line, in a file that only its owner may read, since it contains row values::

    {"time": "…", "table": "public.orders", "topic": "orders", "operation": "update",
     "commit_lsn": "0/…", "ordinal": 3, "xid": 741, "error": "…", "reason": "…", "key": ["id"],
     "before": {…} | null, "after": {…} | null}

A row is its columns' text forms as PostgreSQL wrote them. null is NULL, a value that PostgreSQL did not send
(unchanged TOAST) is omitted, and bytes that are not UTF-8 are lone surrogates (surrogateescape).
"""

import datetime
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bwtui.durable_files import open_private
from bwtui.model.lsn import format_lsn
from bwtui.pgoutput.messages import Field

#: The columns of a dead letter whose row is not available any more: only the message that Kafka rejected is.
ENCODED = ("base64 of the message's key", "base64 of the message's value")


@dataclass(frozen=True, slots=True)
class ChangeIdentity:
    """Identifies a change: the commit's LSN, and the ordinal among its transaction's row changes.

    For a row of the snapshot the LSN is the consistent point, the ordinal counts the table's rows, and xid is
    0.
    """

    commit_lsn: int
    ordinal: int
    xid: int


@dataclass(frozen=True, slots=True)
class DroppedRow:
    table: str
    topic: str
    operation: str
    identity: ChangeIdentity
    columns: Sequence[str]
    before: Sequence[Field] | None
    after: Sequence[Field] | None
    #: The key's columns; empty if the table has no key.
    key: Sequence[str] = ()


class DeadLetterWriter:
    """Appends to the dead-letter file of one relay."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "dead-letters.jsonl"

    def letter(self, row: DroppedRow, error: str, reason: str) -> dict[str, Any]:
        """Return the dead letter for ``row``."""
        return {
            "time": datetime.datetime.now(datetime.UTC).isoformat(),
            "table": row.table,
            "topic": row.topic,
            "operation": row.operation,
            "commit_lsn": format_lsn(row.identity.commit_lsn),
            "ordinal": row.identity.ordinal,
            "xid": row.identity.xid,
            "error": error,
            "reason": reason,
            "key": list(row.key),
            "before": _texts(row.columns, row.before),
            "after": _texts(row.columns, row.after),
        }

    def keep(self, letter: dict[str, Any]) -> None:
        """Write ``letter`` durably. Raises OSError."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.path, "ab", opener=open_private) as file:
            file.write(json.dumps(letter).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the dead letters, oldest first."""
        if self.path.exists():
            with self.path.open("rb") as file:
                for line in file:
                    yield json.loads(line)


def _texts(columns: Sequence[str], fields: Sequence[Field] | None) -> dict[str, str | None] | None:
    if fields is None:
        return None
    return {
        name: None if field is None else field.decode("utf-8", "surrogateescape")
        for name, field in zip(columns, fields, strict=True)
        if field is None or isinstance(field, bytes)
    }
