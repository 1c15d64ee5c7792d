"""Format statements for hints: complete, quoted, each with its semicolon, on one line.

In a hint they come last, after a colon, so the text from there to the end can be pasted into psql.
"""

import re
from collections.abc import Iterable

# A string literal, or a quoted name; a literal with backslashes has its own escapes.
_QUOTED = re.compile(r"""E'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|"(?:[^"]|"")*\"""", re.DOTALL)
# Blanks that would be collapsed into one.
_FOLDED = re.compile(r"(?<= ) |^ | $")


def format_sql(*statements: str) -> str:
    """Return ``statements`` as one line; several are one transaction.

    >>> printed('drop publication "p"')
    'drop publication "p";'
    >>> printed('drop publication "p"', 'create publication "two  blanks"')
    'BEGIN; drop publication "p"; create publication U&"two \\\\0020blanks"; COMMIT;'
    """
    shown = [_QUOTED.sub(_shown, statement) + ";" for statement in statements]
    return " ".join(["BEGIN;", *shown, "COMMIT;"] if len(shown) > 1 else shown)


def exclude_option(names: Iterable[str]) -> str:
    """Return the option that leaves the tables ``names`` (``schema.table``) out, as a shell takes it.

    >>> exclude_option(["public.a", "public.it's (old)"])
    "--exclude-table 'public.a|public.it'\\\\''s\\\\ \\\\(old\\\\)'"
    """
    # A plain dot is easier to read, and matches itself.
    pattern = "|".join(re.escape(name).replace("\\.", ".") for name in names)
    return "--exclude-table '" + pattern.replace("'", "'\\''") + "'"


def _shown(quoted: re.Match[str]) -> str:
    """Return a name or a literal without characters that a terminal hides or treats as control codes."""
    text = quoted[0]
    inner = text[1:-1]
    if text.startswith("E") or (inner.isprintable() and not _FOLDED.search(inner)):
        return text
    escaped = "".join(c if c.isprintable() and c != "\\" else _code(c) for c in inner)
    escaped = _FOLDED.sub(lambda blank: _code(" "), escaped)
    return f"U&{text[0]}{escaped}{text[-1]}"


def _code(character: str) -> str:
    return f"\\{ord(character):04X}" if ord(character) < 0x10000 else f"\\+{ord(character):06X}"
