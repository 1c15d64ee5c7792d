"""The fields of a change: before, after, and in Kafka."""

from collections.abc import Sequence

from bwtui.tui import figures
from bwtui.tui.audit.field_pairs import ABSENT
from bwtui.tui.journey.field_comparison import FieldComparison
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.item_list import Item, ItemList

COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("field", "Field", 12, grow=26),
    GridColumn("before", "Before", 14, grow=60),
    GridColumn("after", "After", 14, grow=60),
    GridColumn("kafka", "Kafka holds", 14, grow=60),
    GridColumn("newest", "Newest of the key", 17, drop=1, grow=60),
)
_MARKS = {
    "new": ("+", "good"),
    "gone": ("-", "bad"),
    "changed": ("~", "warn"),
    "unknown before": ("?", "muted"),
    "unchanged TOAST": ("=", "muted"),
}


class FieldList(ItemList):
    """Lists fields; those that differ in Kafka are marked."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, ("field",), id="ways", noun="fields")
        self.border_title = "Fields"
        self._ways: list[FieldComparison] | None = None
        self._turns = 0.0

    def show(self, ways: Sequence[FieldComparison], empty: str) -> None:
        """Show these fields, or why there are none."""
        self.empty_text = empty
        if self._ways == list(ways):
            return
        self._ways, self._turns = list(ways), self._turns + 10
        self.set_items([_item(number, way) for number, way in enumerate(self._ways)], self._turns)
        if not ways:
            self.empty_text = empty

    def selected(self) -> FieldComparison | None:
        """Return the field under the cursor."""
        return None if self.cursor_key is None or self._ways is None else self._ways[int(self.cursor_key)]


def _item(number: int, way: FieldComparison) -> Item:
    sign, tone = ("≠", "bad") if way.differs else _MARKS.get(way.mark, ("", ""))
    is_changed = way.mark == "changed"
    is_newer = way.newest not in (ABSENT, way.after if way.kafka == ABSENT else way.kafka)
    cells = (
        Cell(sign, tone),
        Cell(way.name, "bad" if way.differs else "strong"),
        Cell(_shown(way.before), "warn" if is_changed else "muted"),
        Cell(_shown(way.after), "warn" if is_changed else _quiet(way.after)),
        Cell(_shown(way.kafka), "bad" if way.differs else _quiet(way.kafka)),
        Cell(_shown(way.newest), "warn" if is_newer else "muted"),
    )
    texts = " ".join((way.name, *(cell.text for cell in cells[2:])))
    return Item(str(number), cells, {"field": number}, texts, way.differs)


def _quiet(value: str | None) -> str:
    return "muted" if value in (None, ABSENT) else ""


def _shown(value: str | None) -> str:
    if value == ABSENT:
        return figures.NONE
    return "NULL" if value is None else value or "''"
