"""The dialogs over a screen: forms, questions, the help, leaving, and jump mode."""

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from rich.console import RenderableType
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.geometry import Offset, Size
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widgets import Button, Checkbox, Input, Label, Static

from bwtui.audit.replay_hints import late_warning
from bwtui.tui.base import figures
from bwtui.tui.base.actions import GROUPS, Kind, actions
from bwtui.tui.base.keys import key_for, key_text
from bwtui.tui.base.plain import Content, Group, Table, Text
from bwtui.tui.sources.model import ViewSettings

#: Maximum entries of a folder that are read for completion.
_ENTRIES = 5_000


@dataclass(frozen=True, slots=True)
class FormField:
    """A line of a form."""

    name: str
    label: str
    value: str = ""
    placeholder: str = ""
    #: A checkbox instead of text; ``value`` is then "yes" or empty.
    is_switch: bool = False
    #: The main line of the form: it has the focus, and Enter in it submits the form.
    is_typed: bool = False
    #: A path, which → completes while it is typed; the line has the focus first.
    is_path: bool = False


class Tick(Checkbox):
    """A checkbox whose mark appears and disappears; Textual's own only changes its colour."""

    BUTTON_LEFT, BUTTON_RIGHT = "[", "]"

    def __init__(self, label: str, value: bool, *, id: str, compact: bool) -> None:
        super().__init__(Content(label), value, id=id, compact=compact)
        self.BUTTON_INNER = "x" if value else " "

    def watch_value(self) -> None:
        self.BUTTON_INNER = "x" if self.value else " "
        super().watch_value()
        self.refresh()


class PathSuggester(Suggester):
    """Completes a path as far as all files and folders that begin with it agree."""

    def __init__(self) -> None:
        # No cache: files are created and deleted.
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        return await asyncio.to_thread(completed, value)


def completed(value: str) -> str | None:
    """Return ``value`` extended by the common beginning of all paths that match it; None if there is none."""
    folder, begun = os.path.split(value)
    try:
        with os.scandir(Path(folder).expanduser()) as entries:
            matches = [
                entry.name + ("/" if entry.is_dir() else "")
                for entry in itertools.islice(entries, _ENTRIES)
                if entry.name.startswith(begun) and (begun or not entry.name.startswith("."))
            ]
    except (OSError, RuntimeError, ValueError):
        # The folder does not exist, or a user name after ~ does not.
        return None
    alike = (len(set(letters)) == 1 for letters in zip(*matches, strict=False))
    common = matches[0][: sum(itertools.takewhile(bool, alike))] if matches else ""
    if len(common) <= len(begun) or not common.isprintable():
        return None
    return value[: len(value) - len(begun)] + common


class FormScreen(ModalScreen[dict[str, str] | None]):
    """Asks for a few values; returns them by name, or None if the user cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Cancel", key_display="Esc"),
        Binding("ctrl+s", "send", "Run"),
        Binding("down", "app.focus_next", show=False),
        Binding("up", "app.focus_previous", show=False),
    ]

    def __init__(self, title: str, text: str, fields: Sequence[FormField], do: str) -> None:
        super().__init__()
        self._title, self._introduction, self._fields, self._do = title, text, tuple(fields), do

    def compose(self) -> ComposeResult:
        with Vertical(id="form", classes="dialog") as box:
            box.border_title = Content(self._title)
            yield Label(self._introduction, markup=False)
            for field in self._fields:
                with Horizontal(classes="field"):
                    if field.is_switch:
                        yield Tick(field.label, bool(field.value), id=field.name, compact=True)
                    else:
                        yield Label(field.label, classes="name", markup=False)
                        suggester = PathSuggester() if field.is_path else None
                        yield Input(
                            field.value,
                            placeholder=field.placeholder,
                            id=field.name,
                            compact=True,
                            suggester=suggester,
                        )
            with Horizontal(classes="buttons"):
                yield Button(Content(f"{self._do} (Enter)"), id="do", variant="primary", compact=True)
                yield Button("Cancel (Esc)", id="no", compact=True)

    def on_mount(self) -> None:
        """Focus the first line to be filled in, or the button if everything has a default."""
        typed = [field.name for field in self._fields if field.is_path or field.is_typed]
        self.set_focus(self.query_one(f"#{typed[0]}" if typed else "#do"))

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "do":
            self.action_send()
        else:
            self.dismiss(None)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_send()

    def action_send(self) -> None:
        values = {widget.id or "": widget.value.strip() for widget in self.query(Input)}
        values |= {widget.id or "": "yes" if widget.value else "" for widget in self.query(Checkbox)}
        self.dismiss(values)

    def action_leave(self) -> None:
        self.dismiss(None)


class AskScreen(ModalScreen[bool]):
    """Shows a text, and asks whether to continue; without a question it only shows the text.

    For an action that can't be undone, the user must type the ``name`` of its object.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "choose(False)", "No", key_display="Esc"),
        Binding("y", "choose(True)", "Yes"),
        Binding("right,down", "app.focus_next", show=False),
        Binding("left,up", "app.focus_previous", show=False),
    ]

    def __init__(
        self, title: str, content: RenderableType, do: str = "", *, careful: bool = False, name: str = ""
    ) -> None:
        super().__init__()
        self._title, self._content, self._do, self._careful = title, content, do, careful
        self._required_name = name

    def compose(self) -> ComposeResult:
        with Vertical(id="ask", classes="dialog") as box:
            box.border_title = Content(self._title)
            with VerticalScroll():
                yield Static(self._content, markup=False)
            if self._requires_name:
                with Horizontal(classes="field asked"):
                    yield Label(f"type {self._required_name} to continue:", classes="question", markup=False)
                    yield Input(id="name", compact=True)
            with Horizontal(classes="buttons"):
                if self._do:
                    variant = "error" if self._careful else "primary"
                    key = "Enter" if self._requires_name else "y"
                    yield Button(Content(f"{self._do} ({key})"), id="do", variant=variant, compact=True)  # type: ignore[arg-type]
                yield Button("Cancel (Esc)" if self._do else "Close (Esc)", id="no", compact=True)

    def on_mount(self) -> None:
        """Focus a harmless widget, so that Enter never starts a write by accident."""
        first = "#name" if self._requires_name else "#no" if self._careful or not self._do else "#do"
        self.set_focus(self.query_one(first))

    @property
    def _requires_name(self) -> bool:
        return bool(self._do and self._required_name)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.action_choose(event.button.id == "do")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_choose(True)

    def action_choose(self, choice: bool) -> None:
        """Return the choice, if it is available; a required name must have been typed."""
        if (
            choice
            and self._requires_name
            and self.query_one("#name", Input).value.strip() != self._required_name
        ):
            self.query_one("#name").focus()
            self.notify(
                f"The typed name is not {self._required_name}; nothing was done",
                severity="warning",
                timeout=4,
            )
            return
        self.dismiss(choice and bool(self._do))


def plan_content(plan: dict[str, Any], colours: dict[str, str]) -> RenderableType:
    """Return what a replay would do, from ``replay --dry-run --json``."""
    topics = plan.get("topics", {})
    lines: list[RenderableType] = [
        Text(f"would send {plan.get('messages', 0):,} messages, {figures.size(plan.get('bytes', 0))}", "bold")
    ]
    if plan.get("resumed"):
        before = f"an earlier run sent {plan.get('sent_before', 0):,} of them, and this run continues it"
        lines.append(Text(before, colours["quiet"]))
    lines += [Text(f"▲ {warning}", colours["warning"]) for warning in plan_warnings(plan)]
    lines += ["", _topics(topics, colours)]
    if plan.get("schemas"):
        new = sum(bool(use.get("new")) for use in plan["schemas"])
        summary = f"{len(plan['schemas'])} schemas" + (
            f", {new} to be registered" if new else ", all registered"
        )
        lines += ["", Text(summary, colours["quiet"])]
    return Group(*lines)


def repair_content(output: dict[str, Any], colours: dict[str, str]) -> RenderableType:
    """Return what a repair would send, or has sent, from ``repair --json``."""
    is_planned = output.get("state") == "planned"
    # Show what was actually sent: the stream may have sent newer rows for planned keys, or a task may have
    # failed.
    rows_shown = output.get("tables", ()) if is_planned else output.get("sent", ())
    rows, dead = (sum(one.get(name, 0) for one in rows_shown) for name in ("rows", "tombstones"))
    dead += sum(one.get("raw_tombstones", 0) for one in rows_shown) + output.get("stray_tombstones", 0)
    verb = "would send" if is_planned else "sent"
    lines: list[RenderableType] = [Text(f"{verb} {rows:,} rows and {dead:,} tombstones", "bold")]
    if not is_planned:
        lines += _after(output, rows_shown)
    notes = [f"{one['table']}: {note}" for one in output.get("tables", ()) for note in one["notes"]]
    lines += [Text(f"▲ {note}", colours["warning"]) for note in (*notes, *output.get("notes", ()))]
    return Group(*lines, "", _counted(rows_shown, is_planned=is_planned, colours=colours))


def _after(output: dict[str, Any], sent: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """Return how many keys the stream had sent newer values of, and the result of the comparison after it."""
    newer = sum(one.get("left_out", 0) for one in sent)
    lines: list[RenderableType] = []
    if newer:
        lines.append(Text(f"for {newer:,} keys the stream had already sent a newer state"))
    classes = (output.get("after") or output.get("before") or {}).get("classes") or {}
    class_counts = ", ".join(f"{count:,} {name}" for name, count in classes.items() if count)
    lines.append(
        Text(f"comparison afterwards: {output.get('verdict')}{f': {class_counts}' if class_counts else ''}")
    )
    return lines


def _counted(shown: Sequence[dict[str, Any]], *, is_planned: bool, colours: dict[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style=f"bold {colours['quiet']}")
    table.add_column("Table", overflow="fold")
    # The counts of sent messages do not distinguish kinds of tombstones.
    named = {"rows": "Rows", "tombstones": "Tombstones"}
    named |= (
        {"raw_tombstones": "Of other keys", "stray_tombstones": "In other partitions"}
        if is_planned
        else {"left_out": "Newer already"}
    )
    for title in named.values():
        table.add_column(title, justify="right")
    for one in shown:
        if any(one.get(name) for name in named):
            table.add_row(one["table"], *(f"{one.get(name, 0):,}" for name in named))
    return table


def plan_warnings(plan: dict[str, Any]) -> list[str]:
    """Return the warnings to show before anything is written."""
    warnings = []
    missing = plan.get("missing")
    if missing:
        warnings.append(late_warning(missing.get("messages", 0), missing.get("late", 0)))
    elif not plan.get("resumed"):
        # After an interrupted run the topic holds that run's own messages, which are not sent again.
        counts = {name: sum(topic.get("held", {}).values()) for name, topic in plan.get("topics", {}).items()}
        duplicates = {name: count for name, count in counts.items() if count}
        if duplicates:
            warnings.append(
                f"{', '.join(sorted(duplicates))} may already contain {sum(duplicates.values()):,} of "
                "these messages, and would then contain them twice"
            )
    return warnings + [str(note) for note in plan.get("notes", ())]


def topic_to_type(plan: dict[str, Any]) -> str:
    """Return the largest topic that exists already, because messages added to it can't be taken back.

    Return an empty string if the replay creates all topics, which can be deleted again.
    """
    existing = {name: topic for name, topic in plan.get("topics", {}).items() if topic.get("existed")}
    return max(existing, key=lambda name: existing[name]["messages"], default="")


def _topics(topics: dict[str, Any], colours: dict[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style=f"bold {colours['quiet']}")
    table.add_column("Topic", overflow="fold")
    for title in ("Messages", "Bytes", "Already in topic"):
        table.add_column(title, justify="right")
    for name, topic in topics.items():
        existing = f"{sum(topic.get('held', {}).values()):,}" if topic.get("existed") else "to be created"
        table.add_row(name, f"{topic['messages']:,}", figures.size(topic["bytes"]), existing)
    return table


#: "fleet": to the list of all relays; "attach": from that list to one of them.
Ending = Literal["stop", "detach", "quit", "fleet", "attach"]


class HelpScreen(ModalScreen[None]):
    """All keys, from the registry of actions."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1,enter", "dismiss", "Close", key_display="Esc")
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
        likely = "#quit" if not self.running else "#stop" if self.owned or not self.detachable else "#detach"
        self.set_focus(self.query_one(likely))

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
            return "The relay is not running, or is already stopping."
        if not self.detachable:
            return (
                f"This terminal started {self.relay_name}, and the relay ends with it.\n\n"
                "Stop: the writes stop, the relay catches up, and tables and topics are compared."
            )
        origin = "This terminal started" if self.owned else "This terminal is only attached to"
        return (
            f"{origin} relay {self.relay_name}, which is running.\n\n"
            "Stop: the relay finishes and confirms all sent messages, and ends; the slot is kept.\n"
            f"Detach: the relay continues; 'bwtui attach {self.relay_name}' shows it again."
        )


#: The home row comes first.
_LETTERS = "asdfghjklqwertyuiopzxcvbnm"


@dataclass(frozen=True)
class JumpTarget:
    """The position of a letter, and its action."""

    offset: Offset
    go: Callable[[], object]


class JumpScreen(ModalScreen[JumpTarget | None]):
    """Covers a screen until a letter is typed; Esc or a change of the terminal's size closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Leave")]

    def __init__(self, places: Sequence[JumpTarget]) -> None:
        super().__init__()
        self.places = dict(zip(_LETTERS, places, strict=False))
        self._laid_out_for: Size | None = None

    def compose(self) -> ComposeResult:
        for letter, place in self.places.items():
            label = Label(f" {letter} ", classes="letter", markup=False)
            label.styles.offset = place.offset
            yield label
        yield Static("type a letter to go there · Esc closes", id="how", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Go to the letter's target; other keys have no effect."""
        if event.key == "escape":
            return
        event.stop()
        place = self.places.get(event.key)
        if place is not None:
            self.dismiss(place)

    def on_click(self) -> None:
        """Close, because the mouse needs no letters."""
        self.dismiss(None)

    def on_resize(self, event: events.Resize) -> None:
        """Close if the letters would no longer be over their panels."""
        if self._laid_out_for not in (None, event.size):
            self.dismiss(None)
        self._laid_out_for = event.size
