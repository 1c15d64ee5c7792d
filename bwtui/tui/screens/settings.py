"""The settings that the relay was started with, and the origin of each."""

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget

from bwtui.model.option_checks import SettingEntry
from bwtui.model.service_views import Configuration, Look, LookName
from bwtui.options import BY_NAME, PAIR_OPTIONS
from bwtui.setting_origins import DEFAULT
from bwtui.tui.plain import Content
from bwtui.tui.screens.service_view import ServiceViewScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.item_list import Item, ItemList
from bwtui.tui.widgets.line import Line

COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("setting", "Setting", 18, grow=36),
    GridColumn("value", "Value", 30, grow=120),
    GridColumn("origin", "From", 22, grow=60),
)


class SettingsScreen(ServiceViewScreen):
    """Shows the list, and the help of the selected setting."""

    mode: ClassVar[str] = "settings"
    wants_look: ClassVar[LookName | None] = "configuration"
    ages: ClassVar[bool] = False
    service: ClassVar[str] = "its own process"

    def body(self) -> Iterable[Widget]:
        listing = ItemList(COLUMNS, ("setting", "value", "origin"), id="settings", noun="settings")
        listing.border_title = "Settings"
        return (Line(id="said"), listing, Detail(id="setting", title="Setting"))

    def show_look(self, look: Look, picture: ScreenSnapshot) -> Content:
        """Fill the list, and return its summary."""
        assert isinstance(look, Configuration)
        items = [_item(index, entry) for index, entry in enumerate(look.settings)]
        self.query_one("#settings", ItemList).set_items(items, picture.received)
        self._show_selected()
        chosen = sum(entry.origin != DEFAULT for entry in look.settings)
        text = f" {chosen} of {len(look.settings)} were set when the relay was started (●). "
        return Content(text) + Content.styled("They hold until it is started again.", "$quiet")

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._show_selected()

    def _show_selected(self) -> None:
        look = self.host.model.picture.looks.get("configuration")
        key = self.query_one("#settings", ItemList).cursor_key
        entries = look.settings if isinstance(look, Configuration) else ()
        entry = next((entry for entry in entries if entry.name == key), None)
        detail = self.query_one("#setting", Detail)
        if entry is None:
            detail.show(None, Content.styled("nothing selected", "$quiet"))
        else:
            detail.show(entry, _text(entry))


def _item(index: int, entry: SettingEntry) -> Item:
    is_default = entry.origin == DEFAULT
    cells = (
        Cell(" " if is_default else "●", "strong"),
        Cell(entry.name, "" if is_default else "strong"),
        Cell(entry.text, "muted" if is_default else ""),
        Cell(entry.origin, "muted" if is_default else ""),
    )
    # Sort in the order of the help, until the user sorts them.
    values = {"setting": index, "value": entry.text, "origin": entry.origin}
    return Item(entry.name, cells, values, f"{entry.name} {entry.text} {entry.origin}", not is_default)


def _text(entry: SettingEntry) -> Content:
    table, _, key = entry.name.partition(".")
    option = PAIR_OPTIONS.get(table) if key else BY_NAME.get(entry.name)
    parts = [
        Content.assemble((entry.name, "bold"), " = ", (entry.text, "bold $primary")),
        Content.styled(f"from: {entry.origin}", "$quiet"),
    ]
    if option is not None and option.help:
        parts.append(Content(option.help))
    if option is not None and not key:
        flag = f"-{option.flag}, " if option.flag else ""
        ways = f"{flag}--{option.name} · {option.variable} · {option.name} in bwtui.toml"
        parts.append(Content.styled(ways, "$quiet"))
    return Content("\n\n").join(parts)
