"""Rows of ``COPY … TO STDOUT`` in text format (PostgreSQL documentation, COPY, "Text Format").

An unescaped field is exactly the text that pgoutput sends for the same value, so the snapshot and the stream
share one encoder.
"""

from bwtui.pgoutput.messages import Binary

#: NULL; in a field with this text, the backslash is escaped.
NULL = b"\\N"
#: Prefix of a field that is not text, followed by its bytes in hexadecimal. `bwtui.pgoutput.transcode` writes
#: it; COPY never does, since it doubles a backslash in text.
HEX = b"\\x"
# The escapes that PostgreSQL writes, in addition to the escaped backslash.
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
    # PostgreSQL's text never contains a zero byte, so it temporarily replaces an escaped backslash. Repeated
    # replace calls need no more memory than the field, while a list of its pieces would need many times that.
    field = field.replace(b"\\\\", b"\0")
    if b"\\" in field:
        for escape, meaning in _ESCAPES:
            field = field.replace(escape, meaning)
        # Any other escaped byte means itself.
        field = field.replace(b"\\", b"")
    return field.replace(b"\0", b"\\")
