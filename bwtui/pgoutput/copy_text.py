"""Rows of ``COPY … TO STDOUT`` in text format (PostgreSQL documentation, COPY, "Text Format").

Unescaped, a field is the very text that pgoutput sends for the same value, so the snapshot and the stream
share one encoder.
"""

from bwtui.pgoutput.messages import Binary

#: NULL; a field of this text itself has its backslash escaped.
NULL = b"\\N"
#: Before the bytes of a field that is no text, in hexadecimal. `bwtui.pgoutput.transcode` writes it, and COPY
#: never does: it doubles a backslash of the text.
HEX = b"\\x"
# The escapes that PostgreSQL writes beside that of the backslash itself.
_ESCAPES = (
    (b"\\b", b"\b"),
    (b"\\f", b"\f"),
    (b"\\n", b"\n"),
    (b"\\r", b"\r"),
    (b"\\t", b"\t"),
    (b"\\v", b"\v"),
)


def unescape_copy_line(line: bytes) -> list[bytes | None]:
    """Return the fields of one row; ``line`` ends with its newline, and may not be the end mark ``\\.``."""
    if line.endswith(b"\n"):
        line = line[:-1]
    fields = line.split(b"\t")
    backslashes = line.count(b"\\")
    if not backslashes:
        return fields  # type: ignore[return-value]
    if backslashes == fields.count(NULL):
        return [None if field == NULL else field for field in fields]
    return [unescape(field) if b"\\" in field else field for field in fields]


def unescape(field: bytes) -> bytes | None:
    """Return one field as pgoutput would send it."""
    if field == NULL:
        return None
    if field.startswith(HEX):
        return Binary(bytes.fromhex(field[len(HEX) :].decode()))
    # No text of PostgreSQL's holds a zero byte: it stands for an escaped backslash meanwhile. Pass after pass
    # takes no more memory than the field has, where a list of its pieces would take many times that.
    field = field.replace(b"\\\\", b"\0")
    if b"\\" in field:
        for escape, meaning in _ESCAPES:
            field = field.replace(escape, meaning)
        # Any other escaped byte stands for itself.
        field = field.replace(b"\\", b"")
    return field.replace(b"\0", b"\\")
