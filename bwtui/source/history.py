"""What became of a table's columns since a RELATION was written: the catalog knows the present alone.

A relay that lags behind reads rows of a time when columns had other names. Columns are only ever added at
the end of a table and keep their places, and one that is dropped leaves its place behind. So names, types and
order tell together which is which. Where two readings are about as good, neither is taken: a value under
another column's name would be worse than none.
"""

from collections.abc import Sequence

from bwtui.pgoutput.messages import Column, Relation
from bwtui.source.catalog import Attribute

#: What speaks for a column standing in a place: its name, and its type. A reading with one point less than
#: the best counts as well: two columns that changed their names look like one that was made anew.
_NAME, _TYPE, _MARGIN = 2, 1, 1
_NEVER = -1_000_000


def present_columns(relation: Relation, now: Sequence[Attribute]) -> list[Attribute | None]:
    """Return what each column of ``relation`` is by now; None where it is gone, or can't be known."""
    live = [attribute for attribute in now if not attribute.dropped]
    if _same_by_name(relation, live):
        by_name = {attribute.name: attribute for attribute in live}
        return [by_name[column.name] for column in relation.columns]
    plain = [attribute for attribute in live if not attribute.generated]
    if len(live) == len(now) and len(plain) == len(relation.columns):
        # Nothing was ever dropped and nothing is new: they are the same columns, in the same order.
        return list(plain)
    return _aligned(relation.columns, now)


def present_names(relation: Relation, now: Sequence[Attribute]) -> list[str | None]:
    """Return what each column of ``relation`` is called by now; None where it is gone, or can't be known."""
    return [None if attribute is None else attribute.name for attribute in present_columns(relation, now)]


def _same_by_name(relation: Relation, live: Sequence[Attribute]) -> bool:
    """Say whether the names alone are proof: no other column stands between or before those of the relation.

    One that does was there already when the relation was written, under one of its names.
    """
    places = {attribute.name: place for place, attribute in enumerate(live)}
    wanted = [column.name for column in relation.columns]
    if not set(wanted) <= places.keys():
        return False
    end = max((places[name] for name in wanted), default=-1) + 1
    return [a.name for a in live[:end] if not a.generated or a.name in wanted] == wanted


def _aligned(columns: Sequence[Column], now: Sequence[Attribute]) -> list[Attribute | None]:
    """Return the live place of each column that every good reading agrees on.

    A reading gives each column a place, in order. Before the last of these no live place is left over, unless
    the relation need not have it: what was added later stands after them.
    """
    before = _scores(columns, now)
    if not columns or max(before[-1].values(), default=_NEVER) <= _NEVER // 2:
        return [None] * len(columns)
    best = max(before[-1].values())
    after = _rest(before, columns, now)
    aligned: list[Attribute | None] = []
    for index in range(len(columns)):
        good = [
            place for place, score in before[index].items() if score + after[index][place] >= best - _MARGIN
        ]
        only = now[good[0]] if len(good) == 1 else None
        aligned.append(None if only is None or only.dropped else only)
    return aligned


def _scores(columns: Sequence[Column], now: Sequence[Attribute]) -> list[dict[int, int]]:
    """Return, for each column, the score of the best reading up to it, by the place that it has there."""
    spare = sum(attribute.may_be_missing for attribute in now)
    rows: list[dict[int, int]] = []
    for index, column in enumerate(columns):
        row = {}
        for place in range(index, min(index + spare, len(now) - 1) + 1):
            if index == 0:
                start = 0 if all(attribute.may_be_missing for attribute in now[:place]) else _NEVER
            else:
                start = max((rows[-1].get(p, _NEVER) for p in _places_before(now, place)), default=_NEVER)
            row[place] = start + _likeness(column, now[place])
        rows.append(row)
    return rows


def _rest(
    before: Sequence[dict[int, int]], columns: Sequence[Column], now: Sequence[Attribute]
) -> list[dict[int, int]]:
    """Return, for each column, what the best reading scores after it, by the place that it has there."""
    rest: list[dict[int, int]] = [dict.fromkeys(before[-1], 0)]
    for index in range(len(columns) - 2, -1, -1):
        row = dict.fromkeys(before[index], _NEVER)
        for place, score in rest[0].items():
            whole = score + _likeness(columns[index + 1], now[place])
            for earlier in _places_before(now, place):
                if earlier in row:
                    row[earlier] = max(row[earlier], whole)
        rest.insert(0, row)
    return rest


def _places_before(now: Sequence[Attribute], place: int) -> Sequence[int]:
    """Return where the column before the one at ``place`` may stand: nothing between must have a column."""
    first = place - 1
    while first > 0 and now[first].may_be_missing:
        first -= 1
    return range(max(first, 0), place)


def _likeness(column: Column, attribute: Attribute) -> int:
    if attribute.dropped:
        return 0
    return _NAME * (attribute.name == column.name) + _TYPE * (attribute.type_oid == column.type_oid)


def primary_key_then(relation: Relation, now: Sequence[Attribute]) -> tuple[str, ...] | None:
    """Return the present primary key in the names of ``relation``; None where a column of it is not there.

    Empty when the table has no primary key.
    """
    return _names_then(relation, now, {attribute.name for attribute in now if attribute.in_primary_key})


def identity_then(relation: Relation, now: Sequence[Attribute]) -> tuple[str, ...] | None:
    """Return the present replica identity in the names of ``relation``, as `primary_key_then`."""
    return _names_then(relation, now, {attribute.name for attribute in now if attribute.in_identity})


def _names_then(relation: Relation, now: Sequence[Attribute], key: set[str]) -> tuple[str, ...] | None:
    then = {name: c.name for name, c in zip(present_names(relation, now), relation.columns, strict=True)}
    if not key <= then.keys():
        return None
    return tuple(column for name, column in then.items() if name in key)


def identity_not_in(relation: Relation, now: Sequence[Attribute]) -> list[tuple[Attribute, bool]]:
    """Return the identity's columns that ``relation`` lacks, each with whether its table had it already.

    It had where a column that the relation has stands after it. Of others, and where a column of the relation
    can't be recognised, nothing is known: they may have been added, to the table and to its key, since.
    """
    present = present_columns(relation, now)
    names = {attribute.name for attribute in present if attribute is not None}
    last = max((place for place, attribute in enumerate(now) if attribute.name in names), default=-1)
    return [
        (attribute, place < last and None not in present)
        for place, attribute in enumerate(now)
        if attribute.in_identity and attribute.name not in names
    ]
