r"""Regular expressions that mean the same in every engine that searches a recording.

Engines differ in what ``$``, ``\s`` and ``\w`` match, in case folding, and in their extensions. So this
module parses an expression and rewrites it with elements that all of them treat alike: literals, ``.``,
``[classes]``, ``\d \w \s`` (ASCII) and their opposites, ``^ $ \b``, groups, ``|``, the quantifiers, and
``(?i)`` at the beginning, for the letters a to z.

Searches use RE2, as DuckDB does: its time grows only with the text's length, whatever the expression.
Python's own engine can take forever on ``(a+)+$``.
"""

import re
from dataclasses import dataclass
from typing import Any

import re2

_WORD_CLASS = "0-9A-Za-z_"
_CLASSES = {"d": "0-9", "w": _WORD_CLASS, "s": r"\t\n\x0b\x0c\r "}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_QUANTIFIER = re.compile(r"(?:[*+?]|\{(\d{1,6})(,?)(\d{0,6})\})\??")
#: RE2's limit on repetitions, where nested ones multiply.
_MOST_REPEATS = 1000
_DEEPEST = 50


class RegexError(ValueError):
    """An invalid expression; ``offset`` is the place of the error in it."""

    def __init__(self, problem: str, offset: int, hint: str) -> None:
        super().__init__(problem)
        self.offset = offset
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Regex:
    """An expression as it was written and as RE2 reads it; it may match anywhere in a text."""

    text: str
    re2: str
    #: The compiled expression; use only whether `search` finds a match.
    pattern: Any


def parse_regex(text: str) -> Regex:
    """Parse a regular expression. Raises RegexError."""
    body, ignore_case = (text[4:], True) if text.startswith("(?i)") else (text, False)
    parts = _RegexParser(body, ignore_case, len(text) - len(body)).read()
    written = "".join(r"\z" if part == "$" else part for part in parts)
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        pattern = re2.compile(written, options)
    except re2.error as error:
        reason = "it is too large" if "too large" in str(error) else "RE2 can't read it"
        raise RegexError(
            f"not a regular expression: {reason}", 0, "make it shorter, or split it into two conditions"
        ) from error
    return Regex(text, written, pattern)


class _RegexParser:
    """Parses one expression from left to right into ``parts``."""

    def __init__(self, text: str, ignore_case: bool, shift: int) -> None:
        self._text = text
        self._ignore_case = ignore_case
        self._shift = shift
        self._at = 0
        self._open: list[tuple[int, int]] = []
        self._parts: list[str] = []
        #: True if a quantifier may follow.
        self._repeatable = False
        #: Maximum repetitions of the open group, or of the last element.
        self._repeats = 1
        #: The same for the last group that ended.
        self._inside = 1

    def read(self) -> list[str]:
        """Return the parts: each is a regular expression of its own, or ``$``, or ``\\b``."""
        while self._at < len(self._text):
            self._step(self._text[self._at])
        if self._open:
            raise self._error(
                "a parenthesis that is not closed",
                self._open[-1][0],
                r"close it, or write \( for the character",
            )
        return self._parts

    def _step(self, character: str) -> None:
        if character in "*+?{":
            self._quantifier()
        elif character == "(":
            self._begin_group()
        elif character == ")":
            self._end_group()
        elif character == "|":
            self._add("|", 1, repeatable=False)
        elif character in "^$":
            self._add(character, 1, repeatable=False)
        elif character == ".":
            self._add(r"[^\n]", 1)
        elif character == "[":
            self._class()
        elif character == "\\":
            self._escape()
        else:
            self._add(self._literal(character), 1)

    def _add(self, part: str, length: int, *, repeatable: bool = True) -> None:
        self._parts.append(part)
        self._at += length
        self._repeatable = repeatable

    def _literal(self, character: str) -> str:
        if self._ignore_case and character.isascii() and character.isalpha():
            return f"[{character.lower()}{character.upper()}]"
        return _quoted(character)

    def _begin_group(self) -> None:
        begin = self._at
        length = 3 if self._text.startswith("(?:", begin) else 1
        if length == 1 and self._text.startswith("(?", begin):
            raise self._error(
                "'(?' is supported only as (?:…), or as (?i) at the beginning",
                begin,
                "remove it: group names, lookarounds and flags within the expression are not supported",
            )
        if len(self._open) >= _DEEPEST:
            raise self._error(
                f"more than {_DEEPEST} nested groups",
                begin,
                "remove some, or split it into two conditions",
            )
        self._add("(?:", length, repeatable=False)
        self._open.append((begin, self._repeats))
        self._repeats = 1

    def _end_group(self) -> None:
        if not self._open:
            raise self._error(
                "a parenthesis that was not opened", self._at, r"remove it, or write \) for the character"
            )
        _, outside = self._open.pop()
        self._add(")", 1)
        self._inside = self._repeats
        self._repeats = max(outside, self._inside)

    def _quantifier(self) -> None:
        match = _QUANTIFIER.match(self._text, self._at)
        if match is None:
            raise self._error(
                "'{' has to be written \\{ if it is not a quantifier",
                self._at,
                r"a quantifier is {3}, {3,} or {3,5}",
            )
        if not self._repeatable:
            raise self._error(
                f"nothing before {match[0]!r} to repeat",
                self._at,
                "put the repeated part before it, or write a backslash before the character",
            )
        least, most = int(match[1] or 0), int(match[3] or match[1] or 0)
        of_group = self._parts[-1] == ")"
        total = max(least, most, 1) * (self._inside if of_group else 1)
        if match[3] and most < least:
            raise self._error(
                f"{match[0]!r} has a maximum below its minimum", self._at, "swap its two numbers"
            )
        if total > _MOST_REPEATS:
            raise self._error(
                f"more than {_MOST_REPEATS} repetitions",
                self._at,
                "use fewer; nested quantifiers multiply",
            )
        self._repeats = max(self._repeats, total)
        self._add(match[0], len(match[0]), repeatable=False)

    def _escape(self) -> None:
        character = self._text[self._at + 1 : self._at + 2]
        if character in ("b", "B"):
            if character == "B":
                raise self._error(
                    r"\B is not supported", self._at, r"only \b is; write the expected characters instead"
                )
            self._add(r"\b", 2, repeatable=False)
        elif character and character in "dws":
            self._add(f"[{_CLASSES[character]}]", 2)
        elif character and character in "DWS":
            self._add(f"[^{_CLASSES[character.lower()]}]", 2)
        else:
            self._add(_quoted(self._escaped()), 2)

    def _escaped(self) -> str:
        """Return the character that a backslash escapes."""
        character = self._text[self._at + 1 : self._at + 2]
        if not character:
            raise self._error("a backslash at the end", self._at, r"write \\ for the character")
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character.isalnum():
            raise self._error(
                f"\\{character} is not supported",
                self._at,
                r"letters need no backslash; the supported escapes are \d \w \s \D \W \S \b \t \n \r \f \v",
            )
        return character

    # Classes.

    def _class(self) -> None:
        begin = self._at
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        members: list[str] = []
        while True:
            if self._at >= len(self._text):
                raise self._error(
                    "a [ that is not closed", begin, r"close it with ], or write \[ for the character"
                )
            if self._text[self._at] == "]" and members:
                break
            members.append(self._member())
        self._add(f"[{'^' if negated else ''}{''.join(members)}]", 1)

    def _member(self) -> str:
        if self._text[self._at] == "\\" and self._text[self._at + 1 : self._at + 2] in tuple("dws"):
            self._at += 2
            return _CLASSES[self._text[self._at - 1]]
        begin = self._at
        first = self._one()
        if self._text[self._at : self._at + 1] != "-" or self._text[self._at + 1 : self._at + 2] in ("", "]"):
            return self._range(first, first, begin)
        self._at += 1
        return self._range(first, self._one(), begin)

    def _one(self) -> str:
        character = self._text[self._at]
        if character == "\\":
            character = self._escaped()
            self._at += 1
        elif character == "[":
            raise self._error(
                "'[' within a class is written \\[",
                self._at,
                r"put a backslash before it; [:alpha:] and the like are not supported",
            )
        self._at += 1
        return character

    def _range(self, first: str, last: str, begin: int) -> str:
        if last < first:
            raise self._error(
                "a range that ends before it begins",
                begin,
                r"swap its ends, or write \- for the character",
            )
        written = _span(first, last)
        if self._ignore_case:
            for low, high, other in (("a", "z", "A"), ("A", "Z", "a")):
                begins, ends = max(first, low), min(last, high)
                if begins <= ends:
                    shift = ord(other) - ord(low)
                    written += _span(chr(ord(begins) + shift), chr(ord(ends) + shift))
        return written

    def _error(self, problem: str, at: int, hint: str) -> RegexError:
        return RegexError(problem, at + self._shift, hint)


def _span(first: str, last: str) -> str:
    return _quoted(first) if first == last else f"{_quoted(first)}-{_quoted(last)}"


def _quoted(character: str) -> str:
    """Return a pattern for ``character`` itself that every engine accepts, inside and outside a class."""
    if character.isascii() and not character.isalnum() and character != "_":
        return f"\\x{ord(character):02x}"
    return character
