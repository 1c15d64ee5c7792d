"""CREATE TABLE and ALTER TABLE from the relations of a recording: names, types and keys, nothing more."""

from collections.abc import Callable

from bwtui.pgoutput.messages import Column, Relation
from bwtui.recording.change import Change
from bwtui.source.connection import quote_identifier, quote_qualified
from bwtui.types.registry import codec_for


class TableWriter:
    """Keeps the tables as the changes need them; without ``create`` it only says where they changed."""

    def __init__(self, say: Callable[[str], None], *, create: bool) -> None:
        self._say = say
        self._create = create
        self._seen: dict[int, Relation] = {}

    def exists(self, qualified: str) -> bool:
        """Whether there is such a table, as far as it is this export that makes them."""
        return not self._create or any(one.qualified_name == qualified for one in self._seen.values())

    def prepare(self, change: Change) -> None:
        """Write what the table of ``change`` needs before it."""
        relation = change.relation
        before = self._seen.get(relation.oid)
        if before is relation:
            return
        self._seen[relation.oid] = relation
        if before is None:
            self._replace(relation)
            if self._create:
                self._say(_create(relation, change.key_columns))
        elif _shape(before) != _shape(relation):
            if self._create:
                self._say("".join(f"{statement}\n" for statement in _alter(before, relation)))
            else:
                self._say(
                    f"-- here the table {_one_line(relation.qualified_name)} changed its columns or name\n"
                )

    def _replace(self, relation: Relation) -> None:
        """Let go of the rows of a table that was dropped, whose name ``relation`` has now."""
        named = [one.oid for one in self._seen.values() if one.qualified_name == relation.qualified_name]
        for oid in named:
            if oid != relation.oid:
                del self._seen[oid]
                table = quote_qualified(relation.namespace, relation.name)
                self._say(
                    f"DROP TABLE {table};\n" if self._create else f"DELETE FROM {table}; -- made anew\n"
                )


def _shape(relation: Relation) -> object:
    return relation.namespace, relation.name, [(c.name, c.type_oid, c.typmod) for c in relation.columns]


def _create(relation: Relation, key: tuple[str, ...]) -> str:
    lines = [(f"{quote_identifier(column.name)} {kind}", note) for column, (kind, note) in _types(relation)]
    names = {column.name for column in relation.columns}
    if key and names.issuperset(key):
        lines.append((f"PRIMARY KEY ({', '.join(map(quote_identifier, key))})", ""))
    last = len(lines) - 1
    body = "".join(f"\n  {line}{',' * (place < last)}{note}" for place, (line, note) in enumerate(lines))
    table = quote_qualified(relation.namespace, relation.name)
    schema = f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(relation.namespace)};\n"
    return f"{schema}CREATE TABLE {table} ({body}\n);\n"


def _types(relation: Relation) -> list[tuple[Column, tuple[str, str]]]:
    return [(column, _type(column)) for column in relation.columns]


def _type(column: Column) -> tuple[str, str]:
    """Return the name of a column's type, and a comment; types that are not built in become text."""
    codec = codec_for(column.type_oid, column.typmod, {})
    if codec.as_text:
        return "text", f" -- type {column.type_oid} of the original database"
    return codec.pg_type, ""


def _alter(before: Relation, now: Relation) -> list[str]:
    statements = []
    if (before.namespace, before.name) != (now.namespace, now.name):
        statements += _move(before, now)
    table = f"ALTER TABLE {quote_qualified(now.namespace, now.name)}"
    old = {column.name: column for column in before.columns}
    renamed = _renamed(before, now)
    if renamed is not None:
        was, name = renamed
        statements.append(f"{table} RENAME COLUMN {quote_identifier(was)} TO {quote_identifier(name)};")
        old[name] = old.pop(was)
    new = {column.name: column for column in now.columns}
    statements += [f"{table} DROP COLUMN {quote_identifier(name)};" for name in old if name not in new]
    for name, column in new.items():
        quoted, (kind, note) = quote_identifier(name), _type(column)
        if name not in old:
            statements.append(f"{table} ADD COLUMN {quoted} {kind};{note}")
        elif _type(old[name]) != (kind, note):
            using = f"USING {quoted}::pg_catalog.text::{kind}"
            statements.append(f"{table} ALTER COLUMN {quoted} TYPE {kind} {using};{note}")
    return statements


def _move(before: Relation, now: Relation) -> list[str]:
    statements = []
    if before.namespace != now.namespace:
        statements.append(f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(now.namespace)};")
        old = quote_qualified(before.namespace, before.name)
        statements.append(f"ALTER TABLE {old} SET SCHEMA {quote_identifier(now.namespace)};")
    if before.name != now.name:
        old = quote_qualified(now.namespace, before.name)
        statements.append(f"ALTER TABLE {old} RENAME TO {quote_identifier(now.name)};")
    return statements


def _renamed(before: Relation, now: Relation) -> tuple[str, str] | None:
    """Return the old and new name of the one column that looks renamed: same place, same type."""
    if len(before.columns) != len(now.columns):
        return None
    pairs = zip(before.columns, now.columns, strict=True)
    differing = [(old, new) for old, new in pairs if old.name != new.name]
    if len(differing) != 1 or differing[0][0].type_oid != differing[0][1].type_oid:
        return None
    return differing[0][0].name, differing[0][1].name


def _one_line(text: str) -> str:
    return " ".join(text.split())
