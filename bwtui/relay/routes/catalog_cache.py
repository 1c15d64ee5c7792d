"""A cache of the catalog's types and keys, for changes that are older than a DROP.

The replication stream identifies a column's type by its number alone, and under REPLICA IDENTITY FULL it does
not identify the key. PostgreSQL's catalog describes the present: a domain or a table that was dropped since
is no longer in it. So the relay keeps earlier answers in its state folder, across restarts.
"""

import json
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

from bwtui.durable_files import write_atomically
from bwtui.types.registry import TypeInfo


class CatalogCache:
    """Types by oid and, by the table's oid, its key columns and those that a publication once left out."""

    def __init__(self, path: Path | None = None, system_identifier: str = "", database: str = "") -> None:
        """Open the file, ignoring one of a different server or database. Without a path nothing is stored."""
        self._path = path
        self._identity = [system_identifier, database]
        self._types: dict[int, TypeInfo] = {}
        self._keys: dict[int, tuple[str, ...]] = {}
        self._refused: dict[int, tuple[str, ...]] = {}
        if path is not None:
            self._load(path)

    def types(self, present: Mapping[int, TypeInfo]) -> dict[int, TypeInfo]:
        """Store the ``present`` types, and return all types ever seen; the present ones take precedence."""
        merged = self._types | dict(present)
        if merged != self._types:
            self._types = merged
            self._write()
        return merged

    def key(self, oid: int) -> tuple[str, ...]:
        """Return the key columns that the table had when it was last seen; none if it was never seen."""
        return self._keys.get(oid, ())

    def remember_key(self, oid: int, columns: tuple[str, ...]) -> None:
        """Store a table's key columns."""
        if self._keys.get(oid) != columns:
            self._keys[oid] = columns
            self._write()

    def refused_key(self, oid: int) -> tuple[str, ...]:
        """Return the key columns whose absence made the relay refuse rows of the table; usually none."""
        return self._refused.get(oid, ())

    def refuse_key(self, oid: int, missing: tuple[str, ...]) -> None:
        """Store that rows lacked these columns: the catalog may not show a trace of it any more."""
        if self._refused.get(oid) != missing:
            self._refused[oid] = missing
            self._write()

    def _load(self, path: Path) -> None:
        try:
            data: dict[str, Any] = json.loads(path.read_text())
            if data["identity"] == self._identity:
                self._types = {row[0]: TypeInfo(*row) for row in data["types"]}
                self._keys = {int(oid): tuple(columns) for oid, columns in data["keys"].items()}
                refused = data.get("refused", {})
                self._refused = {int(oid): tuple(columns) for oid, columns in refused.items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            # The cache is optional: the catalog is queried again for whatever is lost here.
            self._types, self._keys, self._refused = {}, {}, {}

    def _write(self) -> None:
        if self._path is None:
            return
        types = [astuple(info) for info in self._types.values()]
        tables = {"keys": self._keys, "refused": self._refused}
        text = json.dumps({"identity": self._identity, "types": types, **tables})
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._path, text)
        except OSError:
            # The slot checkpoint is in the same folder, and its own error ends the relay with a clear
            # message.
            return
