"""The result of the comparison: numbers for each table, one sentence, and the exit code."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.table import Table as Grid
from rich.text import Text

from bwtui.demo.logs import log_hint
from bwtui.errors import BwtuiError, DifferencesFound, Indeterminate
from bwtui.escaping import escape

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
    unreadable: int = 0
    split_keys: int = 0
    holes: int = 0
    #: Number of differing rows by column.
    columns: dict[str, int] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Return whether the topic, folded by key, equals the table."""
        return not (self.missing or self.extra or self.different or self.unreadable or self.split_keys)


@dataclass(frozen=True, slots=True)
class ShopComparison:
    """All tables compared with their topics."""

    tables: tuple[TableVerdict, ...]
    #: Topics with the prefix that belong to no table.
    foreign_topics: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The verdict; a log with holes can prove a difference, but never equality."""
        if self.foreign_topics or not all(table.equal for table in self.tables):
            return "different"
        return "indeterminate" if any(table.holes for table in self.tables) else "equal"

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
            holes = sum(table.holes for table in self.tables)
            return f"undecided: {holes:,} offsets of the topics have no record"
        return f"NOT equal: {'; '.join(self._reasons())}"

    def _reasons(self) -> list[str]:
        names = {
            "missing": "rows missing in the topics",
            "extra": "rows that only the topics have",
            "different": "rows that differ",
            "unreadable": "records that can't be read",
            "split_keys": "keys in two partitions or encodings",
        }
        sums = {name: sum(getattr(table, name) for table in self.tables) for name in names}
        reasons = [f"{sums[name]:,} {text}" for name, text in names.items() if sums[name]]
        if self.foreign_topics:
            reasons.append(f"topics without a table: {', '.join(self.foreign_topics)}")
        return reasons

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
            "foreign_topics": list(self.foreign_topics),
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
    remarks = [f"{count:,} {name}" for name, count in _extras(table).items() if count]
    if table.columns:
        remarks.append("in " + ", ".join(sorted(table.columns)))
    colour = "green" if table.equal else "red"
    verdict = "equal" if table.equal else "NOT equal"
    return Text.assemble((verdict, colour), escape(f" ({'; '.join(remarks)})") if remarks else "")


def _extras(table: TableVerdict) -> dict[str, int]:
    return {
        "unreadable": table.unreadable,
        "keys in two places": table.split_keys,
        "holes in the log": table.holes,
    }


def _without_name(table: TableVerdict) -> dict[str, Any]:
    data = dataclasses.asdict(table)
    del data["table"]
    return {**data, "equal": table.equal}
