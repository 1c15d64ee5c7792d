"""The help, and the dialog for leaving."""

from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Label, Static

from bwtui.tui.action import GROUPS, Kind
from bwtui.tui.actions import actions
from bwtui.tui.keys import key_for, key_text
from bwtui.tui.plain import Content, Table, Text
from bwtui.tui.state import ViewSettings

#: "fleet": to the list of all relays; "attach": from that list to one of them.
Ending = Literal["stop", "detach", "quit", "fleet", "attach"]


class HelpScreen(ModalScreen[None]):
    """All keys, from the registry of actions."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1,enter", "dismiss", "Close", key_display="Esc"),
    ]

    def __init__(self, kind: Kind, *, readonly: bool = False) -> None:
        super().__init__()
        self._kind: Kind = kind
        self._readonly = readonly

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help") as box:
            box.border_title = "Keys in a recording" if self._kind == "recording" else "Keys"
            box.border_subtitle = Content(f"Esc closes · {key_for('palette')} finds any action by name")
            table = help_table(self._kind, self.app.theme_variables["primary"], readonly=self._readonly)
            yield Static(table, markup=False)


def help_table(kind: Kind, colour: str, *, readonly: bool = False) -> Table:
    """Return the keys by group, each with its help; ``colour`` is for the names of the groups."""
    table = Table(box=None, padding=0, show_edge=False, show_header=False)
    table.add_column(width=20, no_wrap=True)
    table.add_column(overflow="fold")
    for group in GROUPS:
        of_group = [action for action in actions(kind, readonly=readonly) if action.group == group]
        if of_group:
            if table.row_count:
                table.add_row("", "")
            table.add_row(Text(group, f"bold {colour}"), "")
        for action in of_group:
            table.add_row(Text(f"  {key_text(action)}", "bold"), action.help)
    return table


class LeaveScreen(ModalScreen[Ending | None]):
    """Offers to stop the relay, detach from it, or stay; for a relay that has ended, only to quit."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,c", "choose('stay')", "Stay"),
        Binding("s", "choose('stop')", "Stop"),
        Binding("d", "choose('detach')", "Detach"),
        Binding("q", "choose('quit')", "Quit"),
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]

    def __init__(self, name: str, session: ViewSettings, *, running: bool) -> None:
        super().__init__()
        self.relay_name = name
        self.owned = session.owned
        self.detachable = session.detachable
        self.running = running

    def compose(self) -> ComposeResult:
        with Vertical(id="leave") as box:
            box.border_title = "Leave"
            yield Label(self._question(), markup=False)
            with Horizontal():
                if self.running:
                    yield Button("Stop the relay (s)", id="stop", variant="error", compact=True)
                    if self.detachable:
                        yield Button("Detach (d)", id="detach", variant="primary", compact=True)
                else:
                    yield Button("Quit (q)", id="quit", variant="primary", compact=True)
                yield Button("Cancel (Esc)", id="stay", compact=True)

    def on_mount(self) -> None:
        """Focus the most likely choice."""
        likely = "#quit" if not self.running else "#stop" if self.owned or not self.detachable else "#detach"
        self.query_one(likely).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.action_choose(event.button.id or "stay")

    def action_choose(self, choice: str) -> None:
        """Leave with a choice, if it is available."""
        if choice == "stay":
            self.dismiss(None)
        elif choice == "quit" and not self.running:
            self.dismiss("quit")
        elif choice == "stop" and self.running:
            self.dismiss("stop")
        elif choice == "detach" and self.running and self.detachable:
            self.dismiss("detach")

    def _question(self) -> str:
        if not self.running:
            return "Nothing runs here any more that could be stopped."
        if not self.detachable:
            return (
                f"This terminal started {self.relay_name}, which ends with it.\n\n"
                "Stop: the writes stop, the relay catches up, and tables and topics are compared."
            )
        origin = "This terminal started" if self.owned else "This terminal is only attached to"
        return (
            f"{origin} the relay {self.relay_name}, which is running.\n\n"
            "Stop: it finishes what is under way, confirms it, and ends; the slot stays.\n"
            f"Detach: it runs on; 'bwtui attach {self.relay_name}' shows it again."
        )
