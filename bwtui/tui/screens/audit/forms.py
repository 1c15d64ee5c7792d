"""Dialogs that ask before a command is run, and show what it would do."""

import asyncio
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import RenderableType
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widgets import Button, Checkbox, Input, Label, Static

from bwtui.audit.replay_hints import late_warning
from bwtui.tui import figures
from bwtui.tui.plain import Content, Group, Table, Text

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
            found = [
                entry.name + ("/" if entry.is_dir() else "")
                for entry in itertools.islice(entries, _ENTRIES)
                if entry.name.startswith(begun) and (begun or not entry.name.startswith("."))
            ]
    except (OSError, RuntimeError, ValueError):
        # The folder does not exist, or a user name after ~ does not.
        return None
    alike = (len(set(letters)) == 1 for letters in zip(*found, strict=False))
    common = found[0][: sum(itertools.takewhile(bool, alike))] if found else ""
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

    def __init__(self, title: str, words: str, fields: Sequence[FormField], do: str) -> None:
        super().__init__()
        self._title, self._words, self._fields, self._do = title, words, tuple(fields), do

    def compose(self) -> ComposeResult:
        with Vertical(id="form", classes="dialog") as box:
            box.border_title = Content(self._title)
            yield Label(self._words, markup=False)
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
        self.query_one(f"#{typed[0]}" if typed else "#do").focus()

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
        self._asked = name

    def compose(self) -> ComposeResult:
        with Vertical(id="ask", classes="dialog") as box:
            box.border_title = Content(self._title)
            with VerticalScroll():
                yield Static(self._content, markup=False)
            if self._is_asked:
                with Horizontal(classes="field asked"):
                    yield Label(f"type {self._asked} to go on:", classes="question", markup=False)
                    yield Input(id="name", compact=True)
            with Horizontal(classes="buttons"):
                if self._do:
                    variant = "error" if self._careful else "primary"
                    key = "Enter" if self._is_asked else "y"
                    yield Button(Content(f"{self._do} ({key})"), id="do", variant=variant, compact=True)  # type: ignore[arg-type]
                yield Button("Cancel (Esc)" if self._do else "Close (Esc)", id="no", compact=True)

    def on_mount(self) -> None:
        """Focus a harmless widget, so that Enter never starts a write by accident."""
        first = "#name" if self._is_asked else "#no" if self._careful or not self._do else "#do"
        self.query_one(first).focus()

    @property
    def _is_asked(self) -> bool:
        return bool(self._do and self._asked)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.action_choose(event.button.id == "do")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_choose(True)

    def action_choose(self, choice: bool) -> None:
        """Return the choice, if it is available; a required name must have been typed."""
        if choice and self._is_asked and self.query_one("#name", Input).value.strip() != self._asked:
            self.query_one("#name").focus()
            self.notify(f"That is not {self._asked}: nothing is done", severity="warning", timeout=4)
            return
        self.dismiss(choice and bool(self._do))


def plan_content(plan: dict[str, Any], colours: dict[str, str]) -> RenderableType:
    """Return what a replay would do, from ``replay --dry-run --json``."""
    topics = plan.get("topics", {})
    lines: list[RenderableType] = [
        Text(f"would send {plan.get('messages', 0):,} messages, {figures.size(plan.get('bytes', 0))}", "bold")
    ]
    if plan.get("resumed"):
        before = f"{plan.get('sent_before', 0):,} were sent by an earlier run, which is gone on with"
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


def repair_content(told: dict[str, Any], colours: dict[str, str]) -> RenderableType:
    """Return what a repair would send, or has sent, from ``repair --json``."""
    is_planned = told.get("state") == "planned"
    # Show what was actually sent: the stream may have sent newer rows for planned keys, or a task may have
    # failed.
    shown = told.get("tables", ()) if is_planned else told.get("sent", ())
    rows, dead = (sum(one.get(name, 0) for one in shown) for name in ("rows", "tombstones"))
    dead += sum(one.get("raw_tombstones", 0) for one in shown) + told.get("stray_tombstones", 0)
    verb = "would send" if is_planned else "sent"
    lines: list[RenderableType] = [Text(f"{verb} {rows:,} rows and {dead:,} tombstones", "bold")]
    if not is_planned:
        lines += _after(told, shown)
    notes = [f"{one['table']}: {note}" for one in told.get("tables", ()) for note in one["notes"]]
    lines += [Text(f"▲ {note}", colours["warning"]) for note in (*notes, *told.get("notes", ()))]
    return Group(*lines, "", _counted(shown, is_planned=is_planned, colours=colours))


def _after(told: dict[str, Any], sent: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """Return how many keys the stream had sent newer values of, and the result of the comparison after it."""
    newer = sum(one.get("left_out", 0) for one in sent)
    lines: list[RenderableType] = []
    if newer:
        lines.append(Text(f"of {newer:,} keys the stream had sent something newer"))
    classes = (told.get("after") or told.get("before") or {}).get("classes") or {}
    left = ", ".join(f"{count:,} {name}" for name, count in classes.items() if count)
    lines.append(Text(f"the comparison after it: {told.get('verdict')}{f': {left}' if left else ''}"))
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
        held = {name: sum(topic.get("held", {}).values()) for name, topic in plan.get("topics", {}).items()}
        doubled = {name: count for name, count in held.items() if count}
        if doubled:
            warnings.append(
                f"{', '.join(sorted(doubled))} may hold {sum(doubled.values()):,} of these messages already, "
                "and would hold them twice"
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
    for title in ("Messages", "Bytes", "Holds already"):
        table.add_column(title, justify="right")
    for name, topic in topics.items():
        held = f"{sum(topic.get('held', {}).values()):,}" if topic.get("existed") else "is made"
        table.add_row(name, f"{topic['messages']:,}", figures.size(topic["bytes"]), held)
    return table
