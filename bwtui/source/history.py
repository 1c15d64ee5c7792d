"""What became of a table's columns since a RELATION was written: the catalog knows the present alone.

A relay that lags behind reads rows of a time when columns had other names. Columns are only ever added at
the end of a table and keep their numbers, so that their order tells which is which, as far as nothing was
dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bwtui.pgoutput.messages import Relation
from bwtui.source.connection import Connection, query

_ATTRIBUTES_SQL = """
select a.attname, a.atttypid, a.attisdropped, a.attgenerated <> '',
       exists (select from pg_catalog.pg_index i
                where i.indrelid = a.attrelid and a.attnum = any(i.indkey[0:i.indnkeyatts - 1])
                  and i.indisprimary and i.indimmediate)
  from pg_catalog.pg_attribute a where a.attrelid = %s and a.attnum > 0 order by a.attnum
"""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column as it is now, or the place of one that was dropped."""

    name: str
    type_oid: int
    dropped: bool
    generated: bool
    in_primary_key: bool


def attributes(connection: Connection, oid: int) -> list[Attribute]:
    """Return the table's columns in order, those included that were dropped; none when the table is gone."""
    return [Attribute(*row) for row in query(connection, _ATTRIBUTES_SQL, oid)]


def present_names(relation: Relation, now: Sequence[Attribute]) -> list[str | None]:
    """Return what each column of ``relation`` is called by now; None where it is gone, or can't be known."""
    live = [attribute for attribute in now if not attribute.dropped]
    if _same_by_name(relation, live):
        return [column.name for column in relation.columns]
    plain = [attribute for attribute in live if not attribute.generated]
    if len(live) == len(now) and len(plain) == len(relation.columns):
        # Nothing was ever dropped and nothing is new: they are the same columns, in the same order.
        return [attribute.name for attribute in plain]
    types = {attribute.name: attribute.type_oid for attribute in live}
    return [column.name if types.get(column.name) == column.type_oid else None for column in relation.columns]


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


def primary_key_then(relation: Relation, now: Sequence[Attribute]) -> tuple[str, ...] | None:
    """Return the present primary key in the names of ``relation``; None where a column of it is not there.

    Empty when the table has no primary key.
    """
    key = {attribute.name for attribute in now if attribute.in_primary_key}
    then = {name: c.name for name, c in zip(present_names(relation, now), relation.columns, strict=True)}
    if not key <= then.keys():
        return None
    return tuple(column for name, column in then.items() if name in key)
