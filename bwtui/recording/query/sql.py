"""From a query's tree to a condition on the columns of a sealed recording, for DuckDB or Spark SQL.

The condition is asked of each row, that is of each message; a change without one has a row of its own. It is
true, false or null exactly as `query_match` answers.
"""

from dataclasses import dataclass

from bwtui.recording.query.fields import Ref
from bwtui.recording.query.match import BOOLEANS
from bwtui.recording.query.regex import Dialect
from bwtui.recording.query.syntax import And, Compare, IsNull, IsUnchanged, Match, Node, Not, Or, Text
from bwtui.recording.query.values import LENGTH_DIGITS, NUMBER, NUMBER_PARTS, as_number, sort_key

_COLUMNS = {"op": "op", "time": "commit_time", "repeat": "is_repeat", "key": "key_json"}
#: The columns that are INT; other whole numbers are BIGINT.
_INTS = ("ordinal", "partition")


def condition(node: Node, dialect: Dialect = "duckdb") -> str:
    """Return the SQL of ``node``."""
    return _Writer(DIALECTS[dialect]).write(node)


@dataclass(frozen=True, slots=True)
class _Sql:
    """DuckDB's dialect."""

    name: Dialect = "duckdb"

    def identifier(self, name: str) -> str:
        return f'"{name}"'

    def text(self, value: str) -> str:
        return "'" + value.replace("'", "''") + "'"

    def time(self, micros: int) -> str:
        return f"make_timestamp({micros})"

    def strip(self, side: str, text: str) -> str:
        return f"{side}trim({text}, '0')"

    def search(self, text: str, pattern: str) -> str:
        return f"regexp_matches({text}, {self.text(pattern)})"

    def value(self, row: str, column: str) -> str:
        return f"json_extract_string({row}, {self._pointer(column)})"

    def has(self, row: str, column: str) -> str:
        return f"json_exists({row}, {self._pointer(column)})"

    def values(self, row: str) -> str:
        return f"array_to_string(map_values(CAST(CAST({row} AS JSON) AS MAP(VARCHAR, VARCHAR))), ',')"

    def contains(self, array: str, value: str) -> str:
        return f"list_contains({array}, {self.text(value)})"

    def _pointer(self, column: str) -> str:
        return self.text("/" + column.replace("~", "~0").replace("/", "~1"))


class _Spark(_Sql):
    """Spark SQL's: backslashes count in its texts, and its JSON paths know too few names."""

    def identifier(self, name: str) -> str:
        return f"`{name}`"

    def text(self, value: str) -> str:
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def time(self, micros: int) -> str:
        return f"timestamp_micros({micros}L)"

    def strip(self, side: str, text: str) -> str:
        return f"{side}trim('0', {text})"

    def search(self, text: str, pattern: str) -> str:
        return f"({text} RLIKE {self.text(pattern)})"

    def value(self, row: str, column: str) -> str:
        return f"element_at({self._map(row)}, {self.text(column)})"

    def has(self, row: str, column: str) -> str:
        return f"map_contains_key({self._map(row)}, {self.text(column)})"

    def values(self, row: str) -> str:
        return f"array_join(map_values({self._map(row)}), ',')"

    def contains(self, array: str, value: str) -> str:
        return f"array_contains({array}, {self.text(value)})"

    def _map(self, row: str) -> str:
        return f"from_json({row}, 'map<string,string>')"


DIALECTS: dict[Dialect, _Sql] = {"duckdb": _Sql(), "spark": _Spark("spark")}


class _Writer:
    def __init__(self, sql: _Sql) -> None:
        self._sql = sql

    def write(self, node: Node) -> str:
        """Return ``node`` as a condition that needs no parentheses around it."""
        match node:
            case And():
                return f"({' AND '.join(map(self.write, node.parts))})"
            case Or():
                return f"({' OR '.join(map(self.write, node.parts))})"
            case Not():
                return f"(NOT {self.write(node.part)})"
            case Compare():
                return self._compare(node)
            case Match():
                return self._match(node)
            case IsNull():
                return self._is_null(node.ref)
            case IsUnchanged():
                return self._is_unchanged(node.ref)

    def _name(self, ref: Ref) -> str:
        return self._sql.identifier(_COLUMNS.get(ref.field.name, ref.field.name))

    # Comparisons.

    def _compare(self, node: Compare) -> str:
        ref, operand = node.ref, node.operand
        if ref.kind == "column":
            return self._compare_column(self._column(ref), node)
        if isinstance(operand, Text):
            if ref.kind == "table":
                return self._is_table(operand.value)
            if ref.kind == "columns":
                return self._is_changed(operand.value)
            return f"({self._name(ref)} {node.order} {self._sql.text(operand.value)})"
        assert isinstance(operand, int)
        if ref.kind == "time":
            return f"({self._name(ref)} {node.order} {self._sql.time(operand)})"
        if ref.kind == "switch":
            return f"({self._name(ref)} = {'TRUE' if operand else 'FALSE'})"
        return self._compare_whole(ref, node.order, operand)

    def _compare_whole(self, ref: Ref, order: str, wanted: int) -> str:
        # Engines disagree on numbers that the column's type can't hold: some take them for floats.
        limit = 1 << (31 if ref.field.name in _INTS else 63)
        if -limit <= wanted < limit:
            return f"({self._name(ref)} {order} {wanted})"
        answer = order.startswith("<") if wanted > 0 else order.startswith(">")
        return f"(CASE WHEN {self._name(ref)} IS NOT NULL THEN {'TRUE' if answer else 'FALSE'} END)"

    def _is_table(self, wanted: str) -> str:
        table, schema = self._sql.identifier("table"), self._sql.identifier("schema")
        ways = [f"{table} = {self._sql.text(wanted)}"]
        for place in (place for place, character in enumerate(wanted) if character == "."):
            namespace, name = self._sql.text(wanted[:place]), self._sql.text(wanted[place + 1 :])
            ways.append(f"({schema} = {namespace} AND {table} = {name})")
        return f"({' OR '.join(ways)})"

    def _compare_column(self, column: str, node: Compare) -> str:
        operand = node.operand
        if isinstance(operand, Ref):
            other = self._column(operand)
            numbers = f"{self._is_number(column)} AND {self._is_number(other)}"
            compared = f"{self._sort_key(column)} {node.order} {self._sort_key(other)}"
            return f"(CASE WHEN {numbers} THEN {compared} ELSE {column} {node.order} {other} END)"
        assert isinstance(operand, Text)
        wanted = operand.value
        text = f"{column} {node.order} {self._sql.text(wanted)}"
        if operand.bare and node.order == "=" and wanted.lower() in BOOLEANS:
            return f"({column} IN ({', '.join(map(self._sql.text, BOOLEANS[wanted.lower()]))}))"
        if operand.bare and as_number(wanted) is not None:
            compared = f"{self._sort_key(column)} {node.order} {self._sql.text(sort_key(wanted))}"
            return f"(CASE WHEN {self._is_number(column)} THEN {compared} ELSE {text} END)"
        return f"({text})"

    def _is_changed(self, column: str) -> str:
        sql = self._sql
        before, after = sql.identifier("before"), sql.identifier("after")
        there = f"{sql.has(before, column)} AND {sql.has(after, column)}"
        differ = f"NOT ({sql.value(before, column)} IS NOT DISTINCT FROM {sql.value(after, column)})"
        unchanged = sql.contains(sql.identifier("unchanged"), column)
        return f"(CASE WHEN {unchanged} THEN FALSE WHEN {there} THEN {differ} END)"

    def _match(self, node: Match) -> str:
        pattern = node.regex.for_dialect(self._sql.name)
        if node.ref.kind == "table":
            table, schema = self._sql.identifier("table"), self._sql.identifier("schema")
            qualified = self._sql.search(f"concat({schema}, '.', {table})", pattern)
            return f"({self._sql.search(table, pattern)} OR {qualified})"
        text = self._column(node.ref) if node.ref.kind == "column" else self._name(node.ref)
        return self._sql.search(text, pattern)

    def _is_null(self, ref: Ref) -> str:
        if ref.column is None:
            return f"({self._name(ref)} IS NULL)"
        sql = self._sql
        row = self._name(ref)
        known = f"WHEN {sql.has(row, ref.column)} THEN {sql.value(row, ref.column)} IS NULL"
        if ref.side != "after":
            return f"(CASE {known} END)"
        return f"(CASE {known} WHEN {sql.contains(sql.identifier('unchanged'), ref.column)} THEN FALSE END)"

    def _is_unchanged(self, ref: Ref) -> str:
        assert ref.column is not None
        sql = self._sql
        unchanged = sql.contains(sql.identifier("unchanged"), ref.column)
        return f"(CASE WHEN {unchanged} THEN TRUE WHEN {sql.has(self._name(ref), ref.column)} THEN FALSE END)"

    # Columns as text, and as numbers.

    def _column(self, ref: Ref) -> str:
        if ref.column is None:
            return self._sql.values(self._name(ref))
        return self._sql.value(self._name(ref), ref.column)

    def _is_number(self, text: str) -> str:
        return self._sql.search(text, f"^(?:{NUMBER})\\z")

    def _sort_key(self, text: str) -> str:
        """Return what makes of ``text``, a number, what `query_values.sort_key` makes of it."""
        parts = self._sql.text(NUMBER_PARTS)
        whole, behind = (f"regexp_extract({text}, {parts}, {group})" for group in (1, 2))
        exponent = f"coalesce(try_cast(regexp_extract({text}, {parts}, 3) AS INT), 0)"
        left, right = (f"greatest({sign}{exponent}, 0)" for sign in "- ")
        digits = f"concat(repeat('0', {left}), {whole}, {behind}, repeat('0', {right}))"
        point = f"(length({whole}) + {right})"
        whole = self._sql.strip("l", f"substr({digits}, 1, {point})")
        behind = self._sql.strip("r", f"substr({digits}, {point} + 1)")
        length = f"lpad(CAST(length({whole}) AS STRING), {LENGTH_DIGITS}, '0')"
        key = f"concat({length}, {whole}, '.', {behind})"
        negative = f"substr({text}, 1, 1) = '-' AND concat({whole}, {behind}) <> ''"
        turned = f"concat('0', translate({key}, '0123456789', '9876543210'), '~')"
        return f"(CASE WHEN {negative} THEN {turned} ELSE concat('1', {key}) END)"
