"""Compile a query's tree to closures that evaluate it for a change and one of its messages.

A result is true, false, or unknown, which is None.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from bwtui.pgoutput.messages import Relation, UnchangedToast
from bwtui.recording.change import Change, SentMessage
from bwtui.recording.query.fields import FieldRef
from bwtui.recording.query.rows import (
    NOT_THERE,
    ColumnText,
    UnknownValue,
    as_text,
    key_texts,
    rows,
    sent_value,
)
from bwtui.recording.query.syntax import And, Compare, IsNull, IsUnchanged, Match, Node, Not, Or, TextOperand
from bwtui.recording.query.values import as_number

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
#: PostgreSQL's texts of booleans, and the words that people write.
BOOLEANS = {"true": ("t", "true"), "false": ("f", "false")}

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
        one, other = left(change, message), right(change, message)
        if not isinstance(one, str) or not isinstance(other, str):
            return None
        number, other_number = as_number(one), as_number(other)
        if number is None or other_number is None:
            return compare(one, other)
        return compare(number, other_number)

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
