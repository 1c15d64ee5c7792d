"""Common parts of the lists of transactions, and the sampled changes of a transaction."""

from collections.abc import Mapping

from bwtui.model.status import ChangeSample
from bwtui.tui import figures
from bwtui.tui.plain import Content
from bwtui.tui.widgets.changes import ChangeList
from bwtui.tui.widgets.columns import Cell, GridColumn

#: Maximum tables of a transaction that are named; further ones are counted.
_NAMED = 6


def transaction_columns(*durations: GridColumn) -> tuple[GridColumn, ...]:
    """Return the columns of a list; the titles of ``durations`` name the start and end of each duration."""
    return (
        GridColumn("mark", "", 1),
        # Right-aligned columns sort in descending order, so the newest transactions come first.
        GridColumn("commit", "Committed", 12, "right"),
        GridColumn("xid", "Xid", 10, "right"),
        GridColumn("rows", "Rows", 7, "right"),
        GridColumn("bytes", "Bytes", 8, "right"),
        GridColumn("tables", "Tables", 19, grow=90),
        *durations,
        GridColumn("lsn", "Commit LSN", 12, "right", drop=3, grow=17),
    )


def named(tables: Mapping[str, int] | None, more: int = 0) -> str:
    """Return the names of a transaction's tables, those with the most messages first.

    ``more`` is the number of tables that are not in ``tables``; they have fewer messages each.
    """
    if tables is None:
        return "not noted"
    names = sorted(tables, key=lambda name: (-tables[name], name))
    others = len(names[_NAMED:]) + more
    end = f" and {others:,} more" if others else ""
    return ", ".join(names[:_NAMED]) + end if names else "no message"


def tables_cell(tables: Mapping[str, int] | None, more: int = 0) -> Cell:
    """Return the same as a cell."""
    return Cell(named(tables, more), "" if tables else "muted")


def rows_cell(rows: int) -> Cell:
    return Cell(figures.count(rows), "" if rows > 1 else "muted")


def fact_lines(
    xid: int,
    commit_time: float,
    lsn: str,
    what: str,
    tables: Mapping[str, int] | None,
    more: tuple[int, int] = (0, 0),
) -> list[Content]:
    """Return the facts about a transaction in two lines; ``what`` describes its size.

    ``more`` is the number of tables that are not in ``tables``, and the number of their messages.
    """
    when = f"committed {figures.moment(commit_time)}.{int(commit_time * 1000) % 1000:03}"
    counted = {name: number for name, number in (tables or {}).items() if number}
    if counted:
        most = sorted(counted, key=lambda name: (-counted[name], name))
        parts = [f"{name} {counted[name]:,}" for name in most[:_NAMED]]
        others = len(most[_NAMED:]) + more[0]
        messages = sum(counted[name] for name in most[_NAMED:]) + more[1]
        parts += [f"{others:,} more tables {messages:,}"] if others else []
        of = f"messages by table: {', '.join(parts)}"
    elif tables is None:
        of = "tables not noted: many small transactions of many tables came at once"
    else:
        of = f"tables: {named(tables, more[0])}"
    return [
        Content.assemble((f"xid {xid}", "bold"), (f"  {when}  LSN {lsn}  ", "$quiet"), (what, "bold")),
        Content(of),
    ]


def rows_text(rows: int) -> str:
    """Return a number of rows in words."""
    return "1 row" if rows == 1 else f"{rows:,} rows"


class TransactionChanges(ChangeList):
    """Lists the sampled changes of one transaction."""

    def __init__(self, xid: int, lsn: str) -> None:
        super().__init__()
        self._xid, self._lsn = xid, lsn
        self.border_title = "Its sampled changes"

    @property
    def number_sampled(self) -> int:
        """The number of sampled changes, whatever the filter."""
        return sum(self._is_of(change) for change in self._source)

    def _is_of(self, change: ChangeSample) -> bool:
        return (change.xid, change.lsn) == (self._xid, self._lsn)

    def _passes(self, change: ChangeSample) -> bool:
        return self._is_of(change) and super()._passes(change)

    def _reason_for_nothing(self) -> str:
        if not self.number_sampled:
            return "none of its changes was sampled: some 50 a second are"
        return super()._reason_for_nothing()
