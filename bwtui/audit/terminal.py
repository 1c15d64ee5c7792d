"""Print the report on a terminal."""

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from bwtui.audit.classes import CLEAN, SIDES, UNDECIDED, WRONG
from bwtui.audit.report import AuditFinding, AuditSummary
from bwtui.console import terminal
from bwtui.escaping import escape, shorten
from bwtui.model.lsn import format_lsn

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"clean": "bold green", "anomalies": "bold red", "indeterminate": "bold yellow"}
#: Maximum number of findings of a class that are shown.
_SHOWN = 5
#: Maximum number of characters of a value.
_LENGTH = 2_000


def show(report: AuditSummary, console: "Console | None" = None) -> None:
    """Print the report."""
    console = console or terminal()
    console.print(Text(headline(report), style=_STYLES[report.verdict]), soft_wrap=True)
    console.print(_balance(report))
    for name, listed, total in report.findings_by_class:
        console.print(Text(f"{name}: {total:,}", style="bold"))
        for finding in listed[:_SHOWN]:
            console.print(Text(f"  {line(finding)}"), soft_wrap=True)
        if (more := total - min(len(listed), _SHOWN)) > 0:
            console.print(Text(f"  … and {more:,} more: see --json", style="dim"))
    if report.details.get("masked") and any(one.key or one.fields for one in report.findings):
        console.print(Text("note: keys and values are masked; use --show-values to show them", style="dim"))
    for note in report.notes:
        console.print(Text(escape(f"note: {note}"), style="dim"), soft_wrap=True)


def headline(report: AuditSummary) -> str:
    """Return the verdict in one line."""
    left, right = SIDES[report.question]
    sides = f"{report.expected:,} {left}, {report.actual:,} {right}"
    outside = report.classes.get("outside_window", 0)
    # They were not checked, so the line must not read as if they were.
    unchecked = f"{outside:,} outside the recording, not audited" if outside else ""
    if report.verdict == "anomalies":
        remark = f"{sides}; {unchecked}" if unchecked else sides
        return f"anomalies: {sum(report.wrong.values()):,} ({remark})"
    if unchecked:
        sides += f" ({unchecked})"
    if report.verdict == "clean":
        return f"clean: {sides}, {CLEAN[report.question]}"
    return f"indeterminate: {report.classes[UNDECIDED]:,} of {sides} can't be decided"


def line(finding: AuditFinding) -> str:
    """Return one finding in one line, with only printable characters."""
    parts = []
    if finding.topic is not None:
        is_located = finding.partition is not None and finding.offset is not None
        parts.append(f"{finding.topic} {finding.partition}@{finding.offset}" if is_located else finding.topic)
    if finding.lsn is not None:
        parts.append(f"{format_lsn(finding.lsn)} #{finding.ordinal}")
    if finding.table:
        parts.append(f"{finding.operation} {finding.table}" if finding.operation else finding.table)
    if finding.key:
        parts.append("key " + ", ".join(f"{name}={_value(value)}" for name, value in finding.key.items()))
    if finding.fields:
        parts.append("differs: " + ", ".join(_field(one) for one in finding.fields))
    if finding.note:
        parts.append(finding.note)
    if finding.hop:
        parts.append(f"hop: {finding.hop}")
    return escape(" · ".join(parts))


def _field(one: dict[str, object]) -> str:
    values = [one[name] for name in ("postgresql", "sent", "kafka") if name in one]
    if not values or "…" in values:
        return str(one["field"])
    return f"{one['field']} ({' → '.join('NULL' if value is None else _value(value) for value in values)})"


def _value(value: object) -> str:
    """Return a value, shortened to fit into a line; --json has all of it."""
    return shorten(str(value), _LENGTH)


def _balance(report: AuditSummary) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for side in SIDES[report.question]:
        table.add_column(side, justify="right")
    for name, left, right in report.balance_rows:
        style = "red" if name in WRONG else "yellow" if name == UNDECIDED else None
        table.add_row(name, f"{left:,}" if left else "", f"{right:,}" if right else "", style=style)
    table.add_row("= all", f"{report.expected:,}", f"{report.actual:,}", style="bold")
    return table
