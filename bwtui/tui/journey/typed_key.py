"""Parses a typed key: ``orders id=42``, ``order_items 7, 2``, ``id=42`` of the selected table, ``42``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bwtui.model.status import ChangeSample, Status
from bwtui.recording.change import Change
from bwtui.recording.query.tokens import QueryError, Token, tokens
from bwtui.recording.reading.explain import RowKey


@dataclass(frozen=True, slots=True)
class TypedKey:
    """A typed key, as a selection for the screen that shows its journey."""

    key: RowKey

    def selected_key(self) -> RowKey | str:
        return self.key

    def selected_table(self) -> str | None:
        return self.key.table

    def selected_change(self) -> Change | None:
        """Return None, because a typed key names no change."""
        return None

    def selected_sample(self) -> ChangeSample | None:
        """Return None, for the same reason."""
        return None

    def selected_subject(self) -> str | None:
        """Return None, because a key has no subject of its own."""
        return None


#: The key columns of each table, by ``schema.table``; None if they are unknown.
Tables = Mapping[str, Sequence[str] | None]


def tables_of(status: Status | None) -> Tables:
    """Return a relay's tables with their key columns."""
    tables = {} if status is None else status.tables
    return {name: table.key_columns if table.is_key_known else None for name, table in tables.items()}


def asked_key(text: str, tables: Tables, selected: str | None) -> RowKey | str | None:
    """Return the key that a text names, or what is wrong with it; None if the text is a filter, not a key."""
    try:
        words = tokens(text)[:-1]
    except QueryError:
        return None
    if any(word.is_operator("=") for word in words):
        return _by_columns(words, tables, selected)
    if len(words) < 2 or (table := _table(words[0], tables, is_whole=True)) is None:
        return None
    values = _values(words[1:])
    return None if values is None else _key(table, tables, values)


def plain_key(text: str, tables: Tables, selected: str | None) -> RowKey | str | None:
    """Return the key of the selected table with this value; None if the text is not a value."""
    try:
        values = _values(tokens(text)[:-1])
    except QueryError:
        return None
    if not values:
        return None
    return (
        "no table is selected to look for this key in" if selected is None else _key(selected, tables, values)
    )


def _by_columns(words: list[Token], tables: Tables, selected: str | None) -> RowKey | str:
    table = selected
    if len(words) > 1 and not words[1].is_operator("="):
        table = _table(words[0], tables, is_whole=False)
        if table is None:
            return f"no table is called {words[0].shown}, or several are"
        words = words[1:]
    if table is None:
        return "put the table first: orders id=42"
    given: dict[str, str] = {}
    left = [word for word in words if not word.is_operator(",")]
    while left:
        if (
            len(left) < 3
            or left[0].kind == "operator"
            or not left[1].is_operator("=")
            or left[2].kind == "operator"
        ):
            return "usage: orders id=42, or items order_id=7, line=2"
        given[left[0].text] = left[2].text
        left = left[3:]
    columns = tables.get(table)
    if columns is None:
        return _unknown(table)
    if strange := [name for name in given if name not in columns]:
        return f"{strange[0]} is not in the key of {table}: {', '.join(columns) or 'it has none'}"
    if lacking := [name for name in columns if name not in given]:
        return f"the key of {table} has {', '.join(lacking)}, too"
    return _key(table, tables, [given[name] for name in columns])


def _key(table: str, tables: Tables, values: Sequence[str]) -> RowKey | str:
    columns = tables.get(table)
    if columns is None:
        return _unknown(table)
    if not columns:
        return f"{table} has no key, so its rows can't be told apart"
    if len(columns) != len(values):
        return f"the key of {table} is {', '.join(columns)}"
    return RowKey(table, tuple(columns), tuple(value.encode("utf-8", "replace") for value in values))


def _unknown(table: str) -> str:
    return f"the key of {table} is not known yet: the relay has sent no row of it since it began"


def _table(word: Token, tables: Tables, *, is_whole: bool) -> str | None:
    """Return the table of a name, with or without its schema; a prefix is enough unless ``is_whole``."""
    if word.kind == "operator":
        return None
    if word.text in tables:
        return word.text
    named = [table for table in tables if table.partition(".")[2] == word.text]
    if not named and not is_whole:
        named = [table for table in tables if table.partition(".")[2].startswith(word.text)]
    return named[0] if len(named) == 1 else None


def _values(words: Sequence[Token]) -> list[str] | None:
    values = [word.text for word in words if not word.is_operator(",")]
    return None if any(word.kind == "operator" and not word.is_operator(",") for word in words) else values
