r"""Escape text for people: nothing in it moves the cursor, is invisible, or reverses the text around it.

Row values, names and error texts come from databases, topics and files that others write. Characters that
aren't printable are shown as Python would write them: ``\x1b``, ``\u202e``, ``\n``. That is not reversible,
since a backslash stays one; use copy or export for exact text.
"""

import json
import re
from typing import Any

#: Invisible characters whose Unicode category is nevertheless letter or mark.
_INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\uffa0\ufe00-\ufe0d\U000e0100-\U000e01ef"
_HIDDEN = re.compile(f"[{_INVISIBLE}]")
#: Spaces that Python does not consider printable; they are harmless, and whole scripts use them.
_SPACES = frozenset("\xa0\u1680\u202f\u205f\u3000").union(map(chr, range(0x2000, 0x200B)))
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


class _EscapeTable(dict[int, str]):
    """The text for each character, computed when it first occurs."""

    def __missing__(self, code: int) -> str:
        text = self[code] = _escape_sequence(chr(code))
        return text


def _escape_sequence(character: str) -> str:
    if (character.isprintable() and not _HIDDEN.match(character)) or character in _SPACES:
        return character
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_TABLE = _EscapeTable()
_LINES = _EscapeTable({ord("\n"): "\n"})


def is_plain(text: str) -> bool:
    """Return whether every character of ``text`` may be sent to a terminal unchanged."""
    return text.isprintable() and (text.isascii() or _HIDDEN.search(text) is None)


def escape(text: str) -> str:
    r"""Return ``text`` on one line, with escapes for what isn't printable; the function is idempotent.

    >>> shown("\x1b[2Jclean\n")
    '\\x1b[2Jclean\\n'
    """
    return text if is_plain(text) else text.translate(_TABLE)


def escape_lines(text: str) -> str:
    """Return the same for a text whose line breaks are intended, or can't be mistaken for others."""
    return text if is_plain(text) else text.translate(_LINES)


def shorten(text: str, limit: int) -> str:
    """Return `escape` of the first ``limit`` characters, with … if there are more."""
    return escape(text) if len(text) <= limit else escape(text[: limit - 1]) + "…"


def escape_json(text: str) -> str:
    r"""Return JSON with ``\uXXXX`` in strings for what isn't printable: it means the same."""
    return text if is_plain(text) else _JSON_CHARACTER.sub(_json_escape, text)


def json_text(value: Any, **more: Any) -> str:
    """Return ``value`` as JSON that contains only printable ASCII and line breaks."""
    # Only one character that JSON leaves unescaped is not printable.
    return json.dumps(value, **more).replace("\x7f", "\\u007f")


# JSON itself has line breaks between its parts, and never within a string.
_JSON_CHARACTER = re.compile(r"[^\n\x20-\x7e]")


def _json_escape(match: re.Match[str]) -> str:
    character = match[0]
    return character if _TABLE[ord(character)] == character else json_text(character)[1:-1]
