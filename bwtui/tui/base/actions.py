"""Every action of the UI, once.

Bindings, footer, help, command palette and docs/keys.md are all generated from `ACTIONS`, so they can't
disagree.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Scope = Literal["screen", "list"]
#: The kind of source: a running relay, a recording, an audit report alone, or all relays.
Kind = Literal["live", "recording", "report", "fleet"]
#: The kinds of sources for which an action is available.
Where = Literal["everywhere", "source", "live", "recording"]
KINDS: dict[Where, frozenset[Kind]] = {
    "everywhere": frozenset(("live", "recording", "report", "fleet")),
    "source": frozenset(("live", "recording")),
    "live": frozenset(("live",)),
    "recording": frozenset(("recording",)),
}
GROUPS = ("Screens", "Recording", "Audit", "View", "Lists", "This terminal")


@dataclass(frozen=True)
class Action:
    """Something the user can do."""

    #: Textual's name of the action, with parameters: ``show('changes')`` is the method ``action_show``.
    name: str
    #: Its keys, unless the user has chosen different ones.
    default_keys: tuple[str, ...]
    #: One or two words for the footer.
    label: str
    #: A description for help, command palette and docs.
    help: str
    #: "screen": available on every screen; "list": available in the focused list.
    scope: Scope = "screen"
    footer: bool = False
    #: A shorter label, for a footer or tab that has no room for the label.
    short: str = ""
    #: Why recordings lack the action; shown when its key is pressed in a recording.
    absent: str = ""
    #: Available only on the screens of an audit.
    audits: bool = False
    #: The change that the action would make, as the end of "this would …"; empty if it changes only the view.
    #: Every action sets it.
    changes: str | None = None
    # `group` sets these for all actions of a group.
    group: str = ""
    where: Where = "everywhere"

    @property
    def keys(self) -> tuple[str, ...]:
        """Its keys; the footer shows the first one."""
        return _CHOSEN.get(self.name, self.default_keys)


def group(name: str, where: Where, *actions: Action) -> tuple[Action, ...]:
    """Return the actions with their group and with the place where they are available."""
    return tuple(replace(action, group=name, where=where) for action in actions)


def action_group(name: str, where: Where, *actions: Action) -> tuple[Action, ...]:
    """Return the actions as in `group`; without ``changes`` of their own they change only the view."""
    return tuple(replace(action, changes=action.changes or "") for action in group(name, where, *actions))


#: The keys that the user has chosen, by the action's name.
_CHOSEN: dict[str, tuple[str, ...]] = {}


def choose_keys(keys_by_action: Mapping[str, tuple[str, ...]]) -> None:
    """Replace the default keys by the chosen ones; every app calls this when it is created."""
    _CHOSEN.clear()
    _CHOSEN.update(keys_by_action)


def has_chosen_keys() -> bool:
    """Return whether the user has chosen any keys."""
    return bool(_CHOSEN)


SERVICES = action_group("Screens", "live",
    Action("show('slots')", ("6",), "Slots",
        "Retained WAL: all slots of the server, long transactions, and standbys", short="Slot",
        absent="A recording has no server with slots; use 'bwtui attach' for a running relay's"),
    Action("show('consumers')", ("7",), "Consumers", "Consumer groups of the topics, and the lag of each",
        short="Cons", absent="A recording has no consumer groups; use 'bwtui attach' for a running relay's"),
    Action("show('log')", ("8",), "Log",
        "Every SQL statement, registry request and Kafka request of the relay, with duration and result",
        absent="A recording has no log of the relay's requests; use 'bwtui attach' for a running relay's"),
    Action("show('settings')", ("9",), "Settings", "Every setting of the relay and its origin", short="Set",
        absent="A recording has no settings of its relay; 'bwtui config show' lists those of this machine"),
    Action("fleet", ("F",), "Relays", "All relays of this user with their states; Enter attaches"),
)  # fmt: skip

BACKFILLS = action_group("Screens", "live",
    Action("open_details('backfills')", ("b",), "Backfills",
        "Backfill requests with their progress and errors", short="Fill"),
    Action("snapshot_table", ("B",), "Send table",
        "Send all rows of the selected table again, after a confirmation", changes="write into a topic"),
    Action("pause_sending", ("h",), "Hold", "On that screen: pause or resume the selected request",
        changes="pause a backfill"),
    Action("cancel_sending", ("X",), "Cancel",
        "On that screen: cancel the selected request, after a confirmation", changes="cancel a backfill"),
)  # fmt: skip


ACTIONS = (
    *action_group("Screens", "source",
        Action("show('overview')", ("1",), "Overview", "Pipeline from slot to topic, and all tables",
            short="Over"),
        Action("show('changes')", ("2",), "Changes",
            "Changes, field by field: a live sample, or all changes of a recording", short="Chg"),
        Action("show('registry')", ("3",), "Registry", "Subjects, ids, versions and schema texts",
            short="Reg"),
        Action("show('errors')", ("4",), "Errors", "Errors and warnings, with hints", short="Err"),
        Action("show('audit')", ("5",), "Audit", "Result of the last audit, class by class", short="Aud"),
    ),
    *SERVICES,
    *action_group("Screens", "source",
        Action("show('transactions')", ("0",), "Transactions",
            "Transactions by rows, bytes, time and commit; Enter opens the changes of one", short="Txn"),
    ),
    *action_group("Screens", "everywhere",
        Action("drill", ("enter",), "Open", "Open the selected row: a table or its details", scope="list",
            footer=True),
        Action("back", ("escape",), "Back", "Close the filter, restore a panel, or go back a screen"),
    ),
    *action_group("Screens", "source",
        Action("open_details('versions')", ("D",), "Diff",
            "Versions of the selected schema, compared field by field; on that screen, mark a version to "
            "compare others with it"),
        Action("open_details('letters')", ("l",), "Letters",
            "Dead letters: dropped rows with reason and columns, and how to re-send them"),
    ),
    *action_group("Screens", "live",
        Action("try_ddl", ("c",), "Try DDL",
            "Check the tables against the schema registry as they would be after a DDL file; changes nothing",
            absent="A recording has no server to try DDL on; use 'bwtui schema check --ddl FILE'",
            changes="briefly lock tables on the server"),
        Action("send_all_again", ("ctrl+r",), "Send all",
            "For all listed dead letters that are open: re-send their rows, after a confirmation",
            changes="write into topics"),
    ),
    *BACKFILLS,
    *action_group("View", "live",
        Action("pause", ("space",), "Pause", "Freeze the view; the relay and its counters continue",
            footer=True),
    ),
    *action_group("Recording", "recording",
        Action("play", ("space",), "Play", "Play or pause", footer=True),
        Action("step(-1)", ("left",), "Back one", "One change back"),
        Action("step(1)", ("right",), "Forward one", "One change forward"),
        Action("step_transaction(-1)", ("left_square_bracket", "shift+left"), "Transaction back",
            "To the end of the previous transaction"),
        Action("step_transaction(1)", ("right_square_bracket", "shift+right"), "Transaction forward",
            "To the end of the next transaction"),
        Action("speed(-1)", ("less_than_sign",), "Slower", "Half the speed, down to ×¼"),
        Action("speed(1)", ("greater_than_sign",), "Faster", "Twice the speed, up to ×64"),
        Action("travel(0)", ("g",), "Beginning", "Beginning of the recording; in other lists, the first row"),
        Action("travel(1)", ("G",), "End", "End of the recording; in other lists, the last row"),
        Action("seek", ("colon",), "Go to",
            "Go to a time, +30s, -5m, an LSN, xid N, N% or #N; a click on the timeline does the same",
            footer=True),
        Action("error(1)", ("n",), "Next error", "To the next error or warning"),
        Action("error(-1)", ("N",), "Previous error", "To the previous error or warning"),
        Action("open_details('transaction')", ("T",), "Transaction",
            "All changes of the selected change's transaction", footer=True, short="Txn"),
        Action("open_details('rows')", ("a",), "As of", "Rows of the selected table as of this position",
            footer=True),
    ),
    *action_group("View", "source",
        Action("open_details('journey')", ("x",), "Journey",
            "Journey of the selected key: its changes, their path to Kafka, and Kafka's present record",
            footer=True),
    ),
    *action_group("Audit", "source",
        Action("verify", ("v",), "Verify",
            "Audit a recording against Kafka, or tables against their topics; during an audit, show its "
            "progress", footer=True),
        Action("send_again", ("R",), "Send again",
            "In a key's journey: re-send the key; for a dead letter: re-send its row; both after a "
            "confirmation", footer=True, short="Again", changes="write into a topic"),
    ),
    *group("Audit", "live",
        Action("repair", ("M",), "Repair",
            "Show the keys that differ between topics and tables; after a confirmation the relay re-sends "
            "them", footer=True, audits=True, changes="write into topics"),
    ),
    *group("Audit", "recording",
        Action("replay", ("r",), "Replay",
            "Show the messages that a replay would send; after a confirmation write them into the topics",
            footer=True, changes="write into topics"),
        Action("place", ("p",), "Place", "Position of the selected finding in the recording", footer=True,
            audits=True, changes=""),
        Action("mend", ("M",), "Repair", "Replay only the messages that the audit reported missing",
            footer=True, audits=True, changes="write into topics"),
    ),
    *action_group("Audit", "everywhere",
        Action("all_classes", ("z",), "Zeros", "Also show classes without findings, or hide them again",
            footer=True, audits=True),
    ),
    *action_group("View", "everywhere",
        Action("filter", ("slash",), "Filter",
            "Filter rows by a regex, inverted by a leading !; filter changes of a recording by a query. The "
            "overview also accepts a key: orders id=42", footer=True),
    ),
    *action_group("View", "source",
        Action("errors_only", ("exclamation_mark",), "Errors only",
            "Show only rows with errors; press again to show all", footer=True),
    ),
    *action_group("View", "everywhere",
        Action("maximise", ("m",), "Max", "Maximise the focused panel; press again to restore it",
            footer=True),
        Action("next_panel", ("tab",), "Next panel", "Move the focus to the next panel"),
        Action("previous_panel", ("shift+tab",), "Previous panel", "Move the focus to the previous panel"),
        Action("jump", ("ctrl+o",), "Jump",
            "Show a letter on each panel and tab; typing a letter goes there"),
        Action("theme", ("t",), "Theme", "Next theme: dark, light, high contrast, or first your own"),
    ),
    *action_group("Lists", "everywhere",
        Action("sort", ("s",), "Sort", "Sort by the next column; a click on a title does the same",
            footer=True),
        Action("reverse", ("S",), "Reverse", "Reverse the order"),
        Action("export", ("e",), "Export",
            "Export the selected row as JSON into a new file in the current folder"),
        Action("export_all", ("E",), "Export all", "Export all matching rows as JSON lines into a new file"),
        Action("copy", ("y",), "Copy", "Copy the selected row to the clipboard (OSC 52)", footer=True),
        Action("up", ("up", "k"), "Up", "One row up", scope="list"),
        Action("down", ("down", "j"), "Down", "One row down", scope="list"),
        Action("page_up", ("pageup",), "Page up", "One page up", scope="list"),
        Action("page_down", ("pagedown",), "Page down", "One page down", scope="list"),
        Action("first", ("home", "g"), "First", "First row", scope="list"),
        Action("last", ("end", "G"), "Last", "Last row; in changes, follow the newest one again",
            scope="list"),
    ),
    *action_group("This terminal", "everywhere",
        Action("help", ("question_mark", "f1"), "Help", "All keys", footer=True),
        Action("palette", ("ctrl+p",), "Palette", "Find any action by name"),
        Action("leave", ("q", "ctrl+q", "ctrl+c"), "Quit",
            "Stop the relay, detach, or stay; a recording is closed without a question", footer=True),
    ),
)  # fmt: skip


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
    actions = [action for action in ACTIONS if key in action.keys]
    here = [action for action in actions if kind in KINDS[action.where]]
    if readonly and (refused := next((action for action in here if action.changes), None)):
        return f"{refused.label}: this would {refused.changes}, but the screens are --readonly"
    # A screen that recordings lack has its own explanation, which its key shows.
    absent = kind == "recording" and any(action.absent for action in actions)
    if not actions or absent or here:
        return None
    label = actions[0].label
    if actions[0].where == "recording":
        return (
            f"{label}: available only in a recording; record with 'bwtui connect --record DIR', then "
            "'bwtui open DIR'"
        )
    return f"{label}: not available here"
