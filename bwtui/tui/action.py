"""The `Action` class, and the keys that the user has chosen for actions."""

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


def looking(name: str, where: Where, *actions: Action) -> tuple[Action, ...]:
    """Return the actions as in `group`; without ``changes`` of their own they change only the view."""
    return tuple(replace(action, changes=action.changes or "") for action in group(name, where, *actions))


#: The keys that the user has chosen, by the action's name.
_CHOSEN: dict[str, tuple[str, ...]] = {}


def choose_keys(chosen: Mapping[str, tuple[str, ...]]) -> None:
    """Replace the default keys by the chosen ones; every app calls this when it is created."""
    _CHOSEN.clear()
    _CHOSEN.update(chosen)


def has_chosen_keys() -> bool:
    """Return whether the user has chosen any keys."""
    return bool(_CHOSEN)
