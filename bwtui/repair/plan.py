"""What would be sent to mend topics: made of a comparison's differences, as lists of keys and in numbers.

A list has a row's key where the table may have a row of it: the relay reads that row as it is then, so that
nothing old is sent, and sends a tombstone where there is none. Bytes of a key are listed only where no row
can have them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwtui.audit.decoding import Schemas, Undecodable, schema_id
from bwtui.audit.forms import ODD, decode_key
from bwtui.model.backfill_told import snapshot_command
from bwtui.relay.backfill.keys import Key, write_keys
from bwtui.repair.strays import Homes, StrayList
from bwtui.verify.differences import UNTRUSTED, Difference, Doubt
from bwtui.verify.tables import Table

#: Keys that are named of each table.
EXAMPLES = 3


@dataclass(slots=True)
class TablePlan:
    """What would be sent of one table."""

    table: str
    topic: str
    doubts: tuple[Doubt, ...] = ()
    #: Keys whose rows are missing in the topic or other ones there; keys without a row; bytes that are no
    #: row's key, each of which gets a tombstone as the second do.
    rows: int = 0
    tombstones: int = 0
    raw_tombstones: int = 0
    #: Tombstones into partitions that have a row of a key and are not the key's own.
    stray_tombstones: int = 0
    #: Keys that were written at each look, or of which nothing is proven: they are not sent.
    undecided: int = 0
    #: Rows that are missing in the topic or differ there and have no key, or one that is no text.
    unnamed: int = 0
    #: Keys in bytes that the relay sends now, or may send, while most of the topic's are in others.
    own_bytes: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)
    keys: Path | None = None
    strays: StrayList | None = None
    #: How the topic's keys are written, as `bwtui.audit.forms.decode_key` calls it; "": none was seen.
    spelling: str = ""
    #: The columns that the keys are of, in the table's order.
    key_columns: tuple[str, ...] = ()
    #: The relay's name, where a command has to say it.
    relay: str = ""

    @property
    def messages(self) -> int:
        """How many messages are to be sent."""
        return sum(self.counts)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """How many rows, and tombstones of each kind."""
        return self.rows, self.tombstones, self.raw_tombstones, self.stray_tombstones

    @property
    def is_trusted(self) -> bool:
        """Whether what is sent is all that the topic's readers may have wrong."""
        is_doubtful = any(doubt.name in UNTRUSTED for doubt in self.doubts)
        return not (is_doubtful or self.own_bytes or self.unnamed)

    @property
    def is_unkeyed(self) -> bool:
        """Whether the table has no key."""
        return any(doubt.name == "unkeyed" for doubt in self.doubts)

    def notes(self) -> list[str]:
        """Return what is to be known of the table besides."""
        notes = [doubt.text for doubt in self.doubts]
        command = snapshot_command([self.table], relay=self.relay, unkeyed=self.is_unkeyed)
        if self.undecided:
            notes.append(
                f"{self.undecided:,} keys are in doubt, and left alone: they were written at each look"
            )
        if self.unnamed:
            notes.append(
                f"{self.unnamed:,} rows are missing in the topic or others there, and no key names them: "
                f"'{command}' sends the whole table again"
            )
        if self.own_bytes:
            notes.append(
                f"{self.own_bytes:,} keys are, or may be, as the relay writes them now, and the topic's "
                f"others are not: they are left alone; run '{command}', and repair it then"
            )
        return notes

    def to_json(self) -> dict[str, Any]:
        """Return it as ``repair --json`` writes it."""
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
            "trusted": self.is_trusted,
            "notes": self.notes(),
            "examples": self.examples,
        }


class Planner:
    """Takes the differences of each table as a comparison hands them out; see `verify.database.Request`."""

    def __init__(
        self,
        folder: Path,
        own: Callable[[str], str | None],
        schemas: Schemas,
        homes: Homes,
        *,
        show_values: bool = False,
        relay: str = "",
    ) -> None:
        """``folder`` is for the lists. ``own(table)`` says how the relay writes a table's keys now.

        That is what `bwtui.audit.forms.decode_key` calls it, or None where nobody knows.
        ``relay`` is its name where commands have to say it.
        """
        self.tables: list[TablePlan] = []
        self._folder = folder
        self._own = own
        self._schemas = schemas
        self._homes = homes
        self._show_values = show_values
        self._relay = relay

    def take(self, table: Table, doubts: Sequence[Doubt], differences: Iterator[Difference]) -> None:
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
        self, plan: TablePlan, table: Table, differences: Iterator[Difference], strays: StrayList
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
            elif one.name == "stray_row" and (one.raw is None or self._is_own(plan, one.raw)):
                # No row has this key, and its newest record is right.
                strays.add(one.places)
            elif one.raw is None or one.name not in ("extra_key", "stray_row"):
                plan.unnamed += 1
            elif self._is_own(plan, one.raw):
                plan.own_bytes += 1
            else:
                strays.add(one.places)
                plan.raw_tombstones += 1
                plan.spelling = plan.spelling or self._own(plan.table) or ""
                self._show(plan, table, one)
                yield one.raw

    def _spelled(self, raw: bytes | None) -> str:
        """Return how a key is written whose values a comparison has read: as the topic's others are."""
        if raw is None:
            return ""
        try:
            return decode_key(raw, self._schemas)[1]
        except Undecodable:
            return ""

    def _is_own(self, plan: TablePlan, raw: bytes) -> bool:
        """Say whether the relay may write some row's key like that: a tombstone could come after that row.

        That the comparison can't decode bytes does not say that another wrote them.
        """
        own = self._own(plan.table)
        try:
            spelled = decode_key(raw, self._schemas)[1]
        except Undecodable:
            spelled = "json" if raw[:1] == b"{" else str(schema_id(raw))
            return own in (None, spelled)
        return spelled != ODD and own in (None, spelled)

    def _show(self, plan: TablePlan, table: Table, one: Difference) -> None:
        if len(plan.examples) >= EXAMPLES:
            return
        key: Any = dict(zip(table.key, one.key, strict=True)) if one.key is not None else None
        if key is not None and not self._show_values:
            key = dict.fromkeys(key, "…")
        shown = one.raw.hex() if one.raw is not None and self._show_values else "…"
        plan.examples.append({"class": one.name, "key": key if key is not None else {"bytes": shown}})
