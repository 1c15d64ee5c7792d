"""The keys of every action: as shown to people, as Textual's bindings, and as docs/keys.md."""

import re

from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import key_to_character

from bwtui.tui.base.actions import ACTIONS, GROUPS, Action, Scope, has_chosen_keys

#: Names in bwtui.toml of the actions that have an unclear name in the code.
_NAMES = {
    "drill": "open",
    "step(-1)": "step-back",
    "step(1)": "step-on",
    "step_transaction(-1)": "transaction-back",
    "step_transaction(1)": "transaction-on",
    "speed(-1)": "slower",
    "speed(1)": "faster",
    "travel(0)": "beginning",
    "travel(1)": "ending",
    "error(1)": "next-error",
    "error(-1)": "error-before",
}
_PARAMETER = re.compile(r"(\w+)\('(\w+)'\)")
#: In a list that shows the recording itself, a key of both actions moves to the recording's beginning or end.
_ENDS = {"first": "travel(0)", "last": "travel(1)"}
#: Names of keys; for all others Textual provides the character.
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
    "left": "←",
    "right": "→",
    "shift+left": "Shift+←",
    "shift+right": "Shift+→",
}
#: Names of keys in bwtui.toml, in lower case.
NAMED_KEYS = {
    **{shown.lower(): key for key, shown in _KEY_NAMES.items()},
    **{key: key for key in (*_KEY_NAMES, "backspace", "delete", "insert")},
    **{f"f{number}": f"f{number}" for number in range(1, 13)},
}


def show_key(key: str) -> str:
    """Return a key as shown to people."""
    if key.startswith(("ctrl+", "shift+")) and key not in _KEY_NAMES:
        modifier, _, base = key.partition("+")
        return f"{modifier.capitalize()}+{base.upper() if len(base) == 1 else show_key(base)}"
    character = key_to_character(key) or ""
    return _KEY_NAMES.get(key) or (character if character.isprintable() else "") or key.capitalize()


def key_text(action: Action) -> str:
    """Return an action's keys as shown to people."""
    return " ".join(map(show_key, action.keys))


def name_of(action: Action) -> str:
    """Return the name of an action in bwtui.toml."""
    name = _NAMES.get(action.name, action.name)
    if match := _PARAMETER.fullmatch(name):
        name = f"show-{match[2]}" if match[1] == "show" else match[2]
    return name.replace("_", "-")


def keys_of(name: str) -> tuple[str, ...]:
    """Return the keys of an action."""
    return next(action.keys for action in ACTIONS if action.name == name)


def key_for(name: str) -> str:
    """Return an action's first key, for use in a sentence."""
    return show_key(keys_of(name)[0])


def bindings(scope: Scope) -> list[Binding]:
    """Return Textual's bindings of a scope; the footer shows the first key of an action."""
    return [
        Binding(
            key,
            _bound(action, key),
            action.short or action.label,
            show=action.footer and key == action.keys[0],
            key_display=show_key(key),
            tooltip=action.help,
        )
        for action in ACTIONS
        if action.scope == scope
        for key in action.keys
    ]


def _bound(action: Action, key: str) -> str:
    """Return what a key does: for a shared key, a list first checks whether the key is its own."""
    end = _ENDS.get(action.name)
    return f"{action.name}('{key}')" if end is not None and key in keys_of(end) else action.name


def rebind(node: DOMNode, scope: Scope, only: str = "") -> None:
    """Replace the keys of a screen or list by the chosen ones, which Textual's BINDINGS were created without.

    ``only`` restricts this to one action of the scope.
    """
    if not has_chosen_keys():
        return
    bound = node._bindings.key_to_bindings
    for key in (key for action in ACTIONS if action.scope == scope for key in action.default_keys):
        bound.pop(key, None)
    selected = [binding for binding in bindings(scope) if only in ("", binding.action)]
    for binding in selected:
        bound[binding.key] = []
    for binding in selected:
        bound[binding.key].append(binding)


_DOCS_OF_KEYS = (
    "# Keys",
    "",
    "`?` lists the keys of the current screen. To change keys, use the names in the last column in",
    "`bwtui.toml`:",
    "",
    "```toml",
    "[keys]",
    'pause = "p"',
    'down = ["down", "ctrl+n"]',
    "```",
    "",
    "They replace the default keys. A key is a character (`?`, `G`), or one of `space`, `enter`, `esc`,",
    "`tab`, `up`, `down`, `left`, `right`, `pageup`, `pagedown`, `home`, `end`, `insert`, `delete`,",
    "`backspace`, `f1` to `f12`; `ctrl+` precedes a letter or a name, `shift+` a name.",
    "`bwtui config validate` reports mistakes.",
)


def docs_table() -> str:
    """Return docs/keys.md."""
    lines = list(_DOCS_OF_KEYS)
    for group in GROUPS:
        title = "In a recording" if group == "Recording" else group
        lines += ["", f"## {title}", "", "| Key | Does | Name |", "|---|---|---|"]
        for action in ACTIONS:
            if action.group == group:
                keys = ", ".join(f"`{show_key(key)}`" for key in action.keys)
                lines.append(f"| {keys} | {action.help} | `{name_of(action)}` |")
    return "\n".join(lines) + "\n"
