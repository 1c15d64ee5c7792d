"""The schemas that the relay registered or looked up."""

import json
from collections.abc import Iterable
from typing import ClassVar

from textual.highlight import highlight
from textual.widget import Widget

from bwtui.escaping import escape_json
from bwtui.model.service_views import LookName, SubjectVersions
from bwtui.model.status import SchemaEntry
from bwtui.tui import assessment, figures
from bwtui.tui.plain import Content
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.item_list import Item, ItemList

COLUMNS = (
    GridColumn("subject", "Subject", 24, grow=46),
    GridColumn("id", "Id", 6, "right"),
    GridColumn("version", "Ver", 4, "right"),
    GridColumn("part", "Part", 5, drop=2),
    GridColumn("table", "Table", 18, drop=1, grow=34),
    GridColumn("time", "Since", 8, drop=3),
)


class RegistryScreen(RelayScreen):
    """Shows the subjects, and next to them the text of the selected schema."""

    mode: ClassVar[str] = "registry"
    wants_look: ClassVar[LookName | None] = "subject"
    own_keys: ClassVar[frozenset[str]] = frozenset(("look_closer('versions')", "try_ddl"))
    _listing: ItemList | None = None

    def body(self) -> Iterable[Widget]:
        listing = ItemList(
            COLUMNS, ("subject", "id", "version", "table", "time"), id="schemas", noun="schemas"
        )
        listing.border_title = "Subjects"
        self._listing = listing
        return (listing, Detail(id="schema", title="Schema"))

    def paint(self, picture: ScreenSnapshot) -> None:
        troubled = {
            name
            for name, table in (picture.status.tables.items() if picture.status else ())
            if assessment.has_trouble(table)
        }
        items = [_item(schema, schema.table in troubled) for schema in picture.schemas]
        self.query_one(ItemList).set_items(items, picture.received)
        self._show_selected()

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._show_selected()

    def selected_subject(self) -> str | None:
        schema = self._selected()
        return None if schema is None else schema.subject

    def look_about(self) -> tuple[str, ...]:
        """Return the selected subject, because its compatibility level is shown."""
        return (self.selected_subject() or "",)

    @property
    def hurries(self) -> bool:
        """True while the compatibility level of the selected subject is missing."""
        look = self._look()
        return look is None or (not look.time and not look.failure)

    def row_text(self) -> str:
        schema = self._selected()
        return "" if schema is None else pretty(schema.schema)

    def _selected(self) -> SchemaEntry | None:
        # This is also called before the list exists and while the screen closes.
        key = None if self._listing is None else self._listing.cursor_key
        schemas = self.host.model.picture.schemas
        return next((schema for schema in schemas if _key(schema) == key), None)

    def _show_selected(self) -> None:
        detail, schema = self.query_one("#schema", Detail), self._selected()
        if schema is None:
            detail.show(None, Content.styled("no schema selected", "$quiet"))
            return
        rule = self._rule()
        head = Content.assemble(
            (f"{schema.subject}  ", "bold"),
            (f"id {schema.id}  ", "$primary"),
            (f"version {figures.NONE if schema.version is None else schema.version}", "$primary"),
            "\n",
            (f"{schema.part} of {schema.table}, topic {schema.topic}", "$quiet"),
            "\n" if rule else "",
            rule,
            "\n\n",
        )
        detail.show((schema, rule), head + highlight(escape_json(pretty(schema.schema)), language="json"))

    def _look(self) -> SubjectVersions | None:
        look = self.host.model.picture.looks.get("subject")
        return look if isinstance(look, SubjectVersions) and look.name == self.selected_subject() else None

    def _rule(self) -> str:
        """Return the selected subject's compatibility level and number of versions; "" in a recording."""
        look = self._look()
        if self.host.model.recorded or look is None:
            return ""
        if look.failure:
            return look.failure
        number = len(look.versions)
        versions = "1 version" if number == 1 else f"{number:,} versions"
        return f"held to {look.level}, {versions} in the registry" if look.level else ""


def pretty(schema: str) -> str:
    """Return a schema's text with one line per field; text that is not JSON stays unchanged."""
    try:
        data = json.loads(schema)
    except ValueError:
        return schema
    if not isinstance(data, dict) or not isinstance(data.get("fields"), list):
        return json.dumps(data, indent=2, ensure_ascii=False)
    fields = ",\n".join(f"    {json.dumps(f, ensure_ascii=False)}" for f in data["fields"])
    rest = {**data, "fields": []}
    # One line per field is easier to read than the twelve of an indented union.
    return json.dumps(rest, indent=2, ensure_ascii=False).replace(
        '"fields": []', f'"fields": [\n{fields}\n  ]'
    )


def _key(schema: SchemaEntry) -> str:
    return f"{schema.subject} {schema.id}"


def _item(schema: SchemaEntry, trouble: bool) -> Item:
    version = figures.NONE if schema.version is None else str(schema.version)
    cells = (
        Cell(schema.subject, "strong"),
        Cell(str(schema.id)),
        Cell(version),
        Cell(schema.part, "muted"),
        Cell(schema.table),
        Cell(figures.clock(schema.time), "muted"),
    )
    values = {
        "subject": schema.subject,
        "id": schema.id,
        "version": schema.version or 0,
        "table": schema.table,
        "time": schema.time,
    }
    return Item(_key(schema), cells, values, f"{schema.subject} {schema.id} {schema.table}", trouble)
