"""Some columns of one row, as they are now: where the replication stream leaves out what did not change."""

from collections.abc import Mapping, Sequence

import psycopg2

from bwtui.model.sql import quote_identifier, quote_literal, quote_qualified
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.messages import UNCHANGED, Column, Field, Relation
from bwtui.source.catalog import Attribute, attributes
from bwtui.source.connection import Connection, query, server_encoding
from bwtui.source.history import present_columns
from bwtui.source.key_columns import KeyColumn, key_of, text_of_equals
from bwtui.source.snapshot import copy_out

_NAME_SQL = """select n.nspname, c.relname, c.relkind = 'p' from pg_catalog.pg_class c
                 join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = %s"""

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
    has_operators = True
    for attempt in range(_TRIES):
        try:
            return _read(connection, relation, key, wanted, has_operators=has_operators)
        except (psycopg2.errors.UndefinedColumn, psycopg2.errors.UndefinedTable):
            if attempt == _TRIES - 1:
                raise
        except (psycopg2.errors.UndefinedFunction, psycopg2.IntegrityError):
            # A part of the type has no equality, or a domain within it a constraint that this row breaks.
            if not has_operators:
                raise
            has_operators = False
        except psycopg2.DataError:
            # ALTER TYPE, or a value of an enum that was renamed.
            return [UNCHANGED] * len(wanted)
    raise AssertionError


def _read(
    connection: Connection,
    relation: Relation,
    key: Mapping[str, bytes],
    wanted: Sequence[str],
    *,
    has_operators: bool,
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
    columns = {one.name: one for one in key_of(connection, relation.oid)} if has_operators else {}
    is_utf8 = server_encoding(connection) == "UTF8"
    conditions = [
        _equal(name, value, columns.get(name), is_utf8=is_utf8) for name, value in places.items() if name
    ]
    namespace, table, partitioned = tables[0]
    source = f"{'' if partitioned else 'only '}{quote_qualified(namespace, table)}"
    chosen = ", ".join(map(quote_identifier, selected))
    lines: list[bytes] = []
    copy_out(connection, f"select {chosen} from {source} where {' and '.join(conditions)}", lines.append)
    if not lines:
        return None
    fields = iter(unescape_copy_line(lines[0]))
    return [UNCHANGED if readable[column] is None else next(fields) for column in wanted]


def _reads_as(column: Column, now: Attribute) -> bool:
    """Say whether the text of a value as it is now is one of the column as it was; any text is a text's."""
    return column.type_oid in _TEXTS or (column.type_oid, column.typmod) == (now.type_oid, now.typmod)


def _equal(name: str, value: bytes, column: KeyColumn | None, *, is_utf8: bool) -> str:
    """Return the condition that a column has the value of a text; without ``column`` texts are compared."""
    try:
        literal = quote_literal(value.decode())
    except UnicodeDecodeError:
        if is_utf8:
            # No literal says what is no UTF-8. The session is in UTF8 too, so that nothing is converted.
            written = f"pg_catalog.format('%s', {quote_identifier(name)})"
            return f"pg_catalog.textsend({written}) = '\\x{value.hex()}'::bytea"
        literal = " E'" + "".join(f"\\x{byte:02x}" for byte in value) + "'"
    return text_of_equals(name, literal) if column is None else column.equals(literal)
