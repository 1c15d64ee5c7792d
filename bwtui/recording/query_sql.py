"""Compile a query's tree to an SQL condition on the columns of a sealed recording, for DuckDB.

The condition is evaluated for each row, that is, for each message; a change without a message has one row.
Its result is true, false or null exactly where that of `match` is true, false or unknown.
"""

from collections.abc import Iterator, Sequence

from bwtui.model.sql import quoted
from bwtui.recording.change import KEY_CHANGE
from bwtui.recording.query_syntax import (
    BOOLEANS,
    LENGTH_DIGITS,
    NUMBER,
    NUMBER_PARTS,
    And,
    Compare,
    FieldRef,
    IsNull,
    IsUnchanged,
    Match,
    Node,
    Not,
    Or,
    TextOperand,
    as_number,
    sort_key,
)

_COLUMNS = {"time": "commit_time", "repeat": "is_repeat", "key": "key_json"}
#: The INT columns; other integers are BIGINT.
_INTS = ("ordinal", "partition")


def condition(node: Node) -> str:
    """Return the SQL of ``node``, which needs no additional parentheses."""
    match node:
        case And():
            return f"({' AND '.join(map(condition, node.parts))})"
        case Or():
            return f"({' OR '.join(_either(node.parts))})"
        case Not():
            return f"(NOT {condition(node.part)})"
        case Compare():
            return _compare(node)
        case Match():
            return _match(node)
        case IsNull():
            return _is_null(node.ref)
        case IsUnchanged():
            return _is_unchanged(node.ref)


def _either(parts: Sequence[Node]) -> Iterator[str]:
    """Yield the parts of an OR, with all numbers that one column may equal combined to one list.

    Converting a column to a number takes much SQL: separate conditions for some hundred numbers would
    have megabytes.
    """
    numbers: dict[FieldRef, list[str]] = {}
    for part in parts:
        if isinstance(part, Compare) and (number := _equal_number(part)) is not None:
            numbers.setdefault(part.ref, []).append(number)
        else:
            yield condition(part)
    for ref, equal_numbers in numbers.items():
        column, texts = _column(ref), ", ".join(map(quoted, equal_numbers))
        keys = ", ".join(quoted(sort_key(number)) for number in equal_numbers)
        compared = f"{_sort_key(column)} IN ({keys})"
        yield f"(CASE WHEN {_is_number(column)} THEN {compared} ELSE {column} IN ({texts}) END)"


def _equal_number(node: Compare) -> str | None:
    """Return the number in a condition that a column equals a number; otherwise None."""
    operand = node.operand
    if (
        node.ref.kind != "column"
        or node.order != "="
        or not isinstance(operand, TextOperand)
        or not operand.bare
    ):
        return None
    is_number = operand.value.lower() not in BOOLEANS and as_number(operand.value) is not None
    return operand.value if is_number else None


def _name(ref: FieldRef) -> str:
    if ref.field.name == "op":
        # A query asks for the change's operation, but older sealed recordings have key_change for messages.
        return f'(CASE "op" WHEN {quoted(KEY_CHANGE)} THEN \'update\' ELSE "op" END)'
    return f'"{_COLUMNS.get(ref.field.name, ref.field.name)}"'


# Comparisons.


def _compare(node: Compare) -> str:
    ref, operand = node.ref, node.operand
    if ref.kind == "column":
        return _compare_column(_column(ref), node)
    if isinstance(operand, TextOperand):
        if ref.kind == "table":
            return _is_table(operand.value)
        if ref.kind == "columns":
            return _is_changed(operand.value)
        return f"({_name(ref)} {node.order} {quoted(operand.value)})"
    assert isinstance(operand, int)
    if ref.kind == "time":
        return f"({_name(ref)} {node.order} make_timestamp({operand}))"
    if ref.kind == "switch":
        return f"({_name(ref)} = {'TRUE' if operand else 'FALSE'})"
    return _compare_whole(ref, node.order, operand)


def _compare_whole(ref: FieldRef, order: str, number: int) -> str:
    # Engines treat numbers outside the column's type differently: some convert them to floats.
    limit = 1 << (31 if ref.field.name in _INTS else 63)
    if -limit <= number < limit:
        return f"({_name(ref)} {order} {number})"
    answer = order.startswith("<") if number > 0 else order.startswith(">")
    return f"(CASE WHEN {_name(ref)} IS NOT NULL THEN {'TRUE' if answer else 'FALSE'} END)"


def _is_table(table: str) -> str:
    ways = [f'"table" = {quoted(table)}']
    for place in (place for place, character in enumerate(table) if character == "."):
        namespace, name = quoted(table[:place]), quoted(table[place + 1 :])
        ways.append(f'("schema" = {namespace} AND "table" = {name})')
    return f"({' OR '.join(ways)})"


def _compare_column(column: str, node: Compare) -> str:
    operand = node.operand
    if isinstance(operand, FieldRef):
        other_column = _column(operand)
        numbers = f"{_is_number(column)} AND {_is_number(other_column)}"
        compared = f"{_sort_key(column)} {node.order} {_sort_key(other_column)}"
        return f"(CASE WHEN {numbers} THEN {compared} ELSE {column} {node.order} {other_column} END)"
    assert isinstance(operand, TextOperand)
    wanted = operand.value
    comparison = f"{column} {node.order} {quoted(wanted)}"
    if operand.bare and node.order == "=" and wanted.lower() in BOOLEANS:
        return f"({column} IN ({', '.join(map(quoted, BOOLEANS[wanted.lower()]))}))"
    if operand.bare and as_number(wanted) is not None:
        compared = f"{_sort_key(column)} {node.order} {quoted(sort_key(wanted))}"
        return f"(CASE WHEN {_is_number(column)} THEN {compared} ELSE {comparison} END)"
    return f"({comparison})"


def _is_changed(column: str) -> str:
    before, after = '"before"', '"after"'
    has_both = f"{_has(before, column)} AND {_has(after, column)}"
    differ = f"NOT ({_value(before, column)} IS NOT DISTINCT FROM {_value(after, column)})"
    unchanged = _is_in_unchanged(column)
    return f"(CASE WHEN {unchanged} THEN FALSE WHEN {has_both} THEN {differ} END)"


def _match(node: Match) -> str:
    pattern = node.regex.text
    if node.ref.kind == "table":
        ways = (_search(name, pattern) for name in ('"table"', """concat("schema", '.', "table")"""))
        return f"({' OR '.join(ways)})"
    text = _column(node.ref) if node.ref.kind == "column" else _name(node.ref)
    return _search(text, pattern)


def _is_null(ref: FieldRef) -> str:
    if ref.column is None:
        return f"({_name(ref)} IS NULL)"
    row = _name(ref)
    is_known_null = f"WHEN {_has(row, ref.column)} THEN {_value(row, ref.column)} IS NULL"
    if ref.side != "after":
        return f"(CASE {is_known_null} END)"
    return f"(CASE {is_known_null} WHEN {_is_in_unchanged(ref.column)} THEN FALSE END)"


def _is_unchanged(ref: FieldRef) -> str:
    assert ref.column is not None
    unchanged = _is_in_unchanged(ref.column)
    return f"(CASE WHEN {unchanged} THEN TRUE WHEN {_has(_name(ref), ref.column)} THEN FALSE END)"


# Columns as text, and as numbers.


def _column(ref: FieldRef) -> str:
    if ref.column is None:
        return _values(_name(ref))
    return _value(_name(ref), ref.column)


def _is_number(text: str) -> str:
    return _search(text, f"^(?:{NUMBER})\\z")


def _sort_key(text: str) -> str:
    """Return SQL that computes `values.sort_key` of ``text``, a number."""
    parts = quoted(NUMBER_PARTS)
    whole, fraction = (f"regexp_extract({text}, {parts}, {group})" for group in (1, 2))
    exponent = f"coalesce(try_cast(regexp_extract({text}, {parts}, 3) AS INT), 0)"
    left, right = (f"greatest({sign}{exponent}, 0)" for sign in "- ")
    digits = f"concat(repeat('0', {left}), {whole}, {fraction}, repeat('0', {right}))"
    point = f"(length({whole}) + {right})"
    whole = f"ltrim(substr({digits}, 1, {point}), '0')"
    fraction = f"rtrim(substr({digits}, {point} + 1), '0')"
    length = f"lpad(CAST(length({whole}) AS STRING), {LENGTH_DIGITS}, '0')"
    key = f"concat({length}, {whole}, '.', {fraction})"
    negative = f"substr({text}, 1, 1) = '-' AND concat({whole}, {fraction}) <> ''"
    turned = f"concat('0', translate({key}, '0123456789', '9876543210'), '~')"
    return f"(CASE WHEN {negative} THEN {turned} ELSE concat('1', {key}) END)"


# DuckDB functions.


def _search(text: str, pattern: str) -> str:
    return f"regexp_matches({text}, {quoted(pattern)})"


def _value(row: str, column: str) -> str:
    return f"json_extract_string({row}, {_pointer(column)})"


def _has(row: str, column: str) -> str:
    return f"json_exists({row}, {_pointer(column)})"


def _values(row: str) -> str:
    return f"array_to_string(map_values(CAST(CAST({row} AS JSON) AS MAP(VARCHAR, VARCHAR))), ',')"


def _pointer(column: str) -> str:
    return quoted("/" + column.replace("~", "~0").replace("/", "~1"))


def _is_in_unchanged(column: str) -> str:
    return f'list_contains("unchanged", {quoted(column)})'
