"""The syntax of queries: tokens, fields, values, the tree, and the parser."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Literal, cast, get_args

import re2
from rich.cells import cell_len

from bwtui.errors import UsageError
from bwtui.model.lsn import parse_lsn
from bwtui.options import nearest, parse_switch, split_advice
from bwtui.recording.change import DeliveryState, Operation

# The tokens of a query, and the error that points at one of them.

TokenKind = Literal["word", "string", "operator", "end"]

#: A word without quotes.
_WORD = re.compile(r"[^\s()=!<>~,'\"\0]+")
_OPERATOR = re.compile(r"!=|<>|<=|>=|==|!~|[=<>~(),]")
_SYNONYMS = {"<>": "!=", "==": "="}
#: Possessive, so that re keeps no state per character. The lookahead keeps a doubled quote together: a single
#: one ends the text.
_STRING = {
    quote: re.compile(f"{quote}([^{quote}]*+(?:(?={quote}{quote})..[^{quote}]*+)*+){quote}")
    for quote in "'\""
}
_UNSEEN = re.compile(r"[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


_NO_CHARACTER = "remove it: PostgreSQL's texts contain no zero bytes and no incomplete characters"


class QueryError(UsageError):
    """A query that can't be parsed; ``column`` is the place of the error in ``text``, from 0."""

    def __init__(self, problem: str, text: str, column: int, hint: str) -> None:
        super().__init__(f"query, column {column + 1}: {problem}", hint)
        self.problem = problem
        self.text = text
        self.column = column

    @property
    def rendered(self) -> str:
        """The query on one line, with a caret under the column."""
        before, after = (
            _UNSEEN.sub(" ", part) for part in (self.text[: self.column], self.text[self.column :])
        )
        return f"{before}{after}\n{' ' * cell_len(before)}^"


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a quoted string, an operator, or the end; it begins at ``column``."""

    kind: TokenKind
    text: str
    column: int
    #: The text in double quotes after a word's last dot: ``after."odd name"``.
    quoted: str | None = None
    #: True if a string is in double quotes, like a name.
    is_name: bool = False

    def is_word(self, *words: str) -> bool:
        """Return whether it is one of these keywords, in any case."""
        return self.kind == "word" and self.quoted is None and self.text.lower() in words

    def is_operator(self, *operators: str) -> bool:
        """Return whether it is one of these operators."""
        return self.kind == "operator" and self.text in operators

    @property
    def shown(self) -> str:
        """Its name in error messages."""
        if self.kind == "end":
            return "the end"
        if self.kind == "string":
            return "a quoted text"
        return repr(self.text if self.quoted is None else f'{self.text}"{self.quoted}"')


def tokens(text: str) -> list[Token]:
    """Split ``text`` into tokens; the last one is the end. Raises QueryError."""
    result, at = [], 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        token, at = _token(text, at)
        result.append(token)
    result.append(Token("end", "", len(text)))
    return result


def _token(text: str, at: int) -> tuple[Token, int]:
    if text[at] in _STRING:
        value, end = _string(text, at)
        return Token("string", value, at, is_name=text[at] == '"'), end
    if match := _OPERATOR.match(text, at):
        return Token("operator", _SYNONYMS.get(match[0], match[0]), at), match.end()
    if text[at] == "!":
        raise QueryError("'!' is not an operator", text, at, "write != or !~, or not")
    match = _WORD.match(text, at)
    if match is None:
        raise QueryError("a zero byte", text, at, _NO_CHARACTER)
    _check_characters(match[0], text, at)
    end = match.end()
    if match[0].endswith(".") and text[end : end + 1] == '"':
        name, end = _string(text, end)
        return Token("word", match[0], at, name), end
    return Token("word", match[0], at), end


def _string(text: str, at: int) -> tuple[str, int]:
    quote = text[at]
    match = _STRING[quote].match(text, at)
    if match is None:
        raise QueryError("a quote that is not closed", text, at, f"a {quote} within a text is written twice")
    _check_characters(match[1], text, at)
    return match[1].replace(quote * 2, quote), match.end()


def _check_characters(value: str, text: str, at: int) -> None:
    # PostgreSQL's texts contain no zero bytes, and half of a surrogate pair is not a character.
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise QueryError("a text that no value can contain", text, at, _NO_CHARACTER)


# The fields of a query: their names, types and operators.

FieldKind = Literal["table", "text", "words", "whole", "lsn", "time", "columns", "switch", "row", "column"]
#: The row of a change in which a column is looked up.
Side = Literal["before", "after", "key"]

SIDES: tuple[Side, ...] = get_args(Side)
WITHOUT = ("dropped", "superseded", "unkeyed", "truncated")

EQUAL = ("=", "!=", "in")
MATCHING = (*EQUAL, "~", "!~")
ORDERED = (*EQUAL, "<", "<=", ">", ">=")
ALL = (*ORDERED, "~", "!~")


@dataclass(frozen=True, slots=True)
class FieldName:
    """A field that a query can name."""

    name: str
    kind: FieldKind
    help: str
    operators: tuple[str, ...] = ALL
    #: The allowed values of a field of kind ``words``.
    words: tuple[str, ...] = ()
    #: True if each message of a change has its own value.
    of_message: bool = False


FIELDS: tuple[FieldName, ...] = (
    FieldName("table", "table", "orders, or with its schema: public.orders", MATCHING),
    FieldName("schema", "text", "the table's schema"),
    FieldName("op", "words", "the operation", MATCHING, get_args(Operation)),
    FieldName("lsn", "lsn", "the transaction's commit LSN: 0/1A2B", ORDERED),
    FieldName("ordinal", "whole", "the change's number within its transaction", ORDERED),
    FieldName("xid", "whole", "the transaction's id", ORDERED),
    FieldName("position", "whole", "the change's number within the recording", ORDERED),
    FieldName("time", "time", "when the transaction was committed; also commit_time", ORDERED),
    FieldName("commit_time", "time", "the same as time", ORDERED),
    FieldName("received", "time", "when the relay recorded it", ORDERED),
    FieldName("topic", "text", "the message's topic", of_message=True),
    FieldName("partition", "whole", "the message's partition", ORDERED, of_message=True),
    FieldName("offset", "whole", "the message's offset", ORDERED, of_message=True),
    FieldName(
        "state", "words", "the message's delivery state", MATCHING, get_args(DeliveryState), of_message=True
    ),
    FieldName("key", "column", "the message's key as text; key.column: one of its columns", of_message=True),
    FieldName(
        "before", "row", "the old row, as far as PostgreSQL sent it; before.column: one of its columns"
    ),
    FieldName("after", "row", "the new row; after.column: one of its columns"),
    FieldName("changed", "columns", "a column whose old and new values are known and differ", EQUAL),
    FieldName("repeat", "switch", "whether the recording already had this change before", EQUAL),
    FieldName("without", "words", "why there is no message", MATCHING, WITHOUT),
)
BY_NAME = {field.name: field for field in FIELDS}


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A field as a query names it; ``column`` is set for ``before.column`` and the like."""

    field: FieldName
    column: str | None = None

    @property
    def side(self) -> Side:
        """The row that its column is in."""
        return cast(Side, self.field.name)

    @property
    def kind(self) -> FieldKind:
        """The type of its values."""
        return "column" if self.column is not None else self.field.kind

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that it supports."""
        return ALL if self.kind == "column" else self.field.operators

    @property
    def shown(self) -> str:
        """Its name in error messages."""
        return self.field.name if self.column is None else f"{self.field.name}.{self.column}"


# The values in queries: numbers, times, and a text form of numbers that sorts correctly.

#: Texts that are compared as numbers: those that PostgreSQL writes, and those that people write.
NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
#: The same with groups for the digits before the point, after the point, and the exponent.
NUMBER_PARTS = r"^[+-]?([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?\z"
#: Digits of a number's length in `sort_key`; no PostgreSQL text is longer.
LENGTH_DIGITS = 10

#: PostgreSQL's texts of booleans, and the words that people write.
BOOLEANS = {"true": ("t", "true"), "false": ("f", "false")}

_number = re.compile(NUMBER).fullmatch
_parts = re.compile(NUMBER_PARTS.replace(r"\z", r"\Z")).match
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})[T ](?P<time>[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)"
    r" ?(?P<zone>[Zz]|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_RELATIVE = re.compile(r"-([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h|d|w)")
_UNITS = {
    "ms": 1_000,
    "s": 10**6,
    "m": 60 * 10**6,
    "h": 3600 * 10**6,
    "d": 86400 * 10**6,
    "w": 604800 * 10**6,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TURNED = str.maketrans("0123456789", "9876543210")
#: The range of times that every engine accepts as a timestamp.
_FIRST, _LAST = -62135596800 * 10**6, 253402300799 * 10**6


def as_number(text: str) -> Decimal | None:
    """Return ``text`` as an exact number, or None if it is not a number."""
    return Decimal(text) if _number(text) else None


def as_whole(text: str) -> int | None:
    """Return ``text`` as an integer, or None if it is not an integer."""
    return int(text) if _WHOLE.fullmatch(text) else None


def as_time(text: str, end: int | None) -> int:
    """Return the Unix microseconds of an ISO date and time (UTC by default), or of a time like ``-5m``.

    A relative time counts from ``end``. Raises ValueError with a plain sentence.
    """
    if match := _RELATIVE.fullmatch(text):
        if end is None:
            raise ValueError(
                f"{text!r} is relative to the end of a recording, but there is no recording here "
                "(give a date and time)"
            )
        return max(end - int(Decimal(match[1]) * _UNITS[match[2]]), _FIRST)
    try:
        return _iso(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text!r} is not a time (2026-01-31, 2026-01-31T10:15:00.5, with Z or +02:00, or -5m)"
        ) from error


def _iso(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        if not _DATE.fullmatch(text):
            raise ValueError(text)
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    else:
        moment = datetime.fromisoformat(f"{match['date']}T{match['time']}{_zone(match['zone'])}")
    return min(max((moment - _EPOCH) // timedelta(microseconds=1), _FIRST), _LAST)


def _zone(text: str | None) -> str:
    if text is None or text in ("Z", "z", "UTC"):
        return "+00:00"
    return text if len(text) != 3 else f"{text}:00"


def sort_key(text: str) -> str:
    """Return a text that sorts, byte by byte, as the number does.

    SQL has no unbounded numbers, so `sql` computes the same key of a column's value.
    """
    match = _parts(text)
    assert match is not None, text
    whole, fraction, exponent = match[1], match[2] or "", int(match[3] or 0)
    digits = "0" * max(-exponent, 0) + whole + fraction + "0" * max(exponent, 0)
    point = len(whole) + max(exponent, 0)
    whole, fraction = digits[:point].lstrip("0"), digits[point:].rstrip("0")
    key = f"{len(whole):0{LENGTH_DIGITS}d}{whole}.{fraction}"
    if text.startswith("-") and (whole or fraction):
        return f"0{key.translate(_TURNED)}~"
    return f"1{key}"


# A query's syntax tree; `parser` builds it, `match` and `sql` read it.
#
# ``!=``, ``!~``, ``not in`` and ``is not`` are a `Not` around the positive condition: both are unknown for
# null.

Order = Literal["=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class TextOperand:
    """A text to compare with; if it is ``bare`` (not quoted), it may be a number, true or false."""

    value: str
    bare: bool = False


#: Numbers, LSNs and times are ints.
Operand = TextOperand | int | bool | FieldRef


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression for RE2, which both evaluators use; it may match anywhere in a text.

    RE2's time grows only with the text's length, while Python's own engine can take forever on ``(a+)+$``.
    """

    text: str
    pattern: Any


@dataclass(frozen=True, slots=True)
class Compare:
    """``field = value`` and the other orders."""

    ref: FieldRef
    order: Order
    operand: Operand


@dataclass(frozen=True, slots=True)
class Match:
    """``field ~ 'regular expression'``."""

    ref: FieldRef
    regex: Regex


@dataclass(frozen=True, slots=True)
class IsNull:
    """``field is null``."""

    ref: FieldRef


@dataclass(frozen=True, slots=True)
class IsUnchanged:
    """``after.column is unchanged``: a TOAST value that PostgreSQL did not send."""

    ref: FieldRef


@dataclass(frozen=True, slots=True)
class Not:
    """``not part``."""

    part: "Node"


@dataclass(frozen=True, slots=True)
class And:
    """``part and part …``."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """``part or part …``."""

    parts: tuple["Node", ...]


Node = Compare | Match | IsNull | IsUnchanged | Not | And | Or


# Parse a query's text to its tree, by recursive descent over the tokens.
#
# ::
#
#     query      = either
#     either     = both { "or" both }
#     both       = single { "and" single }
#     single     = "not" single | "(" either ")" | condition
#     condition  = field [ operator value | ["not"] "in" "(" value { "," value } ")"
#                        | "is" ["not"] ( "null" | "unchanged" ) ]

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
        hint = "join conditions by and, or, not and parentheses: op = update and (table = a or table = b)"
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
        text = _plain(token)
        if "(?<" in text:
            # Python's RE2 reads named groups in this form, an older RE2 in DuckDB does not.
            raise self._error("not a regular expression: '(?<'", token, "write a plain group: ( )")
        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        try:
            return Regex(text, re2.compile(text, options))
        except re2.error as error:
            reason = error.args[0].decode("utf-8", "replace")
            hint = "docs/query.md describes regular expressions; write \\( to match the character ("
            raise self._error(f"not a regular expression: {reason}", token, hint) from error

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

    def _no_column_here(self, subject: str, side: Side, token: Token) -> QueryError:
        shown = _plain(token)
        hint = f"only columns can be compared with columns; put a text in quotes: '{shown}'"
        return self._error(f"{subject} can't be compared with a column of {side!r}", token, hint)

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
