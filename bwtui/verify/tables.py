"""Tables as they are at a fence: what shape they have, and their rows as texts."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bwtui.audit.forms import Form, Row, form_of, of_text, of_value
from bwtui.audit.texts import no_text
from bwtui.errors import Indeterminate
from bwtui.model.sql import quote_identifier, quote_literal, quote_qualified
from bwtui.pgoutput.transcode import Decode
from bwtui.source.catalog import TableInfo, list_tables, load_types
from bwtui.source.connection import Connection, decoder_of, execute, query, server_encoding
from bwtui.source.snapshot import lock_tables

#: Rows that are read at a time, and keys that are asked for one by one rather than by reading all rows.
CHUNK = 5_000

_TYPES_SQL = """
select attname, atttypid from pg_catalog.pg_attribute
 where attrelid = %s and attnum > 0 and not attisdropped
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table and its topic; columns in the table's order."""

    namespace: str
    name: str
    topic: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    row_filter: str | None = None

    @property
    def full_name(self) -> str:
        """``schema.table``."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class Shape:
    """A table as it is at a fence: of the columns that are compared, those that are there."""

    table: Table
    forms: dict[str, Form]
    is_partitioned: bool
    #: Whether an UPDATE of a row without a key is published at all.
    is_identified: bool
    #: Whether the database is in UTF8, in which its keys can be asked for.
    is_utf8: bool = True
    #: What makes UTF-8 of the database's bytes, if they are to be anything else than what they are.
    decode: Decode | None = None

    @property
    def has_plain_keys(self) -> bool:
        """Whether a key's text is PostgreSQL's."""
        return self.is_utf8 and not any(self.forms[name] for name in self.table.key)

    def key_of(self, row: Row) -> str:
        """Return a decoded key as text: a list, or an object if its columns are not those of the table's key.

        Such a key's bytes are other ones whatever its values are, so it is another key.
        """
        if tuple(row.values) != self.table.key:
            return json.dumps({name: of_value(value, "") for name, value in row.values.items()})
        return json.dumps([of_value(value, self.forms[name]) for name, value in row.values.items()])

    def row_of(self, row: Row) -> dict[str, str | None]:
        """Return a decoded row as texts; columns that the table has no more are left out."""
        return {
            name: of_value(row.values.get(name), form)
            for name, form in self.forms.items()
            if name not in row.unsent
        }

    def texts(self, row: Sequence[str | None]) -> tuple[str, str, str | None]:
        """Return a row's key and all of its columns, and the key as PostgreSQL writes it, if otherwise."""
        own = dict(zip(self.forms, row, strict=True))
        by_column = {name: of_text(own[name], form) for name, form in self.forms.items()}
        key, own_key = (json.dumps([one[name] for name in self.table.key]) for one in (by_column, own))
        return key, json.dumps(by_column), None if key == own_key else own_key


def shapes(snapshot: Connection, tables: Sequence[Table]) -> list[Shape]:
    """Lock the tables for the snapshot's transaction, and return what they are.

    Raises Indeterminate when one has gone, and TablesChanged when the snapshot can't see what is in it: one
    that was truncated or rewritten since looks empty.
    """
    infos = {(one.namespace, one.name): one for one in list_tables(snapshot, partitions=True)}
    for table in tables:
        if (table.namespace, table.name) not in infos:
            raise _altered(table)
    lock_tables(snapshot, [infos[table.namespace, table.name] for table in tables])
    return [_shape(snapshot, table, infos[table.namespace, table.name]) for table in tables]


def _shape(snapshot: Connection, table: Table, info: TableInfo) -> Shape:
    oids = dict(query(snapshot, _TYPES_SQL, info.oid))
    if any(name not in oids for name in table.key):
        raise _altered(table)
    types = load_types(snapshot, sorted(set(oids.values())))
    forms = {name: form_of(oids[name], types) for name in table.columns if name in oids}
    identified, is_utf8 = info.replica_identity == "f", server_encoding(snapshot) == "UTF8"
    return Shape(table, forms, info.partitioned, identified, is_utf8, decoder_of(snapshot))


def _altered(table: Table) -> Indeterminate:
    return Indeterminate(f"{table.full_name} was altered while it was looked at", "verify again")


def rows(
    snapshot: Connection, shape: Shape, keys: Sequence[str] | None
) -> Iterator[list[tuple[str, str, str | None]]]:
    """Yield `Shape.texts` of all rows, or of those with plain ``keys``."""
    if keys is not None and not (keys := [key for key in keys if key.startswith("[")]):
        return
    sql = _select(shape, keys)
    # A cursor of the server's, for a table may be larger than memory; psycopg2's own ones need a
    # transaction that psycopg2 began.
    execute(snapshot, f"declare bwtui_verify no scroll cursor for {sql}")
    # Asked for another encoding, PostgreSQL would refuse what it can't convert.
    execute(snapshot, f"set client_encoding = '{server_encoding(snapshot)}'")
    while fetched := query(snapshot, f"fetch {CHUNK} from bwtui_verify"):
        yield [shape.texts([_text_of(cell, shape.decode) for cell in row]) for row in fetched]
    execute(snapshot, "set client_encoding = 'UTF8'")
    execute(snapshot, "close bwtui_verify")


def _select(shape: Shape, keys: Sequence[str] | None) -> str:
    table = shape.table
    # ONLY, as pgoutput does: rows of an inheriting table are rows of that table.
    only = "" if shape.is_partitioned else "only "
    # Bytes, for they need not be text.
    select = ", ".join(f"pg_catalog.textsend({_text(name)})" for name in shape.forms)
    sql = f"select {select} from {only}{quote_qualified(table.namespace, table.name)}"
    conditions = [f"({table.row_filter})"] if table.row_filter else []
    if keys is not None:
        key = ", ".join(map(_text, table.key))
        wanted = ", ".join(quote_literal(_compact(key)) for key in keys)
        conditions.append(f"pg_catalog.array_to_json(array[{key}])::text in ({wanted})")
    return sql + (" where " + " and ".join(conditions) if conditions else "")


def _text(column: str) -> str:
    # concat, unlike a cast, writes a value as the stream does: t for true, and char(5) with its blanks.
    name = quote_identifier(column)
    # IS NOT NULL would take a composite with a NULL in it for none.
    return f"case when {name} is distinct from null then pg_catalog.concat({name}) end"


def _text_of(cell: memoryview | None, decode: Decode | None) -> str | None:
    """Return a cell's text in UTF-8, or `no_text` of bytes that are none."""
    if cell is None:
        return None
    raw = bytes(cell)
    text = raw if decode is None else decode(raw)
    try:
        return no_text(raw) if text is None else text.decode()
    except UnicodeDecodeError:
        return no_text(raw)


def _compact(key: str) -> str:
    """Return a key as PostgreSQL's array_to_json writes it."""
    found: Any = json.loads(key)
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)
