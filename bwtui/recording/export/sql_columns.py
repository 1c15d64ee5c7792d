"""Derive how a table's columns changed: which were kept, renamed, dropped or added.

PostgreSQL sends names and types in column order, without the attribute numbers that would identify a column.
But a column keeps its position relative to the others whatever its name and type become, and a new one
comes last. So this module finds the cheapest edit from the old columns to the new ones, as a text diff does.
"""

from dataclasses import dataclass, field

from bwtui.pgoutput.messages import Column

# A kept name outweighs a kept position: if two columns of one type exchange names, one counts as dropped and
# added. A column in the middle is new only if the publication's column list left it out before.
_DROPPED, _ADDED, _INSERTED, _RENAMED, _RETYPED, _RESIZED, _NEVER = 1.0, 1.0, 1.5, 1.1, 1.0, 0.5, 1e9


@dataclass(slots=True)
class ColumnChanges:
    """The changes of a table's columns."""

    #: Old and new definition of each column that was kept.
    kept: list[tuple[Column, Column]] = field(default_factory=list)
    dropped: list[Column] = field(default_factory=list)
    added: list[Column] = field(default_factory=list)

    @property
    def renamed(self) -> list[tuple[Column, Column]]:
        """Kept columns with a new name."""
        return [(old, new) for old, new in self.kept if old.name != new.name]

    @property
    def again(self) -> set[str]:
        """Names that were both dropped and added."""
        return {column.name for column in self.dropped} & {column.name for column in self.added}


def became(old: tuple[Column, ...], new: tuple[Column, ...]) -> ColumnChanges:
    """Return the most likely change from the columns ``old`` to the columns ``new``."""
    same = 0
    while same < min(len(old), len(new)) and not _cost(old[same], new[same]):
        same += 1
    changes = ColumnChanges([(old[at], new[at]) for at in range(same)])
    _align(old[same:], new[same:], changes)
    return changes


def _align(old: tuple[Column, ...], new: tuple[Column, ...], changes: ColumnChanges) -> None:
    costs = _costs(old, new)
    # Adding a column at the end costs less than adding it elsewhere.
    last = min(range(len(new) + 1), key=lambda at: (costs[-1][at] + (len(new) - at) * _ADDED, -at))
    kept: list[tuple[Column, Column]] = []
    dropped, inserted = [], []
    i, j = len(old), last
    while i or j:
        here = costs[i][j]
        if i and j and here == costs[i - 1][j - 1] + _cost(old[i - 1], new[j - 1]):
            i, j = i - 1, j - 1
            kept.append((old[i], new[j]))
        elif i and here == costs[i - 1][j] + _DROPPED:
            i -= 1
            dropped.append(old[i])
        else:
            j -= 1
            inserted.append(new[j])
    changes.kept += reversed(kept)
    changes.dropped += reversed(dropped)
    changes.added += [*reversed(inserted), *new[last:]]


def _costs(old: tuple[Column, ...], new: tuple[Column, ...]) -> list[list[float]]:
    """Return the cost from each prefix of ``old`` to each prefix of ``new``."""
    rows = [[at * _INSERTED for at in range(len(new) + 1)]]
    for i, one in enumerate(old, 1):
        above, row = rows[-1], [i * _DROPPED]
        for j, new_column in enumerate(new, 1):
            row.append(min(above[j - 1] + _cost(one, new_column), above[j] + _DROPPED, row[-1] + _INSERTED))
        rows.append(row)
    return rows


def _cost(old: Column, new: Column) -> float:
    if old.type_oid != new.type_oid:
        return _RETYPED if old.name == new.name else _NEVER
    cost = 0.0 if old.typmod == new.typmod else _RESIZED
    return cost if old.name == new.name else cost + _RENAMED
