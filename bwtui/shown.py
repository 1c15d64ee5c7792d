r"""What people see of a text: nothing in it moves a cursor, hides, or turns the letters beside it round.

Row values, names and error texts come from databases, topics and files that others write. Whatever isn't
printable stands there as Python would write it: ``\x1b``, ``\u202e``, ``\n``. That is not reversible, since a
backslash stays one; what has to be exact is copied or exported.
"""

import json
import re
from typing import Any

#: Letters and marks by their category that can't be seen all the same.
_INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\uffa0\ufe00-\ufe0d\U000e0100-\U000e01ef"
_HIDDEN = re.compile(f"[{_INVISIBLE}]")
#: Spaces that Python doesn't take for printable; they harm nobody, and whole scripts are written with them.
_SPACES = frozenset("\xa0\u1680\u202f\u205f\u3000").union(map(chr, range(0x2000, 0x200B)))
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


class _Table(dict[int, str]):
    """What stands for each character, found out when it is first met."""

    def __missing__(self, code: int) -> str:
        text = self[code] = _written(chr(code))
        return text


def _written(character: str) -> str:
    if (character.isprintable() and not _HIDDEN.match(character)) or character in _SPACES:
        return character
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_TABLE = _Table()
_LINES = _Table({ord("\n"): "\n"})


def is_plain(text: str) -> bool:
    """Return whether every character of ``text`` may go to a terminal as it is."""
    return text.isprintable() and (text.isascii() or _HIDDEN.search(text) is None)


def shown(text: str) -> str:
    r"""Return ``text`` in one line, with what isn't printable as escapes; twice is the same as once.

    >>> shown("\x1b[2Jclean\n")
    '\\x1b[2Jclean\\n'
    """
    return text if is_plain(text) else text.translate(_TABLE)


def shown_lines(text: str) -> str:
    """Return the same of a text whose line breaks are meant, or can be mistaken for nothing else."""
    return text if is_plain(text) else text.translate(_LINES)


def shortened(text: str, limit: int) -> str:
    """Return `shown` of the first ``limit`` characters, with … where there are more."""
    return shown(text) if len(text) <= limit else shown(text[: limit - 1]) + "…"


def shown_json(text: str) -> str:
    r"""Return JSON whose strings have ``\uXXXX`` for what isn't printable: it means the same."""
    return text if is_plain(text) else _JSON_CHARACTER.sub(_json_escape, text)


def json_text(value: Any, **more: Any) -> str:
    """Return ``value`` as JSON, with nothing in it but printable ASCII and line breaks."""
    # Of all that JSON lets stand, one character is not printable.
    return json.dumps(value, **more).replace("\x7f", "\\u007f")


# JSON itself has line breaks between its parts, and never within a string.
_JSON_CHARACTER = re.compile(r"[^\n\x20-\x7e]")


def _json_escape(match: re.Match[str]) -> str:
    character = match[0]
    return character if _TABLE[ord(character)] == character else json_text(character)[1:-1]
