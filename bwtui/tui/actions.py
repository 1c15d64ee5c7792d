"""Every action of the UI, once.

Bindings, footer, help, command palette and docs/keys.md are all made from `ACTIONS`, so they can't disagree.
"""

from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding

Scope = Literal["screen", "list"]
#: What the screens show: a relay that runs, a recording, or the report of an audit and nothing else.
Kind = Literal["live", "recording", "report"]
#: Where an action makes sense.
Where = Literal["everywhere", "source", "live", "recording"]
_KINDS: dict[Where, frozenset[Kind]] = {
    "everywhere": frozenset(("live", "recording", "report")),
    "source": frozenset(("live", "recording")),
    "live": frozenset(("live",)),
    "recording": frozenset(("recording",)),
}
GROUPS = ("Screens", "Recording", "Audit", "View", "Lists", "This terminal")
#: Keys of lists that mean the recording's own ends where a list shows the recording itself.
_ENDS = ("g", "G")


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
    #: What the footer says where the label is too long for it.
    short: str = ""
    where: Where = "everywhere"
    #: It makes sense on the audit's screens only.
    audits: bool = False

    @property
    def key_text(self) -> str:
        """The keys as people write them."""
        return " ".join(show_key(key) for key in self.keys)


ACTIONS = (
    Action(
        "show('overview')",
        ("1",),
        "Overview",
        "Pipeline from slot to topic, and all tables",
        "Screens",
        where="source",
    ),
    Action(
        "show('changes')",
        ("2",),
        "Changes",
        "Changes, field by field: a live sample, or every one of a recording",
        "Screens",
        where="source",
    ),
    Action(
        "show('registry')",
        ("3",),
        "Registry",
        "Subjects, ids, versions and schema texts",
        "Screens",
        where="source",
    ),
    Action("show('errors')", ("4",), "Errors", "Errors and warnings, with hints", "Screens", where="source"),
    Action(
        "show('audit')",
        ("5",),
        "Audit",
        "What the last audit found, class by class",
        "Screens",
        where="source",
    ),
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
        where="live",
    ),
    Action("play", ("space",), "Play", "Play, or stand still", "Recording", footer=True, where="recording"),
    Action("step(-1)", ("left",), "Back one", "One change back", "Recording", where="recording"),
    Action("step(1)", ("right",), "On one", "One change on", "Recording", where="recording"),
    Action(
        "step_transaction(-1)",
        ("left_square_bracket", "shift+left"),
        "Transaction back",
        "To the end of the transaction before",
        "Recording",
        where="recording",
    ),
    Action(
        "step_transaction(1)",
        ("right_square_bracket", "shift+right"),
        "Transaction on",
        "To the end of the next transaction",
        "Recording",
        where="recording",
    ),
    Action(
        "speed(-1)",
        ("less_than_sign",),
        "Slower",
        "Half the speed, down to ×¼",
        "Recording",
        where="recording",
    ),
    Action(
        "speed(1)",
        ("greater_than_sign",),
        "Faster",
        "Twice the speed, up to ×64",
        "Recording",
        where="recording",
    ),
    Action(
        "travel(0)",
        ("g",),
        "Beginning",
        "The recording's beginning; in a list of its own, the first row",
        "Recording",
        where="recording",
    ),
    Action(
        "travel(1)",
        ("G",),
        "End",
        "The recording's end; in a list of its own, the last row",
        "Recording",
        where="recording",
    ),
    Action(
        "seek",
        ("colon",),
        "Go to",
        "Go to a time, +30s, -5m, an LSN, xid N, N% or #N; so does a click on the timeline",
        "Recording",
        footer=True,
        where="recording",
    ),
    Action("error(1)", ("n",), "Next error", "To the next error or warning", "Recording", where="recording"),
    Action(
        "error(-1)", ("N",), "Error before", "To the error or warning before", "Recording", where="recording"
    ),
    Action(
        "look_closer('transaction')",
        ("T",),
        "Transaction",
        "All changes of the selected change's transaction",
        "Recording",
        footer=True,
        short="Txn",
        where="recording",
    ),
    Action(
        "look_closer('explain')",
        ("x",),
        "Explain key",
        "Everything that became of the selected row, change by change",
        "Recording",
        footer=True,
        short="Explain",
        where="recording",
    ),
    Action(
        "look_closer('rows')",
        ("a",),
        "As of",
        "The rows of the selected table as they were at this position",
        "Recording",
        footer=True,
        where="recording",
    ),
    Action(
        "verify",
        ("v",),
        "Verify",
        "Audit a recording against Kafka, or tables against their topics; while that runs, how far it is",
        "Audit",
        footer=True,
        where="source",
    ),
    Action(
        "replay",
        ("r",),
        "Replay",
        "Write its messages into topics again: first what would be done, then the question",
        "Audit",
        footer=True,
        where="recording",
    ),
    Action(
        "place",
        ("p",),
        "Place",
        "The selected finding's place in the recording",
        "Audit",
        footer=True,
        where="recording",
        audits=True,
    ),
    Action(
        "mend",
        ("M",),
        "Mend",
        "Replay what the audit found missing, and only that",
        "Audit",
        footer=True,
        where="recording",
        audits=True,
    ),
    Action(
        "all_classes",
        ("z",),
        "Zeros",
        "Show also the classes of which nothing was found, or hide them again",
        "Audit",
        footer=True,
        audits=True,
    ),
    Action(
        "filter",
        ("slash",),
        "Filter",
        "Filter rows by a regex, ! in front inverts it; a recording's changes by a query",
        "View",
        footer=True,
    ),
    Action(
        "errors_only",
        ("e",),
        "Errors only",
        "Show only what has errors; again for all",
        "View",
        footer=True,
        where="source",
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
        "Stop the relay, detach, or stay; a recording is just closed",
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
    "left": "←",
    "right": "→",
    "shift+left": "Shift+←",
    "shift+right": "Shift+→",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "colon": ":",
}


def show_key(key: str) -> str:
    """Return a key as people write it."""
    if key.startswith("ctrl+"):
        return f"Ctrl+{key[5:].upper()}"
    return _KEY_NAMES.get(key, key)


def keys_of(name: str) -> tuple[str, ...]:
    """Return the keys of an action."""
    return next(action.keys for action in ACTIONS if action.name == name)


def actions(kind: Kind) -> list[Action]:
    """Return the actions that make sense where such a source is shown."""
    return [action for action in ACTIONS if kind in _KINDS[action.where]]


def tabs(kind: Kind) -> dict[str, Action]:
    """Return the modes that such a source has, with the action that shows each."""
    shows = [action for action in actions(kind) if action.name.startswith("show(")]
    return {action.name.removeprefix("show('").removesuffix("')"): action for action in shows}


def makes_sense(name: str, parameters: tuple[object, ...], kind: Kind, *, audits: bool = False) -> bool:
    """Tell whether an action, as Textual names it, makes sense on such a source and such a screen."""
    full = f"{name}({', '.join(map(repr, parameters))})" if parameters else name
    return all(
        kind in _KINDS[action.where] and (audits or not action.audits)
        for action in ACTIONS
        if action.name == full
    )


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
