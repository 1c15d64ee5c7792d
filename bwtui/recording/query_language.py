"""The query language, which selects changes of a recording; see docs/query.md.

::

    query = parse("table = orders and op = update and after.status = 'paid'")
    found = [change for change in view.changes() if query.matches(change)]

A query is evaluated for each message of a change, together with the change's other fields; a change without a
message is evaluated once. A change matches when one result is true. Results are true, false or unknown, as in
SQL: a comparison with null is unknown, and ``not`` leaves unknown unchanged.
"""

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from bwtui.pgoutput.messages import UNCHANGED, Field, Relation, UnchangedToast
from bwtui.recording.change import Change, SentMessage
from bwtui.recording.query_sql import condition
from bwtui.recording.query_syntax import (
    BOOLEANS,
    FIELDS,
    And,
    Compare,
    FieldName,
    FieldRef,
    IsNull,
    IsUnchanged,
    Match,
    Node,
    Not,
    Or,
    QueryError,
    TextOperand,
    as_number,
    parse_tree,
)

# The rows that a query is evaluated for: one per message of a change, as in a sealed recording.
#
# A change without a message is one row. A TRUNCATE is one row per table.


class UnknownValue:
    """The value of a column that the table lacks, or that PostgreSQL did not send: it is unknown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOT_THERE"


NOT_THERE = UnknownValue()
#: The text of a value; None is null.
ColumnText = str | UnchangedToast | UnknownValue | None


def rows(change: Change) -> Iterator[tuple[Change, SentMessage | None]]:
    """Yield a pair for each row; the rows of a TRUNCATE have changes with one table each."""
    if len(change.tables) > 1:
        yield from _truncated(change)
    elif change.messages:
        for message in change.messages:
            yield change, message
    else:
        yield change, None


def _truncated(change: Change) -> Iterator[tuple[Change, SentMessage | None]]:
    # The key of a TRUNCATE's message is the table's name.
    remaining = list(change.messages)
    for table in change.truncated:
        named = table.qualified_name.encode()
        message = next((message for message in remaining if message.key == named), None)
        if message is not None:
            remaining.remove(message)
        yield _of_table(change, table), message
    for message in remaining:
        yield change, message


def _of_table(change: Change, table: Relation) -> Change:
    if table == change.relation:
        return change
    # A TRUNCATE does not describe the table's columns.
    alone = Relation(0, table.namespace, table.name, "n", ())
    return replace(change, relation=alone, tables=(table.qualified_name,), truncated=())


def as_text(value: Field) -> str | UnchangedToast | None:
    """Return a value as text; bytes that are not UTF-8 become ``\\x`` and hexadecimal digits."""
    if value is None or isinstance(value, UnchangedToast):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"\\x{value.hex()}"


def sent_value(change: Change, index: int, *, old: bool) -> Field | UnknownValue:
    """Return the value of the column at ``index``, if PostgreSQL sent it."""
    row = change.before if old else change.after
    if row is None:
        return NOT_THERE
    value = row[index]
    if value is None and old and change.before_is_key and not change.relation.columns[index].is_key:
        return NOT_THERE
    return value


def key_is_old(change: Change, message: SentMessage | None) -> bool:
    """Return whether the key is the old row's, as for a delete or for the tombstone of a changed key."""
    if change.after is None:
        return True
    is_tombstone = message is not None and message.value is None
    return is_tombstone and change.before is not None


def row_texts(change: Change, *, old: bool) -> dict[str, str | None] | None:
    """Return the known texts of a row by column, without unchanged values; None if there is no such row."""
    if (change.before if old else change.after) is None:
        return None
    texts: dict[str, str | None] = {}
    for index, column in enumerate(change.relation.columns):
        value = sent_value(change, index, old=old)
        if not isinstance(value, UnknownValue | UnchangedToast):
            text = as_text(value)
            assert not isinstance(text, UnchangedToast)
            texts[column.name] = text
    return texts


def key_texts(change: Change, message: SentMessage | None) -> dict[str, str] | None:
    """Return the texts of the message's key by column; None if the key is unknown."""
    old = key_is_old(change, message)
    if (change.before if old else change.after) is None or not change.key_columns:
        return None
    places = {column.name: index for index, column in enumerate(change.relation.columns)}
    texts = {}
    for name in change.key_columns:
        value = sent_value(change, places[name], old=old) if name in places else NOT_THERE
        text = None if isinstance(value, UnknownValue) else as_text(value)
        if not isinstance(text, str):
            return None
        texts[name] = text
    return texts


def unchanged_columns(change: Change) -> list[str]:
    """Return the columns of the new row whose unchanged TOAST values PostgreSQL did not send."""
    if change.after is None:
        return []
    columns = change.relation.columns
    return [columns[index].name for index, value in enumerate(change.after) if value is UNCHANGED]


# Compile a query's tree to closures that evaluate it for a change and one of its messages.
#
# A result is true, false, or unknown, which is None.

Answer = bool | None
Test = Callable[[Change, SentMessage | None], Answer]
Value = Callable[[Change, SentMessage | None], Any]
Lookup = Callable[[Change, SentMessage | None], ColumnText]

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MOST_RELATIONS = 1024

_VALUES: dict[str, Value] = {
    "table": lambda change, message: change.relation.name,
    "schema": lambda change, message: change.relation.namespace,
    "op": lambda change, message: change.operation,
    "lsn": lambda change, message: change.lsn,
    "ordinal": lambda change, message: change.ordinal,
    "xid": lambda change, message: change.xid,
    "position": lambda change, message: change.position,
    "time": lambda change, message: change.commit_time,
    "commit_time": lambda change, message: change.commit_time,
    "received": lambda change, message: change.received,
    "topic": lambda change, message: message and message.topic,
    "partition": lambda change, message: message and message.partition,
    "offset": lambda change, message: message and message.offset,
    "state": lambda change, message: message and message.state,
    "repeat": lambda change, message: change.is_repeat,
    "without": lambda change, message: change.without,
    "before": lambda change, message: change.before,
    "after": lambda change, message: change.after,
}


def compiled(node: Node) -> Test:
    """Return the closure that evaluates ``node``."""
    match node:
        case And():
            return _all(tuple(map(compiled, node.parts)))
        case Or():
            return _any(tuple(map(compiled, node.parts)))
        case Not():
            return _not(compiled(node.part))
        case Compare():
            return _compare(node)
        case Match():
            return _match(node)
        case IsNull():
            return _is_null(node.ref)
        case IsUnchanged():
            return _is_unchanged(node.ref)


def _all(parts: tuple[Test, ...]) -> Test:
    def test(change: Change, message: SentMessage | None) -> Answer:
        answer: Answer = True
        for part in parts:
            matches = part(change, message)
            if matches is False:
                return False
            if matches is None:
                answer = None
        return answer

    return test


def _any(parts: tuple[Test, ...]) -> Test:
    def test(change: Change, message: SentMessage | None) -> Answer:
        answer: Answer = False
        for part in parts:
            matches = part(change, message)
            if matches:
                return True
            if matches is None:
                answer = None
        return answer

    return test


def _not(part: Test) -> Test:
    def test(change: Change, message: SentMessage | None) -> Answer:
        matches = part(change, message)
        return None if matches is None else not matches

    return test


# Comparisons.


def _compare(node: Compare) -> Test:
    ref, operand = node.ref, node.operand
    compare = _ORDERS[node.order]
    if ref.kind == "table":
        assert isinstance(operand, TextOperand)
        return _is_table(operand.value)
    if ref.kind == "columns":
        assert isinstance(operand, TextOperand)
        return _is_changed(operand.value)
    if ref.kind == "column":
        if isinstance(operand, FieldRef):
            return _compare_columns(_lookup(ref), compare, _lookup(operand))
        assert isinstance(operand, TextOperand)
        return _compare_column(_lookup(ref), node.order, operand)
    return _compare_value(
        _VALUES[ref.field.name], compare, operand.value if isinstance(operand, TextOperand) else operand
    )


def _compare_value(value: Value, compare: Callable[[Any, Any], bool], operand: Any) -> Test:
    def test(change: Change, message: SentMessage | None) -> Answer:
        actual = value(change, message)
        return None if actual is None else compare(actual, operand)

    return test


def _is_table(table: str) -> Test:
    def test(change: Change, message: SentMessage | None) -> Answer:
        relation = change.relation
        return relation.name == table or (dotted and relation.qualified_name == table)

    dotted = "." in table
    return test


def _of_text(lookup: Lookup, holds: Callable[[str], bool]) -> Test:
    """Return the test ``holds`` applied to a column's text; the result is unknown if there is no text."""

    def test(change: Change, message: SentMessage | None) -> Answer:
        text = lookup(change, message)
        return holds(text) if isinstance(text, str) else None

    return test


def _compare_column(lookup: Lookup, order: str, operand: TextOperand) -> Test:
    operand_text, compare = operand.value, _ORDERS[order]
    if operand.bare and order == "=" and operand_text.lower() in BOOLEANS:
        return _of_text(lookup, BOOLEANS[operand_text.lower()].__contains__)
    number = as_number(operand_text) if operand.bare else None
    if number is None:
        return _of_text(lookup, lambda text: compare(text, operand_text))

    def compared(text: str) -> bool:
        value = as_number(text)
        return compare(text, operand_text) if value is None else compare(value, number)

    return _of_text(lookup, compared)


def _compare_columns(left: Lookup, compare: Callable[[Any, Any], bool], right: Lookup) -> Test:
    def test(change: Change, message: SentMessage | None) -> Answer:
        left_text, right_text = left(change, message), right(change, message)
        if not isinstance(left_text, str) or not isinstance(right_text, str):
            return None
        left_number, right_number = as_number(left_text), as_number(right_text)
        if left_number is None or right_number is None:
            return compare(left_text, right_text)
        return compare(left_number, right_number)

    return test


def _is_changed(name: str) -> Test:
    find_old, find_new = _column(name, old=True), _column(name, old=False)

    def test(change: Change, message: SentMessage | None) -> Answer:
        old, new = find_old(change, message), find_new(change, message)
        if isinstance(new, UnchangedToast):
            return False
        if isinstance(old, UnknownValue) or isinstance(new, UnknownValue):
            return None
        return old != new

    return test


def _match(node: Match) -> Test:
    search = node.regex.pattern.search
    if node.ref.kind == "table":
        return lambda change, message: (
            search(change.relation.name) is not None or search(change.relation.qualified_name) is not None
        )
    value = _lookup(node.ref) if node.ref.kind == "column" else _VALUES[node.ref.field.name]
    return _of_text(value, lambda text: search(text) is not None)


def _is_null(ref: FieldRef) -> Test:
    if ref.kind != "column":
        value = _VALUES[ref.field.name]
        return lambda change, message: value(change, message) is None
    lookup = _lookup(ref)
    if ref.column is None:
        return lambda change, message: lookup(change, message) is None

    def test(change: Change, message: SentMessage | None) -> Answer:
        text = lookup(change, message)
        return None if isinstance(text, UnknownValue) else text is None

    return test


def _is_unchanged(ref: FieldRef) -> Test:
    lookup = _lookup(ref)

    def test(change: Change, message: SentMessage | None) -> Answer:
        text = lookup(change, message)
        return None if isinstance(text, UnknownValue) else isinstance(text, UnchangedToast)

    return test


# Columns.


def _lookup(ref: FieldRef) -> Lookup:
    if ref.column is None:
        return _whole_key
    if ref.side == "key":
        return _key_column(ref.column)
    return _column(ref.column, old=ref.side == "before")


def _column(name: str, *, old: bool) -> Lookup:
    index_of = _indexes(name)

    def lookup(change: Change, message: SentMessage | None) -> ColumnText:
        if (change.before if old else change.after) is None:
            return NOT_THERE
        index = index_of(change.relation)
        if index is None:
            return NOT_THERE
        value = sent_value(change, index, old=old)
        return value if isinstance(value, UnknownValue) else as_text(value)

    return lookup


def _key_column(name: str) -> Lookup:
    def lookup(change: Change, message: SentMessage | None) -> ColumnText:
        texts = key_texts(change, message) if name in change.key_columns else None
        return NOT_THERE if texts is None else texts[name]

    return lookup


def _whole_key(change: Change, message: SentMessage | None) -> str | None:
    texts = key_texts(change, message)
    return None if texts is None else ",".join(texts.values())


def _indexes(name: str) -> Callable[[Relation], int | None]:
    """Return a function that finds the column's index in a relation, with a cache."""
    places: dict[int, tuple[Relation, int | None]] = {}

    def index_of(relation: Relation) -> int | None:
        indexes = places.get(id(relation))
        if indexes is not None:
            return indexes[1]
        names = [column.name for column in relation.columns]
        index = names.index(name) if name in names else None
        if len(places) >= _MOST_RELATIONS:
            places.clear()
        # The cache keeps the relation alive, so that no new object can get its id.
        places[id(relation)] = relation, index
        return index

    return index_of


def whole(test: Test, uses_messages: bool) -> Callable[[Change], bool]:
    """Return a function that returns whether any row of a change matches ``test``."""
    return partial(_any_row if uses_messages else _first_row, test)


def _first_row(test: Test, change: Change) -> bool:
    return test(change, None) is True if len(change.tables) <= 1 else _any_row(test, change)


def _any_row(test: Test, change: Change) -> bool:
    return any(test(one, message) is True for one, message in rows(change))


__all__ = ["FIELDS", "FieldName", "Query", "QueryError", "parse", "to_sql"]


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query."""

    text: str
    tree: Node
    #: Returns whether any row of a change, in the sense of `query.rows`, matches.
    matches: Callable[[Change], bool] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return self.text


def parse(text: str, end: int | None = None) -> Query:
    """Parse ``text``; times like ``-5m`` are relative to ``end``, in Unix microseconds.

    Raises QueryError.
    """
    tree = parse_tree(text, end)
    return Query(text, tree, whole(compiled(tree), any(ref.field.of_message for ref in _refs(tree))))


def to_sql(query: Query) -> str:
    """Return an equivalent SQL condition on a sealed recording's columns, for DuckDB."""
    return condition(query.tree)


def fields_of(query: Query) -> list[str]:
    """Return the names of the fields that a query uses."""
    return list(dict.fromkeys(ref.field.name for ref in _refs(query.tree)))


def _refs(node: Node) -> Iterator[FieldRef]:
    if isinstance(node, And | Or):
        for part in node.parts:
            yield from _refs(part)
    elif isinstance(node, Not):
        yield from _refs(node.part)
    else:
        yield node.ref
        if isinstance(node, Compare) and isinstance(node.operand, FieldRef):
            yield node.operand


# The selection of a recording's changes, for exports and replays.


@dataclass(frozen=True, slots=True)
class ChangeSelection:
    """Conditions on changes that must all hold; ranges include both ends, and times are commit times."""

    query: Query | None = None
    #: Must match all of ``schema.table``; ``public`` may be omitted.
    table: re.Pattern[str] | None = None
    from_lsn: int | None = None
    to_lsn: int | None = None
    from_time: int | None = None
    to_time: int | None = None
    with_repeats: bool = False

    def takes(self, change: Change) -> bool:
        """Return whether ``change`` is selected."""
        return (
            (self.with_repeats or not change.is_repeat)
            and (self.from_lsn is None or change.lsn >= self.from_lsn)
            and (self.to_lsn is None or change.lsn <= self.to_lsn)
            and (self.from_time is None or change.commit_time >= self.from_time)
            and (self.to_time is None or change.commit_time <= self.to_time)
            and (self.table is None or any(map(self.takes_table, change.tables)))
            and (self.query is None or self.query.matches(change))
        )

    def takes_table(self, qualified: str) -> bool:
        """Return whether the table called ``schema.table`` is selected."""
        if self.table is None:
            return True
        bare = qualified.removeprefix("public.")
        return self.table.fullmatch(qualified) is not None or self.table.fullmatch(bare) is not None
