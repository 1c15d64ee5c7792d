"""CREATE TABLE and ALTER TABLE from a recording's relations: names, types and keys only.

When a table changes, the recording lacks some new values of its older rows. A comment in the output says
which, and `TableWriter` keeps the columns concerned.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Literal

from bwtui.model.sql import quote_identifier, quote_literal, quote_qualified
from bwtui.pgoutput.messages import Column, Relation
from bwtui.recording.change import Change
from bwtui.recording.export.sql_columns import ColumnChanges, became
from bwtui.types.registry import codec_for

Doubt = Literal["added", "again", "retyped"]


class TableWriter:
    """Keeps the tables' definitions up to date; without ``create`` it only comments on changes."""

    def __init__(self, write: Callable[[str], None], *, create: bool) -> None:
        self._say = write
        self._create = create
        self._seen: dict[int, Relation] = {}
        #: The tables that may hold rows.
        self._filled: set[int] = set()
        #: The primary key of each created table.
        self._keys: dict[int, tuple[str, ...]] = {}
        #: Columns of each table whose values in older rows may differ from the original.
        self._doubtful: dict[int, set[str]] = {}
        #: Tables whose name another table took, and that had no change since.
        self._aside: dict[int, str] = {}
        self.gone: list[str] = []
        #: The doubtful columns, as ``schema.table.column``.
        self.doubts: dict[Doubt, list[str]] = {"added": [], "again": [], "retyped": []}

    @property
    def filled(self) -> list[Relation]:
        """The tables that may hold rows, under their present names."""
        return [relation for oid, relation in self._seen.items() if oid in self._filled]

    def doubtful(self, relation: Relation) -> set[str]:
        """Return the columns whose values in older rows are uncertain."""
        return self._doubtful.get(relation.oid, set())

    def empty(self, tables: Iterable[Relation]) -> None:
        """Note that the tables have no rows any more."""
        for table in tables:
            self._filled.discard(table.oid)
            self._doubtful.pop(table.oid, None)

    def truncate(self, table: Relation) -> bool:
        """Prepare for a TRUNCATE; return False if this export creates tables and has not created this one."""
        # Empty it first: rows about to be deleted need no comments.
        self.empty([table])
        return self._follow(table) or not self._create

    def finish(self) -> None:
        """Drop the tables whose names others took: they were dropped, or had no change since."""
        for oid, name in self._aside.items():
            if self._create:
                self._say(f"DROP TABLE {quoted_table(self._seen.pop(oid))};\nDROP SCHEMA {_aside(oid)};\n")
            self.gone.append(one_line(name))
        self._aside.clear()

    def prepare(self, change: Change) -> None:
        """Write the definitions that the table of ``change`` needs first."""
        relation = change.relation
        exists = self._follow(relation, change.key_columns)
        self._seen[relation.oid] = relation
        if self._create:
            key = _primary_key(relation, change.key_columns)
            if not exists:
                self._say(_create(relation, key))
            elif key != self._keys[relation.oid]:
                self._say(_rekey(relation, key))
            self._keys[relation.oid] = key
        # Even without an insert, a changed row may be older than the recording.
        self._filled.add(relation.oid)

    def _follow(self, now: Relation, key: tuple[str, ...] = ()) -> bool:
        """Give a table its current name and columns; return False if it is new (only its name is freed).

        The oid identifies a table: its name may have belonged to another table until now.
        """
        before = self._seen.get(now.oid)
        if before is now:
            return True
        if before is None or not _named_alike(before, now):
            self._free_name(now, is_new=before is None)
        if before is None:
            return False
        self._seen[now.oid] = now
        self._aside.pop(now.oid, None)
        if _shape(before) != _shape(now):
            self._alter(before, now, key)
        return True

    def _alter(self, before: Relation, now: Relation, key: tuple[str, ...]) -> None:
        changes = became(before.columns, now.columns)
        if not self._create:
            self._say(f"-- here the table {one_line(now.qualified_name)} changed its columns or name\n")
        if not _named_alike(before, now):
            self._say("".join(f"{statement}\n" for statement in _move(before, now)))
        if now.oid in self._filled:
            self._doubt(changes, now, key)
        if self._create:
            self._say("".join(f"{statement}\n" for statement in _alter(changes, now)))

    def _doubt(self, changes: ColumnChanges, now: Relation, key: tuple[str, ...]) -> None:
        """Comment on the values of older rows that are uncertain."""
        before = self.doubtful(now)
        doubtful = self._doubtful[now.oid] = set()
        for old, new in changes.kept:
            if old.name in before or old.type_oid != new.type_oid:
                doubtful.add(new.name)
            if old.name != new.name:
                self._note(now, new.name, f"was {_quoted(old.name)}, according to its place and type")
            elif old.type_oid != new.type_oid:
                self._note(now, new.name, _RETYPED, "retyped")
        for column in changes.added:
            doubtful.add(column.name)
            kind: Doubt = "again" if column.name in changes.again else "added"
            self._note(now, column.name, _AGAIN if kind == "again" else _ADDED, kind)
            if column.name in key:
                self._note(now, column.name, "is in the key, so earlier rows can't be found by their key")
            if kind == "again":
                # If names were exchanged, the values of other columns of this type are misplaced too.
                doubtful |= {new.name for _, new in changes.kept if new.type_oid == column.type_oid}

    def _note(self, table: Relation, column: str, what: str, kind: Doubt | None = None) -> None:
        name = one_line(table.qualified_name)
        self._say(f"-- {name}: column {_quoted(column)} {what}\n")
        if kind is not None:
            self.doubts[kind].append(f"{name}.{one_line(column)}")

    def _free_name(self, relation: Relation, *, is_new: bool) -> None:
        """Move the table that had the name of ``relation`` until now out of the way.

        It was dropped or renamed. If it was renamed, a later change of it shows its new name.
        """
        for other in [one for one in self._seen.values() if _named_alike(one, relation)]:
            if is_new and not self._create:
                # The target has one table of that name, and the new table's columns apply to it.
                del self._seen[other.oid]
                self._say(f"DELETE FROM {quoted_table(relation)}; -- the table was recreated\n")
                continue
            self._say("".join(f"{statement}\n" for statement in _put_aside(other)))
            self._seen[other.oid] = replace(other, namespace=f"bwtui {other.oid}")
            self._aside[other.oid] = other.qualified_name


_ADDED = "was added: earlier rows have NULL, because their DEFAULT values were not recorded"
_AGAIN = "was dropped and added again, or names were swapped: the values of earlier rows are unknown"
_RETYPED = (
    "changed its type: earlier rows have their old text, or all NULL if it does not fit;"
    " the results of USING were not recorded"
)


def _shape(relation: Relation) -> object:
    return relation.namespace, relation.name, [(c.name, c.type_oid, c.typmod) for c in relation.columns]


def _primary_key(relation: Relation, key: tuple[str, ...]) -> tuple[str, ...]:
    return key if {column.name for column in relation.columns}.issuperset(key) else ()


def _create(relation: Relation, key: tuple[str, ...]) -> str:
    types = [(column, *_type(column)) for column in relation.columns]
    lines = [(f"{quote_identifier(column.name)} {kind}", note) for column, kind, note in types]
    if key:
        lines.append((_constraint(relation, key), ""))
    last = len(lines) - 1
    body = "".join(f"\n  {line}{',' * (place < last)}{note}" for place, (line, note) in enumerate(lines))
    schema = f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(relation.namespace)};\n"
    return f"{schema}CREATE TABLE {quoted_table(relation)} ({body}\n);\n"


def _constraint(relation: Relation, key: tuple[str, ...]) -> str:
    # The constraint's index has the same name, which must be free in every schema the table moves to.
    columns = ", ".join(map(quote_identifier, key))
    return f"CONSTRAINT {_aside(relation.oid)} PRIMARY KEY ({columns})"


def _rekey(relation: Relation, key: tuple[str, ...]) -> str:
    """Return the statements that give a table a new primary key (if its older rows fit it), or none."""
    table = f"ALTER TABLE {quoted_table(relation)}"
    # Columns of an earlier key are still NOT NULL, but no longer need to be.
    free = [
        f"ALTER COLUMN {quote_identifier(column.name)} DROP NOT NULL"
        for column in relation.columns
        if column.name not in key
    ]
    steps = ", ".join([f"DROP CONSTRAINT IF EXISTS {_aside(relation.oid)}", *free])
    if not key:
        return f"{table} {steps};\n"
    warning = f"{table}: old rows do not fit the new key {', '.join(map(quote_identifier, key))}"
    added = f"{table} ADD {_constraint(relation, key)};"
    return f"{table} {steps};\n{_attempt(added, warning, '')}\n"


def is_built_in(column: Column) -> bool:
    """Return whether every PostgreSQL database has the column's type."""
    return not codec_for(column.type_oid, column.typmod, {}).as_text


def _type(column: Column) -> tuple[str, str]:
    """Return the SQL type of a column, and a comment; types that are not built in become text."""
    codec = codec_for(column.type_oid, column.typmod, {})
    if codec.as_text:
        return "text", f" -- type {column.type_oid} of the original database"
    return codec.pg_type, ""


def _alter(changes: ColumnChanges, now: Relation) -> Iterator[str]:
    table = f"ALTER TABLE {quoted_table(now)}"
    for column in changes.dropped:
        yield f"{table} DROP COLUMN {quote_identifier(column.name)};"
    used_names = {column.name for pair in changes.kept for column in pair}
    yield from _rename(table, [(old.name, new.name) for old, new in changes.renamed], used_names)
    for old, new in changes.kept:
        if _type(old) != _type(new):
            yield _retype(table, new)
    for column in changes.added:
        kind, note = _type(column)
        yield f"{table} ADD COLUMN {quote_identifier(column.name)} {kind};{note}"


def _rename(table: str, names: list[tuple[str, str]], used_names: set[str]) -> Iterator[str]:
    steps = names
    if {old for old, _ in names} & {new for _, new in names}:
        # A new name equals another column's old name.
        free = (name for at in count() if (name := f"bwtui {at}") not in used_names)
        between = list(islice(free, len(names)))
        steps = [(old, name) for (old, _), name in zip(names, between, strict=True)]
        steps += [(name, new) for name, (_, new) in zip(between, names, strict=True)]
    for old, new in steps:
        yield f"{table} RENAME COLUMN {quote_identifier(old)} TO {quote_identifier(new)};"


def _retype(table: str, column: Column) -> str:
    """Return the statement that changes a column's type, keeping its values if they fit."""
    name, (kind, note) = quote_identifier(column.name), _type(column)
    warning = f"{table} {name}: old values do not fit the type {kind}, and are NULL"
    retyped = f"{table} ALTER COLUMN {name} TYPE {kind} USING {name}::pg_catalog.text::{kind};"
    return _attempt(retyped, warning, f"\n  {table} DROP COLUMN {name}, ADD COLUMN {name} {kind};") + note


def _attempt(statement: str, warning: str, otherwise: str) -> str:
    """Return a DO block that runs ``statement``, or if that fails, warns and runs ``otherwise``."""
    body = (
        f"BEGIN\n"
        f"  {statement}\n"
        f"EXCEPTION WHEN OTHERS THEN\n"
        f"  RAISE WARNING '%', {quote_literal(warning).lstrip()};{otherwise}\n"
        f"END"
    )
    tag = "bwtui"
    while f"${tag}$" in body:
        tag += "_"
    return f"DO ${tag}$ {body} ${tag}$;"


def _move(before: Relation, now: Relation) -> Iterator[str]:
    if before.namespace == now.namespace:
        yield _rename_table(before, now.name)
        return
    at = before
    if before.name != now.name:
        # Either name may be taken in the other schema.
        at = replace(before, namespace=f"bwtui {before.oid}")
        if at != before:
            yield from _put_aside(before)
        yield _rename_table(at, now.name)
        at = replace(at, name=now.name)
    yield f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(now.namespace)};"
    yield f"ALTER TABLE {quoted_table(at)} SET SCHEMA {quote_identifier(now.namespace)};"
    if at.namespace == f"bwtui {before.oid}":
        yield f"DROP SCHEMA {_aside(before.oid)};"


def _put_aside(table: Relation) -> Iterator[str]:
    """Yield the statements that move a table into its own schema, where the names of both are free."""
    yield f"CREATE SCHEMA {_aside(table.oid)};"
    yield f"ALTER TABLE {quoted_table(table)} SET SCHEMA {_aside(table.oid)};"


def _aside(oid: int) -> str:
    return quote_identifier(f"bwtui {oid}")


def _rename_table(table: Relation, name: str) -> str:
    return f"ALTER TABLE {quoted_table(table)} RENAME TO {quote_identifier(name)};"


def _named_alike(first: Relation, second: Relation) -> bool:
    return (first.namespace, first.name) == (second.namespace, second.name)


def quoted_table(table: Relation) -> str:
    """Return a table's qualified name, quoted for SQL."""
    return quote_qualified(table.namespace, table.name)


def _quoted(name: str) -> str:
    return one_line(quote_identifier(name))


def one_line(text: str) -> str:
    """Return ``text`` on one line, so that a comment can hold it."""
    return " ".join(text.split())
