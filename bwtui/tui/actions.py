"""Every action of the UI, once.

Bindings, footer, help, command palette and docs/keys.md are all made from `ACTIONS`, so they can't disagree.
"""

from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding

Scope = Literal["screen", "list"]
GROUPS = ("Screens", "View", "Lists", "This terminal")


@dataclass(frozen=True)
class Action:
    """Something the user can do."""

    #: Textual's name of it, with parameters: ``show('changes')`` is the method ``action_show``.
    name: str
    keys: tuple[str, ...]
    #: One or two words, for the footer.
    label: str
    #: What it does, for help, palette and docs.
    help: str
    group: str
    #: "screen": on every screen; "list": in a list that has the focus.
    scope: Scope = "screen"
    footer: bool = False

    @property
    def key_text(self) -> str:
        """The keys as people write them."""
        return " ".join(show_key(key) for key in self.keys)


ACTIONS = (
    Action("show('overview')", ("1",), "Overview", "Pipeline from slot to topic, and all tables", "Screens"),
    Action("show('changes')", ("2",), "Changes", "Live sample of changes, field by field", "Screens"),
    Action("show('registry')", ("3",), "Registry", "Subjects, ids, versions and schema texts", "Screens"),
    Action("show('errors')", ("4",), "Errors", "Errors and warnings, with hints", "Screens"),
    Action(
        "drill", ("enter",), "Open", "Open the selected row: a table, or its detail", "Screens", "list", True
    ),
    Action("back", ("escape",), "Back", "Close the filter, restore a panel, or go back a screen", "Screens"),
    Action(
        "pause",
        ("space",),
        "Pause",
        "Freeze the view; the relay and its counters run on",
        "View",
        footer=True,
    ),
    Action(
        "filter", ("slash",), "Filter", "Filter rows by a regex; ! in front inverts it", "View", footer=True
    ),
    Action(
        "errors_only", ("e",), "Errors only", "Show only what has errors; again for all", "View", footer=True
    ),
    Action(
        "maximise",
        ("m",),
        "Max",
        "Give the whole screen to the focused panel; again restores",
        "View",
        footer=True,
    ),
    Action("next_panel", ("tab",), "Next panel", "Move the focus to the next panel", "View"),
    Action("previous_panel", ("shift+tab",), "Previous panel", "Move the focus to the panel before", "View"),
    Action("theme", ("t",), "Theme", "Switch between the dark and the light theme", "View"),
    Action(
        "sort", ("s",), "Sort", "Sort by the next column; so does a click on a title", "Lists", footer=True
    ),
    Action("reverse", ("S",), "Reverse", "Turn the order round", "Lists"),
    Action("copy", ("y",), "Copy", "Copy the selected row to the clipboard (OSC 52)", "Lists", footer=True),
    Action("up", ("up", "k"), "Up", "One row up", "Lists", "list"),
    Action("down", ("down", "j"), "Down", "One row down", "Lists", "list"),
    Action("page_up", ("pageup",), "Page up", "One page up", "Lists", "list"),
    Action("page_down", ("pagedown",), "Page down", "One page down", "Lists", "list"),
    Action("first", ("home", "g"), "First", "First row", "Lists", "list"),
    Action(
        "last",
        ("end", "G"),
        "Last",
        "Last row; in changes, back to the newest one as they come",
        "Lists",
        "list",
    ),
    Action("help", ("question_mark", "f1"), "Help", "All keys", "This terminal", footer=True),
    Action("palette", ("ctrl+p",), "Palette", "Find any action by name", "This terminal"),
    Action(
        "leave",
        ("q", "ctrl+q", "ctrl+c"),
        "Quit",
        "Stop the relay, detach, or stay",
        "This terminal",
        footer=True,
    ),
)

_KEY_NAMES = {
    "slash": "/",
    "question_mark": "?",
    "space": "Space",
    "escape": "Esc",
    "enter": "Enter",
    "up": "↑",
    "down": "↓",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
    "tab": "Tab",
    "shift+tab": "Shift+Tab",
    "f1": "F1",
}


def show_key(key: str) -> str:
    """Return a key as people write it."""
    if key.startswith("ctrl+"):
        return f"Ctrl+{key[5:].upper()}"
    return _KEY_NAMES.get(key, key)


def bindings(scope: Scope) -> list[Binding]:
    """Return Textual's bindings of a scope. The first key of an action is the one that the footer shows."""
    return [
        Binding(
            key,
            action.name,
            action.label,
            show=action.footer and key == action.keys[0],
            key_display=show_key(key),
            tooltip=action.help,
        )
        for action in ACTIONS
        if action.scope == scope
        for key in action.keys
    ]


def docs_table() -> str:
    """Return docs/keys.md."""
    lines = [
        "# Keys",
        "",
        "Made from `bwtui/tui/actions.py` by `docs/screenshots/make.py`; a test compares them.",
    ]
    for group in GROUPS:
        lines += ["", f"## {group}", "", "| Key | Does |", "|---|---|"]
        for action in ACTIONS:
            if action.group == group:
                keys = ", ".join(f"`{show_key(key)}`" for key in action.keys)
                lines.append(f"| {keys} | {action.help} |")
    return "\n".join(lines) + "\n"
