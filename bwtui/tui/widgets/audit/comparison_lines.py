"""The two sides of an audit that does not compare messages: a table's row, or two recordings."""

import shlex

from bwtui.audit.classes import audit_class
from bwtui.tui import figures
from bwtui.tui.audit.labels import MASKED
from bwtui.tui.audit.report import AuditReport, ReportFinding
from bwtui.tui.plain import Text

#: Shown for a class of a report that a newer version wrote.
_UNKNOWN = "what it is, this version does not know"


def table_lines(finding: ReportFinding, key: str, report: AuditReport, colours: dict[str, str]) -> list[Text]:
    """Return the lines about the table's side."""
    quiet = colours["quiet"]
    head = Text.assemble((finding.table or figures.NONE, "bold"), ("  key ", quiet), key or figures.NONE)
    lines = [head, Text(audit_class(finding.name, "database").left or _UNKNOWN, colours["warning"])]
    if finding.note:
        lines.append(Text(finding.note, colours["warning"]))
    if report.masked and finding.is_masked:
        lines.append(Text(MASKED, quiet))
    fences = [str(fence) for fence in report.raw.get("window", {}).get("fences") or ()]
    if fences:
        behind = f", and again up to {fences[-1]}" if len(fences) > 1 else ""
        lines.append(Text(f"read as of {fences[0]}{behind}", quiet))
    return lines


def recording_lines(
    finding: ReportFinding, report: AuditReport, colours: dict[str, str], *, second: bool
) -> list[Text]:
    """Return the lines about one of two recordings."""
    quiet = colours["quiet"]
    folder = str(report.raw.get("other" if second else "recording") or "")
    change = " ".join(part for part in (finding.operation, finding.table) if part)
    kind = audit_class(finding.name, "recordings")
    has = (kind.right if second else kind.left) or "it has the row"
    # For a change that both recordings have, the report has the first one's position.
    if finding.position is not None and second == (finding.name == "extra"):
        has += f", at position {finding.position:,}"
    lines = [
        Text.assemble((folder or figures.NONE, "bold")),
        Text.assemble(change or figures.NONE, ("  lsn ", quiet), f"{finding.lsn} #{finding.ordinal}"),
        Text(has, colours["warning"]),
    ]
    if ("actual" if second else "expected") in kind.sides and folder and finding.lsn:
        lines.append(Text(f"bwtui open {shlex.quote(folder)} --at {finding.lsn}", quiet))
    return lines
