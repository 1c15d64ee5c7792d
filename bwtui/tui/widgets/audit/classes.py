"""The classes of an audit with their counts."""

from bwtui.tui import figures
from bwtui.tui.assessment import MARKS
from bwtui.tui.audit.report import AuditReport, class_order, tone_of
from bwtui.tui.widgets.columns import Cell, GridColumn, GridRow
from bwtui.tui.widgets.grid import Grid

COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("class", "Class", 14, grow=22),
    GridColumn("count", "Count", 5, "right"),
)
#: The key of the row for all findings.
ALL = "*"


class ClassGrid(Grid):
    """Lists the worst classes first; classes without findings are hidden until the user asks for them."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, id="classes")
        self.add_class("panel")
        self.border_title = "Classes"
        self.empty_text = "no audit yet"
        self._report: AuditReport | None = None
        self.zeros = False

    @property
    def chosen(self) -> str | None:
        """The class under the cursor; None for all."""
        return None if self.cursor_key in (None, ALL) else self.cursor_key

    def show(self, report: AuditReport | None) -> None:
        """Show a report's classes."""
        self._report = report
        self._fill()

    def toggle_zeros(self) -> None:
        """Show or hide the classes without findings."""
        self.zeros = not self.zeros
        self._fill()

    def _fill(self) -> None:
        report = self._report
        if report is None:
            self.set_rows([])
            return
        names = [name for name in class_order(report) if self.zeros or report.classes[name]]
        total = sum(report.totals.values())
        rows = [GridRow(ALL, (Cell(""), Cell("all findings", "strong"), Cell(figures.count(total))))]
        self.set_rows(rows + [_row(name, report.classes[name]) for name in names])
        hidden = len(report.classes) - len(names)
        self.set_remark(f"{hidden} empty · z" if hidden else "")


def _row(name: str, count: int) -> GridRow:
    tone = tone_of(name) if count else "muted"
    mark = Cell(MARKS[tone] if count else " ", tone)
    return GridRow(name, (mark, Cell(name, "" if tone == "bad" else tone), Cell(figures.count(count), tone)))
