"""A table's key in SQL: its columns in index order, with their operators and literals."""

from collections.abc import Sequence
from dataclasses import dataclass

from bwtui.errors import RefusedError
from bwtui.model.sql import quote_identifier, quote_literal
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.messages import Relation
from bwtui.source.connection import Connection, query

# The key's columns, the operator that orders each, and the operator by which the index compares. Those of
# extensions are not found through the session's empty search_path. A domain is ordered like its base type.
# Types without a default operator class of their own (enums, arrays, ranges, varchar) use operators of
# pg_catalog. Strategy 5 of btree (403) is ">", strategy 3 "=". A key WITHOUT OVERLAPS has an index of a
# different kind, whose strategy 3 is "overlaps".
_KEY_SQL = """
with recursive base (attnum, name, oid, is_domain) as (
     select attnum, attname, atttypid, false from pg_catalog.pg_attribute
      where attrelid = %s and attnum > 0 and not attisdropped
  union all
     select base.attnum, base.name, t.typbasetype, true from base join pg_catalog.pg_type t using (oid)
      where t.typtype = 'd')
select b.name, pg_catalog.format_type(b.oid, -1), b.is_domain, o.nspname, o.greater, e.nspname, e.oprname
  from pg_catalog.pg_index i
  join pg_catalog.pg_class c on c.oid = i.indrelid
 cross join lateral unnest(i.indkey::int2[], i.indclass::oid[]) with ordinality as k (attnum, opclass, place)
  join base b on b.attnum = k.attnum
  join pg_catalog.pg_type t on t.oid = b.oid and t.typtype <> 'd'
  left join lateral (
       select n.nspname, o.oprname as greater
         from pg_catalog.pg_opclass used
         join pg_catalog.pg_amop m on m.amopfamily = used.opcfamily
              and m.amoplefttype = b.oid and m.amoprighttype = b.oid and m.amopstrategy = 5
         join pg_catalog.pg_operator o on o.oid = m.amopopr
         join pg_catalog.pg_namespace n on n.oid = o.oprnamespace
        where used.opcmethod = 403 and used.opcdefault and used.opcintype = b.oid) as o on true
  left join lateral (
       select n.nspname, o.oprname
         from pg_catalog.pg_opclass used
         join pg_catalog.pg_opclass c on c.opcmethod = 403
              and (c.oid = used.oid
                   or (used.opcmethod <> 403 and c.opcdefault and c.opcintype = used.opcintype))
         join pg_catalog.pg_amop m on m.amopfamily = c.opcfamily and m.amopstrategy = 3
              and m.amoplefttype = c.opcintype and m.amoprighttype = c.opcintype
         join pg_catalog.pg_operator o on o.oid = m.amopopr
         join pg_catalog.pg_namespace n on n.oid = o.oprnamespace
        where used.oid = k.opclass) as e on true
 where i.indrelid = %s and k.place <= i.indnkeyatts
   and case c.relreplident when 'i' then i.indisreplident else i.indisprimary end
 order by k.place
"""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One column of a key; the operators are None if its type has no default operator class of its own."""

    name: str
    type_name: str
    is_domain: bool
    namespace: str | None
    greater: str | None
    equal_namespace: str | None
    equal: str | None

    def operand(self) -> str:
        """Return the column as an operand: the polymorphic operators of a domain are those of its base
        type.
        """
        name = quote_identifier(self.name)
        return f"cast({name} as {self.type_name})" if self.is_domain else name

    def operator(self, symbol: str) -> str:
        """Return the type's operator for ``symbol``, ">" or "=", whatever the search_path."""
        namespace, found = (
            (self.namespace, self.greater) if symbol == ">" else (self.equal_namespace, self.equal)
        )
        if found is None or namespace is None:
            return f"operator(pg_catalog.{symbol})"
        return f"operator({quote_identifier(namespace)}.{found})"

    def equals(self, value: str) -> str:
        """Return the condition that the column equals a literal, by the operator of the key's index."""
        return f"{self.operand()} {self.operator('=')} cast({value} as {self.type_name})"

    def literal(self, text: str) -> str:
        """Return ``text`` as a literal of the column's type."""
        return f"cast({quote_literal(text)} as {self.type_name})"


def key_of(connection: Connection, oid: int) -> list[KeyColumn]:
    """Return the columns of the table's identity in index order. Raises psycopg2.Error."""
    return [KeyColumn(*row) for row in query(connection, _KEY_SQL, oid, oid)]


def text_of_equals(column: str, value: str) -> str:
    """Return the condition that a column's text equals that of a literal; it can't use an index."""
    return f"pg_catalog.format('%s', {quote_identifier(column)}) operator(pg_catalog.=) {value}"


def greater(key: Sequence[KeyColumn], after: Sequence[str]) -> str:
    """Return the condition that a row's key is after ``after``, the texts of its columns."""
    names = [column.operand() for column in key]
    values = [column.literal(text) for column, text in zip(key, after, strict=True)]
    if all(column.greater is None or column.namespace == "pg_catalog" for column in key):
        # PostgreSQL can use an index for a row comparison.
        return f"({', '.join(names)}) operator(pg_catalog.>) ({', '.join(values)})"
    behind = ""
    for column, name, value in reversed(list(zip(key, names, values, strict=True))):
        also = f" or ({name} {column.operator('=')} {value} and {behind})" if behind else ""
        behind = f"({name} {column.operator('>')} {value}{also})"
    return behind


def last_key(relation: Relation, key: Sequence[KeyColumn], lines: Sequence[bytes]) -> tuple[str, ...] | None:
    """Return the key in the last of COPY's ``lines``. Raises RefusedError if it is not valid text."""
    if not lines:
        return None
    fields = list(unescape_copy_line(lines[-1]))
    names = [column.name for column in relation.columns]
    texts = []
    for column in key:
        field = fields[names.index(column.name)]
        assert isinstance(field, bytes)
        try:
            texts.append(field.decode())
        except UnicodeDecodeError as error:
            raise RefusedError(
                f"a key of table {relation.qualified_name} is not valid text in the database's encoding",
                "fix the row, or exclude it with 'bwtui snapshot --where'",
            ) from error
    return tuple(texts)
