"""Parse a query's text to its tree, by recursive descent over the tokens.

::

    query      = either
    either     = both { "or" both }
    both       = single { "and" single }
    single     = "not" single | "(" either ")" | condition
    condition  = field [ operator value | ["not"] "in" "(" value { "," value } ")"
                       | "is" ["not"] ( "null" | "unchanged" ) ]
"""

from collections.abc import Iterable
from difflib import get_close_matches

from bwtui.model.lsn import parse_lsn
from bwtui.options import nearest, parse_switch, split_advice
from bwtui.recording.query.fields import BY_NAME, SIDES, FieldName, FieldRef, Side
from bwtui.recording.query.regex import Regex, RegexError, parse_regex
from bwtui.recording.query.syntax import (
    And,
    Compare,
    IsNull,
    IsUnchanged,
    Match,
    Node,
    Not,
    Operand,
    Or,
    Order,
    TextOperand,
)
from bwtui.recording.query.tokens import QueryError, Token, tokens
from bwtui.recording.query.values import as_time, as_whole

_RESERVED = ("and", "or", "not", "in", "is", "null", "unchanged")
_OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~", "!~")
_ORDERS: dict[str, Order] = {"=": "=", "!=": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_DEEPEST = 100
#: Minimum similarity of a misspelt word to the intended one; 1 is identical. "water" is not "after".
_MISSPELT = 0.85


def parse_tree(text: str, end: int | None = None) -> Node:
    """Parse ``text``; times like ``-5m`` are relative to ``end``. Raises QueryError."""
    return _Parser(text, end).parse()


class _Parser:
    def __init__(self, text: str, end: int | None) -> None:
        self._text = text
        self._end = end
        self._tokens = tokens(text)
        self._at = 0
        self._depth = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _at_end(self) -> bool:
        return self._token.kind == "end"

    def _take(self) -> Token:
        token = self._token
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _error(self, problem: str, token: Token, hint: str) -> QueryError:
        return QueryError(problem, self._text, token.column, hint)

    def parse(self) -> Node:
        if self._at_end():
            hint = "write conditions like: table = orders and op = update"
            raise self._error("the query is empty", self._token, hint)
        node = self._either()
        if not self._at_end():
            raise self._unexpected("'and', 'or' or the end")
        return node

    def _unexpected(self, expected: str) -> QueryError:
        token = self._token
        hint = "see docs/query.md: conditions are joined by and, or, not and parentheses"
        before = self._tokens[self._at - 1] if self._at else None
        if token.is_operator(")"):
            hint = "it has no matching '('"
        elif before is not None and before.kind == "word" and token.kind in ("word", "string", "operator"):
            close = (
                nearest(token.text.lower(), ("and", "or", "in", "is", "not"))
                if token.kind == "word"
                else None
            )
            hint = (
                f"did you mean {close!r}?" if close else "a value with spaces or signs is written in 'quotes'"
            )
        return self._error(f"expected {expected}, but found {token.shown}", token, hint)

    # Conditions among each other.

    def _either(self) -> Node:
        parts = [self._both()]
        while self._token.is_word("or"):
            self._take()
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _both(self) -> Node:
        parts = [self._single()]
        while self._token.is_word("and"):
            self._take()
            parts.append(self._single())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _single(self) -> Node:
        negated = False
        while self._token.is_word("not"):
            self._take()
            negated = not negated
        node = self._group() if self._token.is_operator("(") else self._condition()
        return Not(node) if negated else node

    def _group(self) -> Node:
        begin = self._take()
        self._depth += 1
        if self._depth > _DEEPEST:
            hint = "remove some: 'and' binds tighter than 'or', and 'not' tighter than both"
            raise self._error(f"more than {_DEEPEST} nested parentheses", begin, hint)
        node = self._either()
        if not self._token.is_operator(")"):
            expected = "'and', 'or' or ')'"
            if self._token.kind == "end":
                raise self._error(
                    f"expected {expected}, but found the end", self._token, "a '(' is not closed"
                )
            raise self._unexpected(expected)
        self._take()
        self._depth -= 1
        return node

    # One condition.

    def _condition(self) -> Node:
        token = self._token
        if token.kind != "word" or token.is_word(*_RESERVED):
            raise self._error(f"expected a field, but found {token.shown}", token, _listed(BY_NAME))
        ref = self._ref(self._take())
        if self._token.is_word("is"):
            return self._is(ref)
        if self._token.is_word("in", "not"):
            return self._in(ref)
        if self._token.kind == "operator" and self._token.text in _OPERATORS:
            return self._operation(ref)
        if ref.kind == "switch":
            return Compare(ref, "=", True)
        raise self._missing_operator(ref, token)

    def _missing_operator(self, ref: FieldRef, token: Token) -> QueryError:
        if ref.kind in ("row", "columns"):
            return self._wrong_operator(ref, token)
        return self._unexpected(f"an operator after {ref.shown!r}")

    def _ref(self, token: Token) -> FieldRef:
        name, dot, column = token.text.partition(".")
        field = BY_NAME.get(name.lower())
        if field is None:
            raise self._no_such_field(name, token)
        if not dot:
            return FieldRef(field)
        if field.name not in SIDES:
            raise self._error(f"{name!r} has no columns", token, "columns are in before, after and key")
        if "." in column:
            hint = f'a name with a dot is written {name}."{column}"'
            raise self._error(f"{token.text!r} has two dots", token, hint)
        if token.quoted is not None:
            column = token.quoted
        if not column:
            raise self._error(f"expected a column after {token.text!r}", token, f"name one: {name}.id")
        return FieldRef(field, column)

    def _no_such_field(self, name: str, token: Token) -> QueryError:
        close = nearest(name.lower(), BY_NAME)
        column = f"a column is written after.{name}, before.{name} or key.{name}"
        hint = f"did you mean {close!r}? {column}" if close else f"{column}; {_listed(BY_NAME)}"
        return self._error(f"there is no field {name!r}", token, hint)

    def _is(self, ref: FieldRef) -> Node:
        self._take()
        negated = self._token.is_word("not")
        if negated:
            self._take()
        token = self._token
        if not token.is_word("null", "unchanged"):
            raise self._unexpected("'null' or 'unchanged'")
        self._take()
        if token.is_word("unchanged"):
            if ref.column is None or ref.side != "after":
                hint = "only columns of the new row can be unchanged: after.column is unchanged"
                raise self._error(f"{ref.shown} is never unchanged", token, hint)
            return Not(IsUnchanged(ref)) if negated else IsUnchanged(ref)
        if ref.kind in ("columns", "switch"):
            raise self._error(f"{ref.shown} is never null", token, f"it takes {', '.join(ref.operators)}")
        return Not(IsNull(ref)) if negated else IsNull(ref)

    def _in(self, ref: FieldRef) -> Node:
        token = self._take()
        negated = token.is_word("not")
        if negated and not self._token.is_word("in"):
            raise self._unexpected("'in'")
        if negated:
            self._take()
        self._check_operator(ref, "in", token)
        if not self._token.is_operator("("):
            raise self._unexpected("'(' and a list of values")
        self._take()
        parts: list[Node] = [Compare(ref, "=", self._operand(ref, "="))]
        while self._token.is_operator(","):
            self._take()
            parts.append(Compare(ref, "=", self._operand(ref, "=")))
        if not self._token.is_operator(")"):
            raise self._unexpected("',' or ')'")
        self._take()
        node = parts[0] if len(parts) == 1 else Or(tuple(parts))
        return Not(node) if negated else node

    def _operation(self, ref: FieldRef) -> Node:
        token = self._take()
        self._check_operator(ref, token.text, token)
        if token.text in ("~", "!~"):
            node: Node = Match(ref, self._regex())
        else:
            order = _ORDERS[token.text]
            node = Compare(ref, order, self._operand(ref, order))
        return Not(node) if token.text in ("!=", "!~") else node

    def _check_operator(self, ref: FieldRef, operator: str, token: Token) -> None:
        if ref.kind == "row" or operator not in ref.operators:
            raise self._wrong_operator(ref, token)

    def _wrong_operator(self, ref: FieldRef, token: Token) -> QueryError:
        if ref.kind == "row":
            hint = f"name a column, {ref.shown}.column, or write: {ref.shown} is null"
            return self._error(f"{ref.shown!r} is a whole row", token, hint)
        return self._error(
            f"{ref.shown!r} does not have this operator", token, f"it takes {', '.join(ref.operators)}"
        )

    # Values.

    def _value(self, *, is_column: bool = False) -> Token:
        token = self._token
        if token.is_word("null"):
            raise self._error("nothing equals null", token, "write: is null, or: is not null")
        if token.is_word(*_RESERVED):
            raise self._error(
                f"expected a value, but found {token.shown}", token, "quote it if it is a value"
            )
        if token.kind not in ("word", "string"):
            hint = "write a value; put one with spaces or signs in 'quotes'"
            raise self._error(f"expected a value, but found {token.shown}", token, hint)
        if token.is_name and not is_column:
            hint = "a value is written in 'single quotes', a column after.\"name\""
            raise self._error("double quotes are for names of columns", token, hint)
        return self._take()

    def _regex(self) -> Regex:
        token = self._value()
        if (side := _side_meant(token)) is not None:
            raise self._no_column_here("an expression", side, token)
        try:
            return parse_regex(_plain(token))
        except RegexError as error:
            inside = error.offset + (token.kind == "string")
            raise QueryError(str(error), self._text, token.column + inside, error.hint) from error

    def _operand(self, ref: FieldRef, order: Order) -> Operand:
        kind = ref.kind
        token = self._value(is_column=kind == "columns")
        if kind == "column":
            return self._column_operand(token, order)
        if (side := _side_meant(token)) is not None:
            raise self._no_column_here(repr(ref.shown), side, token)
        text = _plain(token)
        if kind == "words":
            return TextOperand(self._one_of(ref.field, text, token))
        try:
            return _converted(kind, text, self._end)
        except ValueError as error:
            problem, advice = split_advice(error)
            raise self._error(problem, token, advice) from error

    def _column_operand(self, token: Token, order: Order) -> Operand:
        if token.kind == "string":
            return TextOperand(token.text)
        head, dot, column = token.text.partition(".")
        side = _side_meant(token)
        if side is not None and side == head.lower():
            return self._ref(token)
        if side is not None:
            hint = f"did you mean {side}.{column}? a text is written in 'quotes'"
            raise self._error(f"there is no row {head!r}", token, hint)
        if order != "=" and dot and head.isidentifier():
            hint = "columns are in before, after and key; a text is written in 'quotes'"
            raise self._error(f"there is no row {head!r}", token, hint)
        if order != "=" and head.lower() in BY_NAME:
            hint = f"write after.{head} for a column, and '{head}' in quotes for the text"
            raise self._error(f"a column can't be compared with the field {head!r}", token, hint)
        return TextOperand(_plain(token), bare=True)

    def _no_column_here(self, what: str, side: Side, token: Token) -> QueryError:
        shown = _plain(token)
        hint = f"only columns can be compared with columns; put a text in quotes: '{shown}'"
        return self._error(f"{what} can't be compared with a column of {side!r}", token, hint)

    def _one_of(self, field: FieldName, text: str, token: Token) -> str:
        if text.lower() in field.words:
            return text.lower()
        close = nearest(text.lower(), field.words)
        hint = f"did you mean {close!r}?" if close else _listed(field.words)
        raise self._error(f"{field.name} is never {text!r}", token, hint)


def _converted(kind: str, text: str, end: int | None) -> Operand:
    """Convert ``text`` to a value of a field of this kind. Raises ValueError."""
    if kind == "lsn":
        return parse_lsn(text)
    if kind == "time":
        return as_time(text, end)
    if kind == "switch":
        return parse_switch(text)
    if kind == "whole":
        number = as_whole(text)
        if number is None:
            raise ValueError(f"{text!r} is not a whole number (such as 42 or -7)")
        return number
    return TextOperand(text)


def _side_meant(token: Token) -> Side | None:
    """Return the row whose column a word names, or probably was meant to name; None for any other text."""
    head, dot, _ = token.text.partition(".")
    if token.kind != "word" or not dot:
        return None
    meant = get_close_matches(head.lower(), SIDES, 1, _MISSPELT)
    return next((side for side in SIDES if side in meant), None)


def _plain(token: Token) -> str:
    return token.text if token.quoted is None else f'{token.text}"{token.quoted}"'


def _listed(words: Iterable[str]) -> str:
    return f"use one of {', '.join(words)}"
