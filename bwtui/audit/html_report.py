"""The report as one self-contained HTML page: it includes its styles and charts, and loads nothing."""

import html
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from bwtui.audit.classes import CLASSES, SIDES
from bwtui.audit.report import AuditSummary
from bwtui.audit.terminal import headline, line
from bwtui.escaping import escape

_COLORS = {"clean": "#1a7f37", "anomalies": "#cf222e", "indeterminate": "#9a6700"}
_YEAR_2000 = 946_684_800
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}
body{color:#1f2328;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;font-size:.9rem}
td,th{padding:.2rem .8rem .2rem 0;text-align:left;border-bottom:1px solid #d1d9e0}td.n,th.n{text-align:right}
code{font-size:.85rem}svg{width:100%;height:auto}.bad{color:#cf222e;font-weight:600}details{margin:.5rem 0}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}td,th{border-color:#3d444d}}
"""


def page(report: AuditSummary) -> str:
    """Return the report as HTML."""
    color = _COLORS[report.verdict]
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>Audit: {_text(report.verdict)}</title><style>{_STYLE}</style>",
        f"<h1 style='color:{color}'>{_text(headline(report))}</h1>",
        "".join(f"<p>{_text(note)}</p>" for note in report.notes),
        "<h2>Balance</h2>",
        _table(("", *SIDES[report.question]), _balance(report)),
        *_charts(report),
        "<h2>Findings</h2>",
        _findings(report),
        "<h2>Audit</h2>",
        _table(("", ""), _facts(report)),
        "</html>",
    ]
    return "\n".join(parts)


def _charts(report: AuditSummary) -> list[str]:
    """Return the charts by time and partition, which only messages have."""
    if report.question != "recording":
        return []
    return [
        "<h2>By time of commit</h2>",
        _timeline(report.by_time),
        "<h2>By topic and partition</h2>",
        _topics(report.by_topic),
    ]


def _text(value: Any) -> str:
    return html.escape(escape(str(value)), quote=True)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    def cell(value: Any, tag: str) -> str:
        is_number = isinstance(value, int)
        shown = f"{value:,}" if is_number else _text(value)
        return f"<{tag}{' class=n' if is_number else ''}>{shown}</{tag}>"

    body = "".join("<tr>" + "".join(cell(value, "td") for value in row) + "</tr>" for row in rows)
    return f"<table><tr>{''.join(cell(one, 'th') for one in head)}</tr>{body}</table>"


def _balance(report: AuditSummary) -> list[tuple[Any, ...]]:
    expected, actual = report.balance["expected"], report.balance["actual"]
    rows = [(name, expected.get(name, ""), actual.get(name, "")) for name, *_ in report.balance_rows]
    return [*rows, ("all", report.expected, report.actual)]


def _timeline(buckets: Sequence[dict[str, Any]]) -> str:
    """Return bars of messages over time, and red ones of findings."""
    if not buckets:
        return "<p>No messages.</p>"
    most = max(1, *(bucket["messages"] for bucket in buckets))
    width = 1000 / len(buckets)
    bars = []
    for at, bucket in enumerate(buckets):
        wrong = sum(bucket["classes"].values())
        when = datetime.fromtimestamp(bucket["start_us"] / 1_000_000, UTC).isoformat(" ", "seconds")
        classes = ", ".join(f"{name} {number:,}" for name, number in bucket["classes"].items())
        title = f"<title>{_text(when)}: {bucket['messages']:,} messages. {_text(classes)}</title>"
        bars.append(_bar(at * width, width, 150 * bucket["messages"] / most, "#4493f8", title))
        if wrong:
            # A single finding among a million must be visible, too.
            height = max(8.0, 150 * min(wrong / most, 1.0))
            bars.append(_bar(at * width, width, height, "#cf222e", title))
    return f"<svg viewBox='0 0 1000 150' role='img' aria-label='messages over time'>{''.join(bars)}</svg>"


def _bar(x: float, width: float, height: float, color: str, title: str) -> str:
    shape = f"x='{x:.1f}' y='{150 - height:.1f}' width='{max(width - 1, 0.5):.1f}' height='{height:.1f}'"
    return f"<rect {shape} fill='{color}'>{title}</rect>"


def _topics(partitions: Sequence[dict[str, Any]]) -> str:
    most = max([max(one["messages"], one["records"]) for one in partitions] or [1]) or 1
    rows = []
    for one in partitions:
        wrong = sum(one["classes"].values())
        classes = ", ".join(f"{name} {number:,}" for name, number in one["classes"].items())
        share = 200 * one["records"] / most
        shape = f"<rect width='{share:.1f}' height='10' fill='#4493f8'/>"
        bar = f"<svg viewBox='0 0 200 10' style='width:200px'>{shape}</svg>"
        rows.append(
            f"<tr><td>{_text(one['topic'])}</td><td class=n>{one['partition']}</td>"
            f"<td class=n>{one['low']:,}–{one['high']:,}</td><td class=n>{one['messages']:,}</td>"
            f"<td class=n>{one['records']:,}</td><td>{bar}</td>"
            f"<td{' class=bad' if wrong else ''}>{_text(classes)}</td></tr>"
        )
    numbers = "".join(f"<th class=n>{name}" for name in ("partition", "offsets", "messages", "records"))
    return f"<table><tr><th>topic{numbers}<th><th>found</tr>{''.join(rows)}</table>"


def _findings(report: AuditSummary) -> str:
    parts = []
    for name, listed, total in report.findings_by_class:
        items = "".join(f"<li><code>{_text(line(finding))}</code></li>" for finding in listed)
        more = f"<p>… and {total - len(listed):,} more</p>" if total > len(listed) else ""
        opened = " open" if len(listed) <= 20 else ""
        summary = f"<summary class=bad>{_text(name)}: {total:,}</summary>"
        parts.append(f"<details{opened}>{summary}<ul>{items}</ul>{more}</details>")
    return "".join(parts) or "<p>None.</p>"


def _facts(report: AuditSummary) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = [_fact(name, value) for name, value in report.window.items()]
    for name, value in report.details.items():
        if isinstance(value, dict) and name != "inputs":
            rows += [_fact(f"{name}: {part}", one) for part, one in value.items()]
        elif name != "inputs":
            rows.append(_fact(name, value))
    rows += [(name, report.classes[name]) for name in CLASSES if report.classes.get(name)]
    rows += [(f"sha256 of {name}", value) for name, value in report.details.get("inputs", {}).items()]
    return rows


def _fact(name: str, value: Any) -> tuple[str, Any]:
    """Return a fact in readable form: times as times, lists and objects without their quotes."""
    for unit, factor in (("_us", 1e6), ("_ms", 1e3)):
        # A duration in the same unit is not a time of day.
        if name.endswith(unit) and isinstance(value, int) and value > _YEAR_2000 * factor:
            when = datetime.fromtimestamp(value / factor, UTC).isoformat(" ", "seconds")
            return name.removesuffix(unit), when.removesuffix("+00:00") + " UTC"
    if isinstance(value, bool):
        return name, "yes" if value else "no"
    if isinstance(value, dict):
        value = ", ".join(f"{part} {one}" for part, one in value.items())
    elif isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return name, value if isinstance(value, int) else str(value)
