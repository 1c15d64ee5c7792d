"""Every action of the UI, once.

Bindings, footer, help, command palette and docs/keys.md are all generated from `ACTIONS`, so they can't
disagree.
"""

from bwtui.tui.action import KINDS, Action, Kind, group, looking
from bwtui.tui.live_actions import SENDING_AGAIN, SERVICES

ACTIONS = (
    *looking(
        "Screens",
        "source",
        Action(
            "show('overview')",
            ("1",),
            "Overview",
            "Pipeline from slot to topic, and all tables",
            short="Over",
        ),
        Action(
            "show('changes')",
            ("2",),
            "Changes",
            "Changes, field by field: a live sample, or every one of a recording",
            short="Chg",
        ),
        Action(
            "show('registry')", ("3",), "Registry", "Subjects, ids, versions and schema texts", short="Reg"
        ),
        Action("show('errors')", ("4",), "Errors", "Errors and warnings, with hints", short="Err"),
        Action("show('audit')", ("5",), "Audit", "What the last audit found, class by class", short="Aud"),
    ),
    *SERVICES,
    *looking(
        "Screens",
        "source",
        Action(
            "show('transactions')",
            ("0",),
            "Transactions",
            "Transactions by rows, bytes, time and commit; Enter opens one's changes",
            short="Txn",
        ),
    ),
    *looking(
        "Screens",
        "everywhere",
        Action(
            "drill",
            ("enter",),
            "Open",
            "Open the selected row: a table, or its detail",
            scope="list",
            footer=True,
        ),
        Action("back", ("escape",), "Back", "Close the filter, restore a panel, or go back a screen"),
    ),
    *looking(
        "Screens",
        "source",
        Action(
            "look_closer('versions')",
            ("D",),
            "Diff",
            "Versions of the selected schema, field by field; there: hold this one to compare others with it",
        ),
        Action(
            "look_closer('letters')",
            ("l",),
            "Letters",
            "The dead letters: rows that were dropped, with reason and columns, and how to have them sent",
        ),
    ),
    *looking(
        "Screens",
        "live",
        Action(
            "try_ddl",
            ("c",),
            "Try DDL",
            "What the schema registry would say of the tables after a file of DDL; nothing is changed",
            absent="A recording has no server to try DDL on: 'bwtui schema check --ddl FILE' does that",
            changes="lock tables of the server for a moment",
        ),
        Action(
            "send_all_again",
            ("ctrl+r",),
            "Send all",
            "The statements that have the rows of all dead letters sent again that the list shows",
        ),
    ),
    *SENDING_AGAIN,
    *looking(
        "View",
        "live",
        Action(
            "pause", ("space",), "Pause", "Freeze the view; the relay and its counters run on", footer=True
        ),
    ),
    *looking(
        "Recording",
        "recording",
        Action("play", ("space",), "Play", "Play, or stand still", footer=True),
        Action("step(-1)", ("left",), "Back one", "One change back"),
        Action("step(1)", ("right",), "On one", "One change on"),
        Action(
            "step_transaction(-1)",
            ("left_square_bracket", "shift+left"),
            "Transaction back",
            "To the end of the transaction before",
        ),
        Action(
            "step_transaction(1)",
            ("right_square_bracket", "shift+right"),
            "Transaction on",
            "To the end of the next transaction",
        ),
        Action("speed(-1)", ("less_than_sign",), "Slower", "Half the speed, down to ×¼"),
        Action("speed(1)", ("greater_than_sign",), "Faster", "Twice the speed, up to ×64"),
        Action(
            "travel(0)", ("g",), "Beginning", "The recording's beginning; in a list of its own, the first row"
        ),
        Action("travel(1)", ("G",), "End", "The recording's end; in a list of its own, the last row"),
        Action(
            "seek",
            ("colon",),
            "Go to",
            "Go to a time, +30s, -5m, an LSN, xid N, N% or #N; so does a click on the timeline",
            footer=True,
        ),
        Action("error(1)", ("n",), "Next error", "To the next error or warning"),
        Action("error(-1)", ("N",), "Error before", "To the error or warning before"),
        Action(
            "look_closer('transaction')",
            ("T",),
            "Transaction",
            "All changes of the selected change's transaction",
            footer=True,
            short="Txn",
        ),
        Action(
            "look_closer('rows')",
            ("a",),
            "As of",
            "The rows of the selected table as they were at this position",
            footer=True,
        ),
    ),
    *looking(
        "View",
        "source",
        Action(
            "look_closer('journey')",
            ("x",),
            "Journey",
            "The selected key's journey: its changes, the way of each to Kafka, and what is there now",
            footer=True,
        ),
    ),
    *looking(
        "Audit",
        "source",
        Action(
            "verify",
            ("v",),
            "Verify",
            "Audit a recording against Kafka, or tables against their topics; while that runs, how far it is",
            footer=True,
        ),
        Action(
            "send_again",
            ("R",),
            "Send again",
            "In a key's journey: send the key again, after a question; of a dead letter: have its row sent",
            footer=True,
            short="Again",
            changes="write into a topic",
        ),
    ),
    *group(
        "Audit",
        "live",
        Action(
            "repair",
            ("M",),
            "Mend",
            "Have the relay send the keys in which topics and tables differ: first what, then the question",
            footer=True,
            audits=True,
            changes="write into topics",
        ),
    ),
    *group(
        "Audit",
        "recording",
        Action(
            "replay",
            ("r",),
            "Replay",
            "Write its messages into topics again: first what would be done, then the question",
            footer=True,
            changes="write into topics",
        ),
        Action(
            "place",
            ("p",),
            "Place",
            "The selected finding's place in the recording",
            footer=True,
            audits=True,
            changes="",
        ),
        Action(
            "mend",
            ("M",),
            "Mend",
            "Replay what the audit found missing, and only that",
            footer=True,
            audits=True,
            changes="write into topics",
        ),
    ),
    *looking(
        "Audit",
        "everywhere",
        Action(
            "all_classes",
            ("z",),
            "Zeros",
            "Show also the classes of which nothing was found, or hide them again",
            footer=True,
            audits=True,
        ),
    ),
    *looking(
        "View",
        "everywhere",
        Action(
            "filter",
            ("slash",),
            "Filter",
            "Filter rows by a regex, ! in front inverts it; changes of a recording by a query. "
            "On the overview it also takes a key: orders id=42",
            footer=True,
        ),
    ),
    *looking(
        "View",
        "source",
        Action(
            "errors_only",
            ("exclamation_mark",),
            "Errors only",
            "Show only what has errors; again for all",
            footer=True,
        ),
    ),
    *looking(
        "View",
        "everywhere",
        Action(
            "maximise",
            ("m",),
            "Max",
            "Give the whole screen to the focused panel; again restores",
            footer=True,
        ),
        Action("next_panel", ("tab",), "Next panel", "Move the focus to the next panel"),
        Action("previous_panel", ("shift+tab",), "Previous panel", "Move the focus to the panel before"),
        Action("jump", ("ctrl+o",), "Jump", "Letters over panels and tabs: each goes where it stands"),
        Action("theme", ("t",), "Theme", "The next theme: dark, light, high contrast, or your own first"),
    ),
    *looking(
        "Lists",
        "everywhere",
        Action("sort", ("s",), "Sort", "Sort by the next column; so does a click on a title", footer=True),
        Action("reverse", ("S",), "Reverse", "Turn the order round"),
        Action("export", ("e",), "Export", "Export the selected row as JSON, into a new file of this folder"),
        Action("export_all", ("E",), "Export all", "Export all that match, as JSON lines, into a new file"),
        Action("copy", ("y",), "Copy", "Copy the selected row to the clipboard (OSC 52)", footer=True),
        Action("up", ("up", "k"), "Up", "One row up", scope="list"),
        Action("down", ("down", "j"), "Down", "One row down", scope="list"),
        Action("page_up", ("pageup",), "Page up", "One page up", scope="list"),
        Action("page_down", ("pagedown",), "Page down", "One page down", scope="list"),
        Action("first", ("home", "g"), "First", "First row", scope="list"),
        Action(
            "last",
            ("end", "G"),
            "Last",
            "Last row; in changes, back to the newest one as they come",
            scope="list",
        ),
    ),
    *looking(
        "This terminal",
        "everywhere",
        Action("help", ("question_mark", "f1"), "Help", "All keys", footer=True),
        Action("palette", ("ctrl+p",), "Palette", "Find any action by name"),
        Action(
            "leave",
            ("q", "ctrl+q", "ctrl+c"),
            "Quit",
            "Stop the relay, detach, or stay; a recording is just closed",
            footer=True,
        ),
    ),
)


def actions(kind: Kind, *, readonly: bool = False) -> list[Action]:
    """Return the actions available for a kind of source; in read-only mode only those that change nothing."""
    return [a for a in ACTIONS if kind in KINDS[a.where] and not (readonly and a.changes)]


def kinds_of(action: Action) -> frozenset[Kind]:
    """Return the kinds of source in which an action is available or can explain why it is not."""
    return KINDS[action.where] | ({"recording"} if action.absent else frozenset())


def names(kind: Kind) -> frozenset[str]:
    """Return the names of the actions that are available for a kind of source."""
    return frozenset(action.name for action in actions(kind))


def tabs(kind: Kind) -> dict[str, Action]:
    """Return the modes that are available for a kind of source, with the action that shows each."""
    shows = [action for action in actions(kind) if action.name.startswith("show(")]
    return {action.name.removeprefix("show('").removesuffix("')"): action for action in shows}


def why_absent(name: str) -> str:
    """Return why recordings lack an action, given its name or the mode that it shows."""
    return next(action.absent for action in ACTIONS if action.name in (name, f"show('{name}')"))


def makes_sense(
    name: str, parameters: tuple[object, ...], kind: Kind, *, audits: bool = False, readonly: bool = False
) -> bool:
    """Return whether an action, as Textual names it, is enabled for this source and screen."""
    full = f"{name}({', '.join(map(repr, parameters))})" if parameters else name
    return all(
        (kind in KINDS[action.where] or (kind == "recording" and bool(action.absent)))
        and (audits or not action.audits)
        and not (readonly and action.changes)
        for action in ACTIONS
        if action.name == full
    )


def why_nothing(key: str, kind: Kind, *, readonly: bool = False) -> str | None:
    """Return why a key has no effect here, or None if it has one or is bound to no action."""
    meant = [action for action in ACTIONS if key in action.keys]
    here = [action for action in meant if kind in KINDS[action.where]]
    if readonly and (refused := next((action for action in here if action.changes), None)):
        return f"{refused.label}: this would {refused.changes}, and with --readonly the screens only look"
    # A screen that recordings lack has its own explanation, which its key shows.
    absent = kind == "recording" and any(action.absent for action in meant)
    if not meant or absent or here:
        return None
    what = meant[0].label
    if meant[0].where == "recording":
        return (
            f"{what}: only in a recording. 'bwtui connect --record DIR' makes one, 'bwtui open DIR' shows it"
        )
    return f"{what}: not in what is shown here"
