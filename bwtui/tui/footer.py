"""The keys in the footer: those that fit, or only Enter and Esc while the user types."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from rich.cells import cell_len
from textual.binding import ActiveBinding

#: Actions that the footer omits if space is short, the first one first; help still lists them.
SPARE = (
    *("copy", "sort", "maximise", "errors_only", "replay", "verify"),
    *("look_closer('letters')", "try_ddl", "look_closer('versions')"),
)
#: The same on the screens of an audit.
AUDIT_SPARE = (
    "copy",
    "sort",
    "maximise",
    "look_closer('rows')",
    "look_closer('journey')",
    "look_closer('transaction')",
    "seek",
    "play",
    "replay",
)

Bindings = dict[str, ActiveBinding]


def fitted(active: Bindings, spare: Sequence[str], width: int) -> Bindings:
    """Return the bindings, with those of ``spare`` hidden from the footer that do not fit."""
    hidden: set[str] = set()
    needed = _width(active)
    for action in spare:
        if needed <= width:
            break
        hidden.add(action)
        needed -= sum(_room(one) for one in active.values() if _is_of(one, (action,)))
    return {
        key: one._replace(binding=replace(one.binding, show=False)) if _is_of(one, hidden) else one
        for key, one in active.items()
    }


def with_own(active: Bindings, own: AbstractSet[str]) -> Bindings:
    """Return the bindings, with the screen's own actions shown in the footer too."""
    return {
        key: one._replace(binding=replace(one.binding, show=True)) if one.binding.action in own else one
        for key, one in active.items()
    }


def typing(active: Bindings, enter: str, escape: str) -> Bindings:
    """Return the bindings, with only Enter and Esc shown in the footer, labelled for the typed line."""
    labels = {"enter": ("Enter", enter), "escape": ("Esc", escape)}
    labelled: Bindings = {}
    # Enter comes first, as everywhere.
    for key in sorted(active, key=lambda key: key != "enter"):
        binding = replace(active[key].binding, show=key in labels)
        if key in labels:
            binding = replace(binding, key_display=labels[key][0], description=labels[key][1])
        labelled[key] = active[key]._replace(binding=binding)
    return labelled


def _is_of(one: ActiveBinding, actions: Sequence[str] | set[str]) -> bool:
    return one.binding.show and one.binding.action in actions


def _room(one: ActiveBinding) -> int:
    """Return the number of cells that a key takes: its name, its label, and a gap after each."""
    return cell_len(one.binding.key_display or one.binding.key) + cell_len(one.binding.description) + 2


def _width(active: Bindings) -> int:
    return sum(_room(one) for one in active.values() if one.binding.show)
