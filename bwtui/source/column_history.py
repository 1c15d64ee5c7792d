"""Match the columns of an earlier RELATION message with a table's present columns.

The catalog only knows the present, and a relay that lags reads rows from a time when columns had different
names. Columns are only ever added at the end of a table and keep their places, and a dropped column leaves
its place behind. So names, types and order together identify them. If two readings are about equally good,
neither is used: a value under another column's name would be worse than none.
"""

from collections.abc import Sequence

from bwtui.pgoutput.messages import Column, Relation
from bwtui.source.catalog import Attribute

#: Points for a column in a place: for an equal name, and for an equal type. Readings within one point of the
#: best count as well, since two columns that swapped their names look like one dropped and one added.
_NAME, _TYPE, _MARGIN = 2, 1, 1
_NEVER = -1_000_000


def present_columns(relation: Relation, now: Sequence[Attribute]) -> list[Attribute | None]:
    """Return the present column for each column of ``relation``; None if dropped or undetermined."""
    live = [attribute for attribute in now if not attribute.dropped]
    if _same_by_name(relation, live):
        by_name = {attribute.name: attribute for attribute in live}
        return [by_name[column.name] for column in relation.columns]
    plain = [attribute for attribute in live if not attribute.generated]
    if len(live) == len(now) and len(plain) == len(relation.columns):
        # No column was ever dropped or added: they are the same columns in the same order.
        return list(plain)
    return _aligned(relation.columns, now)


def present_names(relation: Relation, now: Sequence[Attribute]) -> list[str | None]:
    """Return the present name of each column of ``relation``; None if dropped or undetermined."""
    return [None if attribute is None else attribute.name for attribute in present_columns(relation, now)]


def _same_by_name(relation: Relation, live: Sequence[Attribute]) -> bool:
    """Return whether names alone are conclusive: no other column is before or between the relation's.

    Such a column already existed when the relation was written, then under one of the relation's names.
    """
    places = {attribute.name: place for place, attribute in enumerate(live)}
    wanted = [column.name for column in relation.columns]
    if not set(wanted) <= places.keys():
        return False
    end = max((places[name] for name in wanted), default=-1) + 1
    return [a.name for a in live[:end] if not a.generated or a.name in wanted] == wanted


def _aligned(columns: Sequence[Column], now: Sequence[Attribute]) -> list[Attribute | None]:
    """Return the present column for each column on which all good readings agree.

    A reading assigns each column a place, in order. Before the last of these places, no live column may be
    skipped unless the relation may lack it: columns that were added later are after them.
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
    """Return, for each column, the score of the best reading up to it, by the column's place in that
    reading.
    """
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
    """Return, for each column, the score of the best reading after it, by the column's place in that
    reading.
    """
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
    """Return the possible places of the previous column: all places between may lack a column."""
    first = place - 1
    while first > 0 and now[first].may_be_missing:
        first -= 1
    return range(max(first, 0), place)


def _likeness(column: Column, attribute: Attribute) -> int:
    if attribute.dropped:
        return 0
    return _NAME * (attribute.name == column.name) + _TYPE * (attribute.type_oid == column.type_oid)


def former_primary_key(relation: Relation, now: Sequence[Attribute]) -> tuple[str, ...] | None:
    """Return the present primary key in the names of ``relation``; None if one of its columns is not there.

    The result is empty if the table has no primary key.
    """
    return _former_names(relation, now, {attribute.name for attribute in now if attribute.in_primary_key})


def former_identity(relation: Relation, now: Sequence[Attribute]) -> tuple[str, ...] | None:
    """Return the present replica identity in the names of ``relation``, like `former_primary_key`."""
    return _former_names(relation, now, {attribute.name for attribute in now if attribute.in_identity})


def _former_names(relation: Relation, now: Sequence[Attribute], key: set[str]) -> tuple[str, ...] | None:
    then = {name: c.name for name, c in zip(present_names(relation, now), relation.columns, strict=True)}
    if not key <= then.keys():
        return None
    return tuple(column for name, column in then.items() if name in key)


def missing_identity_columns(relation: Relation, now: Sequence[Attribute]) -> list[tuple[Attribute, bool]]:
    """Return the identity's columns that ``relation`` lacks, each with whether its table already had it then.

    It did if a column that the relation has comes after it. For other columns, and if any column of the
    relation can't be matched, this is unknown: they may have been added to the table and its key since.
    """
    present = present_columns(relation, now)
    names = {attribute.name for attribute in present if attribute is not None}
    last = max((place for place, attribute in enumerate(now) if attribute.name in names), default=-1)
    return [
        (attribute, place < last and None not in present)
        for place, attribute in enumerate(now)
        if attribute.in_identity and attribute.name not in names
    ]
