"""What an action is, and which keys it has."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Scope = Literal["screen", "list"]
#: What the screens show: a relay that runs, a recording, the report of an audit and nothing else, or all
#: relays.
Kind = Literal["live", "recording", "report", "fleet"]
#: Where an action makes sense.
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

    #: Textual's name of it, with parameters: ``show('changes')`` is the method ``action_show``.
    name: str
    #: Its keys, unless the user has chosen others.
    default_keys: tuple[str, ...]
    #: One or two words, for the footer.
    label: str
    #: What it does, for help, palette and docs.
    help: str
    #: "screen": on every screen; "list": in a list that has the focus.
    scope: Scope = "screen"
    footer: bool = False
    #: What the footer, or a tab, says where the label is too long for it.
    short: str = ""
    #: Why a recording does not have it; said when its key is pressed there.
    absent: str = ""
    #: It makes sense on the audit's screens only.
    audits: bool = False
    #: What it would change, as the end of "this would …"; empty: nothing but what is seen. Each says so.
    changes: str | None = None
    # Said once for all actions of a group.
    group: str = ""
    where: Where = "everywhere"

    @property
    def keys(self) -> tuple[str, ...]:
        """Its keys, the first of which the footer shows."""
        return _CHOSEN.get(self.name, self.default_keys)


def group(name: str, where: Where, *actions: Action) -> tuple[Action, ...]:
    """Return the actions of one group that make sense in the same place; each says what it changes."""
    return tuple(replace(action, group=name, where=where) for action in actions)


def looking(name: str, where: Where, *actions: Action) -> tuple[Action, ...]:
    """Return such actions that change nothing but what is seen, unless one of them says otherwise."""
    return tuple(replace(action, changes=action.changes or "") for action in group(name, where, *actions))


#: The keys that the user has chosen, by the action's name.
_CHOSEN: dict[str, tuple[str, ...]] = {}


def choose_keys(chosen: Mapping[str, tuple[str, ...]]) -> None:
    """Take these keys instead of the actions' own; every app does so when it is made."""
    _CHOSEN.clear()
    _CHOSEN.update(chosen)


def has_chosen_keys() -> bool:
    """Tell whether the user has chosen any."""
    return bool(_CHOSEN)
