"""Some columns of one row, as they are now: where the replication stream leaves out what did not change."""

from collections.abc import Mapping, Sequence

import psycopg2

from bwtui.model.sql import quote_identifier, quote_literal, quote_qualified
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.messages import UNCHANGED, Column, Field, Relation
from bwtui.source.catalog import Attribute, attributes
from bwtui.source.connection import Connection, query, server_encoding
from bwtui.source.history import present_columns
from bwtui.source.snapshot import copy_out

_NAME_SQL = """select n.nspname, c.relname, c.relkind = 'p' from pg_catalog.pg_class c
                 join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = %s"""

# The operator by which the key's index compares, for the session's empty search_path hides those of
# extensions, and the type to which a value is cast: not a domain, whose constraints may have changed. The
# third strategy of btree (403) is equality. A key WITHOUT OVERLAPS has an index of another kind, whose third
# is "overlaps".
_OPERATORS_SQL = """
with recursive base (attnum, name, oid) as (
     select attnum, attname, atttypid from pg_catalog.pg_attribute
      where attrelid = %s and attnum > 0 and not attisdropped
  union all
     select base.attnum, base.name, t.typbasetype from base join pg_catalog.pg_type t using (oid)
      where t.typtype = 'd')
select b.name, n.nspname, o.oprname, pg_catalog.format_type(b.oid, -1)
  from pg_catalog.pg_index i
 cross join lateral unnest(i.indkey::int2[], i.indclass::oid[]) as k (attnum, opclass)
  join base b on b.attnum = k.attnum
  join pg_catalog.pg_type t on t.oid = b.oid and t.typtype <> 'd'
  join pg_catalog.pg_opclass used on used.oid = k.opclass
  join pg_catalog.pg_opclass c on c.opcmethod = 403
       and (c.oid = used.oid
            or (used.opcmethod <> 403 and c.opcdefault and c.opcintype = used.opcintype))
  join pg_catalog.pg_amop m on m.amopfamily = c.opcfamily and m.amopstrategy = 3
       and m.amoplefttype = c.opcintype and m.amoprighttype = c.opcintype
  join pg_catalog.pg_operator o on o.oid = m.amopopr
  join pg_catalog.pg_namespace n on n.oid = o.oprnamespace
 where i.indrelid = %s and (i.indisprimary or i.indisreplident)
"""
#: text, character varying, bpchar.
_TEXTS = frozenset((25, 1043, 1042))
#: The table may be altered between the look at the catalog and the query.
_TRIES = 5


def present_fields(
    connection: Connection, relation: Relation, key: Mapping[str, bytes], wanted: Sequence[str]
) -> list[Field] | None:
    """Return the ``wanted`` columns of the row with this key, or None when there is no such row.

    ``relation`` and ``key`` may be from before the table was altered. A column that is gone, or can't be
    recognised any more, comes back as UNCHANGED; so does every column when the key can't be read any more by
    the type that it has now. Raises psycopg2.Error.
    """
    for attempt in range(_TRIES):
        try:
            return _read(connection, relation, key, wanted)
        except (psycopg2.errors.UndefinedColumn, psycopg2.errors.UndefinedTable):
            if attempt == _TRIES - 1:
                raise
        except psycopg2.DataError:
            # ALTER TYPE, or a value of an enum that was renamed.
            return [UNCHANGED] * len(wanted)
    raise AssertionError


def _read(
    connection: Connection, relation: Relation, key: Mapping[str, bytes], wanted: Sequence[str]
) -> list[Field] | None:
    tables = query(connection, _NAME_SQL, relation.oid)
    if not tables:
        return None
    present = present_columns(relation, attributes(connection, relation.oid))
    pairs = list(zip(relation.columns, present, strict=True))
    names = {column.name: None if now is None else now.name for column, now in pairs}
    readable = {column.name: now.name if now and _reads_as(column, now) else None for column, now in pairs}
    places = {names[column]: value for column, value in key.items()}
    selected = [name for column in wanted if (name := readable[column]) is not None]
    if None in places or not selected:
        return [UNCHANGED] * len(wanted)
    rows = query(connection, _OPERATORS_SQL, relation.oid, relation.oid)
    operators = {name: tuple(operator) for name, *operator in rows}
    is_utf8 = server_encoding(connection) == "UTF8"
    conditions = [
        _equal(name, value, operators.get(name), is_utf8=is_utf8) for name, value in places.items() if name
    ]
    namespace, table, partitioned = tables[0]
    source = f"{'' if partitioned else 'only '}{quote_qualified(namespace, table)}"
    columns = ", ".join(map(quote_identifier, selected))
    lines: list[bytes] = []
    copy_out(connection, f"select {columns} from {source} where {' and '.join(conditions)}", lines.append)
    if not lines:
        return None
    fields = iter(unescape_copy_line(lines[0]))
    return [UNCHANGED if readable[column] is None else next(fields) for column in wanted]


def _reads_as(column: Column, now: Attribute) -> bool:
    """Say whether the text of a value as it is now is one of the column as it was; any text is a text's."""
    return column.type_oid in _TEXTS or (column.type_oid, column.typmod) == (now.type_oid, now.typmod)


def _equal(column: str, value: bytes, operator: tuple[str, ...] | None, *, is_utf8: bool) -> str:
    name = quote_identifier(column)
    try:
        literal = quote_literal(value.decode())
    except UnicodeDecodeError:
        if is_utf8:
            # No literal says what is no UTF-8. The session is in UTF8 too, so that nothing is converted.
            return f"pg_catalog.textsend(pg_catalog.format('%s', {name})) = '\\x{value.hex()}'::bytea"
        literal = " E'" + "".join(f"\\x{byte:02x}" for byte in value) + "'"
    if operator is None:
        # No index helps any more, and the type's operators are unknown: compare what it writes.
        return f"pg_catalog.format('%s', {name}) operator(pg_catalog.=) {literal}"
    namespace, symbol, type_name = operator
    return f"{name} operator({quote_identifier(namespace)}.{symbol}) cast({literal} as {type_name})"
