"""The report for a terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bwtui.audit.classes import ANOMALIES, UNDECIDED
from bwtui.audit.report import Finding, Report
from bwtui.lsn import format_lsn

_STYLES = {"clean": "bold green", "anomalies": "bold red", "indeterminate": "bold yellow"}
#: So many findings of a class are shown.
_SHOWN = 5


def show(report: Report, console: Console | None = None) -> None:
    """Print the report."""
    console = console or Console()
    console.print(Text(headline(report), style=_STYLES[report.verdict]), soft_wrap=True)
    console.print(_balance(report))
    for name in (*ANOMALIES, UNDECIDED):
        mine = [finding for finding in report.findings if finding.name == name]
        if mine:
            console.print(Text(f"{name}: {report.found.get(name, len(mine)):,}", style="bold"))
            for finding in mine[:_SHOWN]:
                console.print(Text(f"  {line(finding)}"), soft_wrap=True)
            more = report.found.get(name, len(mine)) - min(len(mine), _SHOWN)
            if more > 0:
                console.print(Text(f"  … and {more:,} more: --json has them", style="dim"))
    for note in report.notes:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)


def headline(report: Report) -> str:
    """Return the verdict in one line."""
    sides = f"{report.expected:,} messages, {report.actual:,} records"
    if report.verdict == "clean":
        return f"clean: {sides}, nothing lost, doubled, changed or out of order"
    number = sum(report.classes.get(name, 0) for name in ANOMALIES)
    if report.verdict == "anomalies":
        return f"anomalies: {number:,} in {sides}"
    return f"indeterminate: {report.classes[UNDECIDED]:,} of {sides} can't be decided"


def line(finding: Finding) -> str:
    """Return one finding in one line."""
    parts = []
    if finding.topic is not None:
        place = f"{finding.topic}"
        if finding.partition is not None:
            place += f" {finding.partition}@{finding.offset}"
        parts.append(place)
    if finding.lsn is not None:
        parts.append(f"{format_lsn(finding.lsn)} #{finding.ordinal}")
    if finding.table:
        parts.append(f"{finding.operation} {finding.table}" if finding.operation else finding.table)
    if finding.key:
        parts.append("key " + ", ".join(f"{name}={value}" for name, value in finding.key.items()))
    if finding.fields:
        parts.append("differs: " + ", ".join(_field(one) for one in finding.fields))
    if finding.note:
        parts.append(finding.note)
    if finding.hop:
        parts.append(f"hop: {finding.hop}")
    return " · ".join(parts)


def _field(one: dict[str, object]) -> str:
    values = [str(one[name]) for name in ("sent", "postgresql", "kafka") if one.get(name) not in (None, "…")]
    return f"{one['field']} ({' → '.join(values)})" if values else str(one["field"])


def _balance(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("messages", justify="right")
    table.add_column("records", justify="right")
    expected, actual = report.balance["expected"], report.balance["actual"]
    for name in dict.fromkeys([*expected, *actual]):
        left, right = expected.get(name, 0), actual.get(name, 0)
        if left or right or name == "matched":
            style = "red" if name in ANOMALIES else "yellow" if name == UNDECIDED else None
            table.add_row(name, f"{left:,}" if left else "", f"{right:,}" if right else "", style=style)
    table.add_row("= all", f"{report.expected:,}", f"{report.actual:,}", style="bold")
    return table
