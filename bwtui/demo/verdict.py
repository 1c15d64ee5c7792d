"""Compare the shop with its topics: numbers for each table, one sentence, and the exit code.

The comparison is that of ``bwtui verify --database``, at one snapshot of the tables after the relay has
stopped.
"""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table as Grid
from rich.text import Text

from bwtui.demo.logs import log_hint
from bwtui.demo.shop import DemoTable
from bwtui.encode.registry import ask_registry
from bwtui.errors import BwtuiError, DifferencesFound, Indeterminate
from bwtui.escaping import escape
from bwtui.kafka.client import client_config, producer_config
from bwtui.kafka.scan import pin
from bwtui.model.sql import quote_qualified
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection, connect, query
from bwtui.source.raw_session import connect_raw
from bwtui.source.slot import create_temporary

if TYPE_CHECKING:
    from bwtui.verify.database import ComparedTable, Doubt, KeyDifference

Outcome = Literal["equal", "different", "indeterminate"]


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """One table compared with its topic."""

    table: str
    topic: str
    rows: int
    #: Number of keys whose latest value is not a tombstone; None without a key.
    keys: int | None
    messages: int
    #: Number of rows that the topic lacks, of rows only in the topic, and of rows with a different column.
    missing: int
    extra: int
    different: int
    #: Number of keys that have a row in two partitions, and of keys that could not be decided.
    split_keys: int = 0
    undecided: int = 0

    @property
    def equal(self) -> bool:
        """Return whether the topic, folded by key, equals the table."""
        return not (self.missing or self.extra or self.different or self.split_keys)


@dataclass(frozen=True, slots=True)
class ShopComparison:
    """All tables compared with their topics."""

    tables: tuple[TableVerdict, ...]

    @property
    def outcome(self) -> Outcome:
        """The verdict; an undecided key never hides a difference, and never proves equality."""
        if not all(table.equal for table in self.tables):
            return "different"
        return "indeterminate" if any(table.undecided for table in self.tables) else "equal"

    @property
    def sentence(self) -> str:
        """The verdict as one sentence."""
        rows, messages = (sum(getattr(t, name) for t in self.tables) for name in ("rows", "messages"))
        if self.outcome == "equal":
            return (
                f"equal: {rows:,} rows in {len(self.tables)} tables equal the latest values of their topics,"
                f" after {messages:,} messages"
            )
        if self.outcome == "indeterminate":
            undecided = sum(table.undecided for table in self.tables)
            return f"undecided: {undecided:,} rows or offsets of the topics could not be compared"
        names = {
            "missing": "rows missing in the topics",
            "extra": "rows that only the topics have",
            "different": "rows that differ",
            "split_keys": "keys in two partitions",
        }
        sums = {name: sum(getattr(table, name) for table in self.tables) for name in names}
        return (
            f"NOT equal: {'; '.join(f'{sums[name]:,} {text}' for name, text in names.items() if sums[name])}"
        )

    def error(self) -> BwtuiError | None:
        """Return the error that ends the command with the right exit code, or None if all is equal."""
        if self.outcome == "equal":
            return None
        if self.outcome == "different":
            return DifferencesFound(self.sentence, "'bwtui demo --headless --json' lists the counts by table")
        return Indeterminate(self.sentence, f"{log_hint('kafka')}, and run the demo again")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "verdict": self.outcome,
            "sentence": self.sentence,
            "tables": {table.table: _without_name(table) for table in self.tables},
        }

    def grid(self) -> Grid:
        """Return the table for the terminal."""
        grid = Grid(box=None, pad_edge=False, header_style="bold")
        grid.add_column("table")
        for name in ("rows", "keys", "messages", "missing", "extra", "different"):
            grid.add_column(name, justify="right")
        grid.add_column("verdict")
        for table in self.tables:
            grid.add_row(*_cells(table))
        return grid


def _cells(table: TableVerdict) -> list[str | Text]:
    numbers = [table.rows, table.keys, table.messages, table.missing, table.extra, table.different]
    cells = ["-" if number is None else f"{number:,}" for number in numbers]
    return [escape(table.table), *cells, _remark(table)]


def _remark(table: TableVerdict) -> Text:
    """Return the verdict on a row, with everything that its numbers do not show."""
    extras = {"keys in two partitions": table.split_keys, "undecided": table.undecided}
    remarks = [f"{count:,} {name}" for name, count in extras.items() if count]
    colour = "green" if table.equal else "red"
    verdict = "equal" if table.equal else "NOT equal"
    return Text.assemble((verdict, colour), escape(f" ({'; '.join(remarks)})") if remarks else "")


def _without_name(table: TableVerdict) -> dict[str, Any]:
    data = dataclasses.asdict(table)
    del data["table"]
    return {**data, "equal": table.equal}


def compare(settings: RelaySettings, tables: Sequence[DemoTable]) -> ShopComparison:
    """Compare the topics of a relay with these settings with ``tables``, while neither is written to.

    Raises Indeterminate, RefusedError or ConnectionFailed.
    """
    from bwtui.verify.database import ComparisonRequest, Fence, verify_database

    differing: dict[str, Counter[str]] = {}
    undecided: Counter[str] = Counter()

    def count(table: "ComparedTable", doubts: "Sequence[Doubt]", keys: "Iterator[KeyDifference]") -> None:
        found = differing[table.topic] = Counter[str]()
        undecided[table.topic] += sum(doubt.name != "unkeyed" for doubt in doubts)
        for key in keys:
            # The shop never updates rows of its table without a key, so a missing one is certain.
            if key.is_proven or key.name == "missing_row":
                found[key.name] += 1
            else:
                undecided[table.topic] += 1

    config = client_config(settings)
    with contextlib.ExitStack() as stack:
        raw = connect_raw(settings.postgres)
        stack.callback(raw.finish)
        slot = create_temporary(raw)
        connection = stack.enter_context(contextlib.closing(connect(settings.postgres)))
        compared = [_compared(connection, table, settings.topic_prefix) for table in tables]
        verify_database(
            ComparisonRequest(
                settings.postgres,
                settings.slot,
                compared,
                config,
                partitioner=str(producer_config(settings)["partitioner"]),
                on_differences=count,
                at=Fence(slot.consistent_point, slot.snapshot),
            ),
            ask_registry(settings),
        )
        rows = {one.full_name: _rows(connection, table) for one, table in zip(compared, tables, strict=True)}
    messages: Counter[str] = Counter()
    for (topic, _), (low, high) in pin(config, [one.topic for one in compared]).offsets.items():
        messages[topic] += high - low
    return ShopComparison(
        tuple(
            _verdict(table, rows[table.full_name], messages[table.topic], differing[table.topic], undecided)
            for table in compared
        )
    )


def _compared(connection: Connection, table: DemoTable, prefix: str) -> "ComparedTable":
    from bwtui.verify.database import ComparedTable

    columns = query(
        connection,
        "select attname from pg_catalog.pg_attribute"
        " where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum",
        table.full_name,
    )
    names = tuple(str(name) for (name,) in columns)
    # The relay writes a key's columns in the table's order.
    key = tuple(name for name in names if name in table.key)
    return ComparedTable(table.schema, table.name, table.topic(prefix), names, key)


def _rows(connection: Connection, table: DemoTable) -> int:
    ((count,),) = query(connection, f"select count(*) from {quote_qualified(table.schema, table.name)}")
    return int(count)


def _verdict(
    table: "ComparedTable", rows: int, messages: int, found: Counter[str], undecided: Counter[str]
) -> TableVerdict:
    missing, extra = found["missing_key"] + found["missing_row"], found["extra_key"]
    return TableVerdict(
        table.full_name,
        table.topic,
        rows,
        rows - missing + extra if table.key else None,
        messages,
        missing,
        extra,
        found["different_row"],
        found["stray_row"],
        undecided[table.topic],
    )
