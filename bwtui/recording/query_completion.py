"""Complete queries (fields, operators, words and names that may follow), and parse queries on rows."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from bwtui.recording.query_language import Query, fields_of, parse
from bwtui.recording.query_syntax import BY_NAME, SIDES, FieldName, QueryError, Token, tokens

# Completion of a query: fields, operators, words and names that may follow.

#: What may follow: a field, an operator, the operand of "is" or "in", a value, or "and"/"or".
Expected = Literal["field", "operator", "null", "list", "value", "join"]

#: Names without quotes: a completion continues what was typed.
_PLAIN = re.compile(r"[\w.-]+")
#: What follows a field: an operator with its value, or one of these; a switch needs no operator.
_AFTER_FIELD: dict[str, Expected] = {
    "is": "null",
    "in": "list",
    "not": "operator",
    "and": "field",
    "or": "field",
    ")": "join",
}


@dataclass(frozen=True, slots=True)
class QueryNames:
    """Tables and columns of a recording."""

    tables: Sequence[str] = ()
    columns: Sequence[str] = ()


def completed(text: str, names: QueryNames) -> str | None:
    """Return ``text`` with its last word completed or the next word added; None if there is no completion."""
    try:
        typed = tokens(text)[:-1]
    except QueryError:
        return None
    begun = typed[-1] if typed and typed[-1].kind == "word" and not text[-1:].isspace() else None
    expected, field = _expected(typed[:-1] if begun else typed)
    prefix = text[begun.column :] if begun else ""
    if begun is None and text and not text[-1].isspace() and text[-1] != "(":
        # After an operator or a quoted text, a space is needed first.
        return None
    for candidate in _candidates(expected, field, prefix, names):
        if len(candidate) > len(prefix) and candidate.lower().startswith(prefix.lower()):
            return text[: len(text) - len(prefix)] + candidate
    return None


def _expected(before: Iterable[Token]) -> tuple[Expected, FieldName | None]:
    """Return what may follow these tokens, and the field of the current condition."""
    expected: Expected = "field"
    field: FieldName | None = None
    for token in before:
        if expected == "field":
            if not (token.is_word("not") or token.is_operator("(")):
                field = BY_NAME.get(token.text.partition(".")[0].lower())
                field = None if "." in token.text else field
                expected = "operator"
        elif expected == "operator":
            expected = _AFTER_FIELD.get(token.text.lower(), "value")
        elif expected == "list":
            expected = "value"
        elif expected == "join":
            expected = (
                "value" if token.is_operator(",") else "field" if token.is_word("and", "or") else "join"
            )
        elif not token.is_word("not"):
            expected = "join"
    return expected, field


def _candidates(expected: Expected, field: FieldName | None, prefix: str, names: QueryNames) -> Iterable[str]:
    if expected == "field":
        side, dot, _ = prefix.partition(".")
        if dot and side.lower() in SIDES:
            return [f"{side}.{column}" for column in names.columns if _PLAIN.fullmatch(column)]
        return [*(f"{name}." if name in SIDES else name for name in BY_NAME), "not"]
    if expected == "operator":
        operators = field.operators if field is not None else ("=", "in")
        return [*(operator for operator in operators if operator not in ("in", "not")), "in (", "is null"]
    if expected == "value":
        return _values(field, names)
    return {"null": ("null", "not null", "unchanged"), "list": ("(",), "join": ("and", "or")}[expected]


def _values(field: FieldName | None, names: QueryNames) -> Iterable[str]:
    if field is None:
        return ()
    if field.kind == "table":
        bare = [name.removeprefix("public.") for name in names.tables]
        return [name for name in (*bare, *names.tables) if _PLAIN.fullmatch(name)]
    return ("true", "false") if field.kind == "switch" else field.words


# Queries on a table's rows as of a position: the same language, restricted to the fields of a row.

#: The fields of a row; all other fields belong to changes.
ROW_FIELDS = ("after", "key", "table", "schema", "position")


def parse_row_query(text: str) -> Query:
    """Parse a query on rows. Raises QueryError, also for fields that only changes have."""
    query = parse(text)
    for name in fields_of(query):
        if name not in ROW_FIELDS:
            heads = ((token.text.partition(".")[0].lower(), token.column) for token in tokens(text))
            column = next((column for head, column in heads if head == name), 0)
            raise QueryError(
                f"rows have no field {name!r}",
                text,
                column,
                f"rows have {', '.join(ROW_FIELDS)}",
            )
    return query
