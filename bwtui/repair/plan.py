"""Plan the repair of topics: turn a comparison's differences into lists of keys, and counts.

A list has a row's key if the table may have a row for it: the relay reads the present row, so that nothing
outdated is sent, and sends a tombstone if there is none. Raw key bytes are listed only if no row can have
them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwtui.audit.canonical_values import ODD, Schemas, UndecodableMessage, decode_key, schema_id
from bwtui.model.backfill_texts import snapshot_command
from bwtui.relay.history.backfill_store import Key, write_keys
from bwtui.repair.strays import KeyPartitioner, StrayList
from bwtui.verify.folding import UNTRUSTED, Doubt, KeyDifference
from bwtui.verify.tables import ComparedTable

#: Maximum number of keys named for each table.
EXAMPLES = 3


@dataclass(slots=True)
class TablePlan:
    """The messages to send for one table."""

    table: str
    topic: str
    doubts: tuple[Doubt, ...] = ()
    #: Keys whose rows are missing or different in the topic; keys without a row; and key bytes that no row
    #: has. The latter two get a tombstone each.
    rows: int = 0
    tombstones: int = 0
    raw_tombstones: int = 0
    #: Tombstones into partitions that have a row of a key but are not the key's own.
    stray_tombstones: int = 0
    #: Keys that were written in every round, or for which nothing is proven: they are not sent.
    undecided: int = 0
    #: Rows that are missing or different in the topic and have no key, or one that is not valid text.
    unnamed: int = 0
    #: Keys in bytes that the relay sends now, or may send, while most of the topic's have a different
    #: encoding.
    current_bytes: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)
    keys: Path | None = None
    strays: StrayList | None = None
    #: The encoding of the topic's keys, in the terms of `bwtui.audit.canonical_values.decode_key`; "" if none
    #: was seen.
    spelling: str = ""
    #: The key's columns, in the table's order.
    key_columns: tuple[str, ...] = ()
    #: The relay's name, if a command has to name it.
    relay: str = ""

    @property
    def messages(self) -> int:
        """Number of messages to send."""
        return sum(self.counts)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Number of rows, and of tombstones of each kind."""
        return self.rows, self.tombstones, self.raw_tombstones, self.stray_tombstones

    @property
    def is_trusted(self) -> bool:
        """Whether the messages to send cover everything that the topic's consumers may have wrong."""
        is_doubtful = any(doubt.name in UNTRUSTED for doubt in self.doubts)
        return not (is_doubtful or self.current_bytes or self.unnamed)

    @property
    def is_unkeyed(self) -> bool:
        """Whether the table has no key."""
        return any(doubt.name == "unkeyed" for doubt in self.doubts)

    def notes(self) -> list[str]:
        """Return further notes on the table."""
        notes = [doubt.text for doubt in self.doubts]
        command = snapshot_command([self.table], relay=self.relay, unkeyed=self.is_unkeyed)
        if self.undecided:
            notes.append(
                f"{self.undecided:,} keys are undecided and not sent: they were written during "
                "every comparison"
            )
        if self.unnamed:
            notes.append(
                f"{self.unnamed:,} rows are missing in the topic or differ, and have no key by "
                "which they could be sent: "
                f"'{command}' sends the whole table again"
            )
        if self.current_bytes:
            notes.append(
                f"{self.current_bytes:,} keys are not sent: the relay's current key encoding differs, "
                "or may differ, from "
                f"that of the topic's other keys; run '{command}', then repair the topic"
            )
        return notes

    def to_json(self) -> dict[str, Any]:
        """Return it in the form of ``repair --json``."""
        return {
            "table": self.table,
            "topic": self.topic,
            "rows": self.rows,
            "tombstones": self.tombstones,
            "raw_tombstones": self.raw_tombstones,
            "stray_tombstones": self.stray_tombstones,
            "undecided": self.undecided,
            "unnamed": self.unnamed,
            "unkeyed": self.is_unkeyed,
            "without_key": any(doubt.name == "no_key" for doubt in self.doubts),
            "trusted": self.is_trusted,
            "notes": self.notes(),
            "examples": self.examples,
        }


class Planner:
    """Collects the differences of each table as a comparison reports them; see `verify.database.Request`."""

    def __init__(
        self,
        folder: Path,
        relay_encoding: Callable[[str], str | None],
        schemas: Schemas,
        homes: KeyPartitioner,
        *,
        show_values: bool = False,
        relay: str = "",
    ) -> None:
        """Take the ``folder`` for the lists; ``relay_encoding`` returns the relay's key encoding of a table.

        The encoding is in the terms of `bwtui.audit.canonical_values.decode_key`, or None if unknown.
        ``relay`` is its name if commands have to name it.
        """
        self.tables: list[TablePlan] = []
        self._folder = folder
        self._relay_encoding = relay_encoding
        self._schemas = schemas
        self._homes = homes
        self._show_values = show_values
        self._relay = relay

    def take(
        self, table: ComparedTable, doubts: Sequence[Doubt], differences: Iterator[KeyDifference]
    ) -> None:
        """Write the list of a table. Raises StateFailed."""
        plan = TablePlan(table.full_name, table.topic, tuple(doubts), relay=self._relay)
        plan.key_columns = tuple(table.key)
        path = self._folder / f"{len(self.tables)}.keys"
        with StrayList(path.with_suffix(".strays"), table.topic, self._homes) as strays:
            if write_keys(path, self._keys(plan, table, differences, strays)):
                plan.keys = path
        plan.strays, plan.stray_tombstones = strays, strays.count
        self.tables.append(plan)

    def _keys(
        self, plan: TablePlan, table: ComparedTable, differences: Iterator[KeyDifference], strays: StrayList
    ) -> Iterator[Key]:
        for one in differences:
            if one.name == "missing_row":
                plan.unnamed += 1
            elif not one.is_proven:
                plan.undecided += 1
            elif one.key is not None:
                strays.add(one.places)
                plan.spelling = plan.spelling or self._spelled(one.raw)
                if one.name == "extra_key":
                    plan.tombstones += 1
                else:
                    plan.rows += 1
                self._show(plan, table, one)
                yield one.key
            elif one.name == "stray_row" and (one.raw is None or self._may_be_relays(plan, one.raw)):
                # No row has this key, and its newest record is right.
                strays.add(one.places)
            elif one.raw is None or one.name not in ("extra_key", "stray_row"):
                plan.unnamed += 1
            elif self._may_be_relays(plan, one.raw):
                plan.current_bytes += 1
            else:
                strays.add(one.places)
                plan.raw_tombstones += 1
                plan.spelling = plan.spelling or self._relay_encoding(plan.table) or ""
                self._show(plan, table, one)
                yield one.raw

    def _spelled(self, raw: bytes | None) -> str:
        """Return the encoding of a key that a comparison has decoded: that of the topic's others."""
        if raw is None:
            return ""
        try:
            return decode_key(raw, self._schemas)[1]
        except UndecodableMessage:
            return ""

    def _may_be_relays(self, plan: TablePlan, raw: bytes) -> bool:
        """Return whether the relay may write a row's key like this: a tombstone could come after that row.

        Bytes that the comparison can't decode may still be from this relay.
        """
        relay_encoding = self._relay_encoding(plan.table)
        try:
            spelled = decode_key(raw, self._schemas)[1]
        except UndecodableMessage:
            spelled = "json" if raw[:1] == b"{" else str(schema_id(raw))
            return relay_encoding in (None, spelled)
        return spelled != ODD and relay_encoding in (None, spelled)

    def _show(self, plan: TablePlan, table: ComparedTable, one: KeyDifference) -> None:
        if len(plan.examples) >= EXAMPLES:
            return
        key: Any = dict(zip(table.key, one.key, strict=True)) if one.key is not None else None
        if key is not None and not self._show_values:
            key = dict.fromkeys(key, "…")
        shown = one.raw.hex() if one.raw is not None and self._show_values else "…"
        plan.examples.append({"class": one.name, "key": key if key is not None else {"bytes": shown}})
