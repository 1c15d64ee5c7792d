"""The keys of every action: how people write them, Textual's bindings, and docs/keys.md."""

from textual.binding import Binding
from textual.keys import key_to_character

from bwtui.tui.actions import ACTIONS, GROUPS, Action, Scope

#: Keys of lists that mean the recording's own ends where a list shows the recording itself.
_ENDS = ("g", "G")
#: Of the other keys Textual knows the character.
_KEY_NAMES = {
    "slash": "/",
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
    "left": "←",
    "right": "→",
    "shift+left": "Shift+←",
    "shift+right": "Shift+→",
}


def show_key(key: str) -> str:
    """Return a key as people write it."""
    if key.startswith("ctrl+"):
        return f"Ctrl+{key[5:].upper()}"
    return _KEY_NAMES.get(key) or key_to_character(key) or key


def key_text(action: Action) -> str:
    """Return an action's keys as people write them."""
    return " ".join(map(show_key, action.keys))


def keys_of(name: str) -> tuple[str, ...]:
    """Return the keys of an action."""
    return next(action.keys for action in ACTIONS if action.name == name)


def bindings(scope: Scope) -> list[Binding]:
    """Return Textual's bindings of a scope. The first key of an action is the one that the footer shows."""
    return [
        Binding(
            key,
            f"{action.name}('{key}')" if scope == "list" and key in _ENDS else action.name,
            action.short or action.label,
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
        title = "In a recording" if group == "Recording" else group
        lines += ["", f"## {title}", "", "| Key | Does |", "|---|---|"]
        for action in ACTIONS:
            if action.group == group:
                keys = ", ".join(f"`{show_key(key)}`" for key in action.keys)
                lines.append(f"| {keys} | {action.help} |")
    return "\n".join(lines) + "\n"
