"""The tokens of a query, and the error that points at one of them."""

import re
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len

from bwtui.errors import UsageError

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
