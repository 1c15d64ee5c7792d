"""Log sequence numbers.

An LSN is a byte position in the write-ahead log: an unsigned 64-bit integer, written by PostgreSQL
as two hexadecimal halves, ``16/B374D848`` (PostgreSQL documentation, "pg_lsn Type"). Inside bwtui an
LSN is always an ``int``; text is for people and for SQL.
"""

import re
from typing import NamedTuple

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def parse_lsn(text: str) -> int:
    """Return the LSN written as ``text``, such as ``0/1A2B``.

    Raises ValueError when the text is not two hexadecimal numbers of at most 32 bits with a slash between.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not an LSN: {text!r} (expected hexadecimal halves such as 0/16B3748)")
    return (int(match[1], 16) << 32) | int(match[2], 16)


def format_lsn(lsn: int) -> str:
    """Return ``lsn`` in PostgreSQL's own text form, without leading zeros: ``0/16B3748``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


class SentCommit(NamedTuple):
    """Identifies a sent transaction in the WAL: another server may have a different one at this LSN."""

    #: The LSN after the beginning of its commit record; 0 if no transaction is known.
    end: int = 0
    #: When it was committed, in microseconds since PostgreSQL's epoch.
    committed: int = 0


NO_COMMIT = SentCommit()
