r"""Quoted parts in the texts of arrays and hstores.

array_out and hstore_out write a backslash before ``"`` and before a backslash, and nowhere else. The
expression is possessive; otherwise `re` keeps 128 bytes of state for each character, or each escape, that it
has passed.
"""

#: Matches one quoted part; the group is the text between the quotes.
QUOTED = rb'"([^"\\]*+(?:\\["\\][^"\\]*+)*+)"'


def unescaped(quoted: bytes) -> bytes:
    """Return the text of a quoted part. Every quote in it has a backslash, so two passes are enough."""
    if b"\\" not in quoted:
        return quoted
    return quoted.replace(b'\\"', b'"').replace(b"\\\\", b"\\")
