"""What is said of the two sides of an audit of no messages: a table's row, or two recordings."""

import shlex

from bwtui.tui import figures
from bwtui.tui.audit.report import AuditReport, Finding
from bwtui.tui.audit.words import MASKED
from bwtui.tui.plain import Text

_TABLE = {
    "missing_key": "the table has the row; the report has its key alone",
    "different_row": "the table has the row; the report has what differs",
    "extra_key": "the table has no such row",
    "missing_row": "the table has the row, which has no key",
    "not_captured": "nothing of the table is sent",
}
_UNDECIDED = "it was written to at every look, or nothing is proven"
_NOT_THERE = "it does not have the row"
_FIRST = {"extra": _NOT_THERE}
_SECOND = {
    "missing": _NOT_THERE,
    "said_differs": "the same change has another row",
    "sent_differs": "the same row was sent with other bytes",
}


def table_lines(finding: Finding, key: str, report: AuditReport, colours: dict[str, str]) -> list[Text]:
    """Say what the table has."""
    quiet = colours["quiet"]
    head = Text.assemble((finding.table or figures.NONE, "bold"), ("  key ", quiet), key or figures.NONE)
    lines = [head, Text(_TABLE.get(finding.name, _UNDECIDED), colours["warning"])]
    if finding.note:
        lines.append(Text(finding.note, colours["warning"]))
    if report.masked and finding.is_masked:
        lines.append(Text(MASKED, quiet))
    fences = [str(one) for one in report.raw.get("window", {}).get("fences") or ()]
    if fences:
        behind = f", and again up to {fences[-1]}" if len(fences) > 1 else ""
        lines.append(Text(f"looked at as of {fences[0]}{behind}", quiet))
    return lines


def recording_lines(
    finding: Finding, report: AuditReport, colours: dict[str, str], *, second: bool
) -> list[Text]:
    """Say what one of two recordings has."""
    quiet = colours["quiet"]
    folder = str(report.raw.get("other" if second else "recording") or "")
    change = " ".join(part for part in (finding.operation, finding.table) if part)
    told = (_SECOND if second else _FIRST).get(finding.name, "it has the row")
    # Of what both have the report knows the first one's position.
    if finding.position is not None and second == (finding.name == "extra") and told != _NOT_THERE:
        told += f", at position {finding.position:,}"
    lines = [
        Text.assemble((folder or figures.NONE, "bold")),
        Text.assemble(change or figures.NONE, ("  lsn ", quiet), f"{finding.lsn} #{finding.ordinal}"),
        Text(told, colours["warning"]),
    ]
    if told != _NOT_THERE and folder and finding.lsn:
        lines.append(Text(f"bwtui open {shlex.quote(folder)} --at {finding.lsn}", quiet))
    return lines
