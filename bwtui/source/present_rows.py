"""Read the present values of columns that the replication stream omits because they did not change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg2
import psycopg2.extensions

from bwtui.model.sql import quote_identifier, quote_literal, quote_qualified
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.messages import UNCHANGED, Column, Field, Relation
from bwtui.source.catalog import Attribute, attributes
from bwtui.source.column_history import present_columns
from bwtui.source.connection import Connection, query, server_encoding
from bwtui.source.key_columns import KeyColumn, key_of, text_of_equals
from bwtui.source.snapshot import copy_out

_NAME_SQL = """select n.nspname, c.relname, c.relkind = 'p' from pg_catalog.pg_class c
                 join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = %s"""

#: text, character varying, bpchar.
_TEXTS = frozenset((25, 1043, 1042))
#: Maximum attempts: the table may be altered between the catalog query and the query for its rows.
_TRIES = 5


class _ReplyTooLarge(Exception):
    """The rows received so far have reached the maximum size."""


@dataclass(frozen=True, slots=True)
class _PresentTable:
    """A table as it is now, by the columns of an earlier relation."""

    source: str
    #: Each earlier column and its present name, or None if it was dropped.
    names: Mapping[str, str | None]
    #: The same, and None also if its values are no longer readable as the earlier type.
    readable: Mapping[str, str | None]
    attributes: list[Attribute]


class PresentRows:
    """Reads many rows of a table with one statement."""

    def __init__(self) -> None:
        #: The key of each table by its oid, with the columns that the table had then: the query for the key
        #: takes as long as one for a thousand rows.
        self._keys: dict[int, tuple[list[Attribute], list[KeyColumn]]] = {}

    def read(
        self,
        connection: Connection,
        relation: Relation,
        keys: Sequence[Mapping[str, bytes]],
        wanted: Sequence[str],
        most_bytes: int,
    ) -> dict[int, Sequence[Field] | None]:
        """Return the result of `present_fields` for each of ``keys``, by its index.

        Keys are missing, possibly including the first, if the rows exceed ``most_bytes`` together; the
        session may then be closed. If one statement can't read them all, only the first is returned. Raises
        psycopg2.Error.
        """
        if len(keys) > 1:
            try:
                found = self._read_many(connection, relation, keys, wanted, most_bytes)
                if found or connection.closed:
                    return found
            except (psycopg2.DataError, psycopg2.IntegrityError, psycopg2.ProgrammingError):
                # `present_fields` handles these errors.
                self._keys.pop(relation.oid, None)
        return {0: present_fields(connection, relation, keys[0], wanted)}

    def _read_many(
        self,
        connection: Connection,
        relation: Relation,
        keys: Sequence[Mapping[str, bytes]],
        wanted: Sequence[str],
        most_bytes: int,
    ) -> dict[int, Sequence[Field] | None]:
        """Return the rows; an empty dict if one statement can't read them."""
        table = _table(connection, relation)
        if table is None:
            return dict.fromkeys(range(len(keys)))
        readable = [table.readable[column] for column in wanted]
        selected = [name for name in readable if name is not None]
        by_name = {one.name: one for one in self._key(connection, relation.oid, table.attributes)}
        columns = {column: one for column in keys[0] if (one := by_name.get(table.names[column] or ""))}
        if len(columns) < len(keys[0]) or not selected:
            return {}
        is_utf8 = server_encoding(connection) == "UTF8"
        listed, texts = _listed(keys, columns)
        literals = [_literal(text, is_utf8=is_utf8) for text in texts]
        if None in literals:
            return {}
        conditions = " and ".join(
            f'{one.operand()} {one.operator("=")} k."bwtui.{number}"'
            for number, one in enumerate(columns.values())
        )
        # With the offset PostgreSQL looks each key up in the index; without it, it may read the whole table.
        by_index = " offset 0" if len(columns) == len(by_name) else ""
        chosen = ", ".join(map(quote_identifier, selected))
        rows = f"lateral (select {chosen} from {table.source} where {conditions}{by_index}) as t"
        source = f"{listed} cross join {rows.replace('%', '%%')}"
        found: dict[int, Sequence[Field] | None] = dict.fromkeys(range(len(keys)))
        if is_utf8 and {one.type_oid for one in table.attributes if one.name in selected} <= _TEXTS:
            for number, fits, *fields in _texts(connection, source, selected, texts, most_bytes):
                if fits:
                    found[number] = _with_gaps(readable, fields)
                else:
                    del found[number]
            return found
        sql = f'select k."bwtui.n", t.* from {source}' % tuple(literals)
        lines, is_whole = _some(connection, sql, most_bytes)
        if not is_whole:
            found.clear()
        for line in lines:
            place, *fields = unescape_copy_line(line)
            assert isinstance(place, bytes)
            found[int(place)] = _with_gaps(readable, fields)
        return found

    def _key(self, connection: Connection, oid: int, columns: list[Attribute]) -> list[KeyColumn]:
        """Return the table's key, cached as long as the table has the same columns and key columns."""
        before, key = self._keys.get(oid, (None, []))
        if before != columns:
            key = key_of(connection, oid)
            self._keys[oid] = columns, key
        return key


def _listed(keys: Sequence[Mapping[str, bytes]], columns: Mapping[str, KeyColumn]) -> tuple[str, list[bytes]]:
    """Return the keys with their numbers as a relation ``k``, and the texts of its parameters."""
    types = [one.type_name.replace("%", "%%") for one in columns.values()]
    names = ", ".join(f'"bwtui.{number}"' for number in range(len(types)))
    # As in `_equal`, from a literal directly to the type, never by way of text.
    if not any(name.endswith("[]") for name in types):
        arrays = ", ".join(f"pg_catalog.unnest(cast(%s as {name}[]))" for name in types)
        listed = f"select pg_catalog.generate_series(0, {len(keys) - 1}), {arrays}"
        texts = [_array([key[column] for key in keys]) for column in columns]
    else:
        # An array of arrays would be unnested to their elements. In VALUES the literals of the other rows
        # take the types of the first (PostgreSQL documentation, "UNION, CASE, and Related Constructs"), which
        # is faster than resolving a type's name again, but slower than an array.
        first, others = ", ".join(f"cast(%s as {name})" for name in types), ", ".join(["%s"] * len(types))
        rows = [f"({number}, {others if number else first})" for number in range(len(keys))]
        listed = f"values {', '.join(rows)}"
        texts = [key[column] for key in keys for column in columns]
    return f'({listed}) as k ("bwtui.n", {names})', texts


def _array(texts: Sequence[bytes]) -> bytes:
    """Return PostgreSQL's text of an array with these elements."""
    if any(b"\\" in text or b'"' in text for text in texts):
        texts = [text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') for text in texts]
    return b'{"' + b'","'.join(texts) + b'"}'


def _texts(
    connection: Connection, source: str, names: Sequence[str], keys: Sequence[bytes], most_bytes: int
) -> list[tuple[Any, ...]]:
    """Return the number of each row, whether it fits within ``most_bytes``, and its texts if so.

    COPY examines each byte for what it has to escape, which takes the server as long as finding the row. The
    size of a text is found without reading it, so rows that do not fit are not read.
    """
    texts = [f"t.{quote_identifier(name)}".replace("%", "%%") for name in names]
    size = " + ".join(f"coalesce(pg_catalog.octet_length({text}), 0)" for text in texts)
    aliases = [f'"bwtui.{number}"' for number in range(len(names))]
    fitting = ", ".join(f"case when fits then {alias} end" for alias in aliases)
    sql = (
        f"select number, fits, {fitting} from ("
        f'select k."bwtui.n", pg_catalog.sum({size}) over (rows unbounded preceding) <= {most_bytes},'
        f" {', '.join(texts)} from {source}) as u (number, fits, {', '.join(aliases)})"
    )
    with connection.cursor() as cursor:
        psycopg2.extensions.register_type(psycopg2.extensions.BYTES, cursor)
        cursor.execute(sql, [key.decode() for key in keys])
        return cursor.fetchall()


def _with_gaps(readable: Sequence[str | None], found: Sequence[Field]) -> Sequence[Field]:
    """Return the values of the columns, UNCHANGED for those that can't be read."""
    if None not in readable:
        return found
    fields = iter(found)
    return [UNCHANGED if name is None else next(fields) for name in readable]


def present_fields(
    connection: Connection, relation: Relation, key: Mapping[str, bytes], wanted: Sequence[str]
) -> Sequence[Field] | None:
    """Return the ``wanted`` columns of the row with this key, or None if there is no such row.

    ``relation`` and ``key`` may be from before the table was altered. A column that was dropped, or can't be
    matched any more, is returned as UNCHANGED, and so is every column if the key is not valid for its present
    type. Raises psycopg2.Error.
    """
    has_operators = True
    for attempt in range(_TRIES):
        try:
            return _read(connection, relation, key, wanted, has_operators=has_operators)
        except (psycopg2.errors.UndefinedColumn, psycopg2.errors.UndefinedTable):
            if attempt == _TRIES - 1:
                raise
        except (psycopg2.errors.UndefinedFunction, psycopg2.IntegrityError):
            # Part of the type has no equality operator, or a domain within it has a constraint that this row
            # violates.
            if not has_operators:
                raise
            has_operators = False
        except psycopg2.DataError:
            # ALTER TYPE, or an enum value that was renamed.
            return [UNCHANGED] * len(wanted)
    raise AssertionError


def _read(
    connection: Connection,
    relation: Relation,
    key: Mapping[str, bytes],
    wanted: Sequence[str],
    *,
    has_operators: bool,
) -> Sequence[Field] | None:
    table = _table(connection, relation)
    if table is None:
        return None
    places = {table.names[column]: value for column, value in key.items()}
    selected = [name for column in wanted if (name := table.readable[column]) is not None]
    if None in places or not selected:
        return [UNCHANGED] * len(wanted)
    columns = {one.name: one for one in key_of(connection, relation.oid)} if has_operators else {}
    is_utf8 = server_encoding(connection) == "UTF8"
    conditions = [
        _equal(name, value, columns.get(name), is_utf8=is_utf8) for name, value in places.items() if name
    ]
    chosen = ", ".join(map(quote_identifier, selected))
    lines: list[bytes] = []
    sql = f"select {chosen} from {table.source} where {' and '.join(conditions)}"
    copy_out(connection, sql, lines.append)
    if not lines:
        return None
    return _with_gaps([table.readable[column] for column in wanted], unescape_copy_line(lines[0]))


def _some(connection: Connection, sql: str, most_bytes: int) -> tuple[list[bytes], bool]:
    """Return the rows received before they reach ``most_bytes``, and whether these are all.

    The session is closed if they are not.
    """
    lines: list[bytes] = []
    left = most_bytes

    def add(line: bytes) -> None:
        nonlocal left
        lines.append(line)
        left -= len(line)
        if left <= 0:
            raise _ReplyTooLarge

    try:
        copy_out(connection, sql, add)
    except _ReplyTooLarge:
        connection.close()
        return lines, False
    return lines, True


def _table(connection: Connection, relation: Relation) -> _PresentTable | None:
    """Return the table of ``relation`` as it is now, or None if it does not exist any more."""
    tables = query(connection, _NAME_SQL, relation.oid)
    if not tables:
        return None
    now = attributes(connection, relation.oid)
    pairs = list(zip(relation.columns, present_columns(relation, now), strict=True))
    namespace, name, partitioned = tables[0]
    return _PresentTable(
        f"{'' if partitioned else 'only '}{quote_qualified(namespace, name)}",
        {column.name: None if one is None else one.name for column, one in pairs},
        {column.name: one.name if one and _reads_as(column, one) else None for column, one in pairs},
        now,
    )


def _reads_as(column: Column, now: Attribute) -> bool:
    """Return whether a present value's text is valid for the earlier column; text types accept any."""
    return column.type_oid in _TEXTS or (column.type_oid, column.typmod) == (now.type_oid, now.typmod)


def _equal(name: str, value: bytes, column: KeyColumn | None, *, is_utf8: bool) -> str:
    """Return the condition that a column has the value of a text; without ``column`` the texts are
    compared.
    """
    literal = _literal(value, is_utf8=is_utf8)
    if literal is None:
        written = f"pg_catalog.format('%s', {quote_identifier(name)})"
        return f"pg_catalog.textsend({written}) = '\\x{value.hex()}'::bytea"
    return text_of_equals(name, literal) if column is None else column.equals(literal)


def _literal(value: bytes, *, is_utf8: bool) -> str | None:
    """Return ``value`` as an SQL literal; None for bytes that are not UTF-8, in a database in UTF8.

    The session is in UTF8 too, so that nothing is converted.
    """
    try:
        return quote_literal(value.decode())
    except UnicodeDecodeError:
        return None if is_utf8 else " E'" + "".join(f"\\x{byte:02x}" for byte in value) + "'"
