r"""Quoted parts of the texts of arrays and hstores.

array_out and hstore_out put a backslash before ``"`` and before a backslash, and before nothing else. The
expression is possessive, for otherwise `re` keeps 128 bytes of state for each character, or each escape, that
it has passed.
"""

#: Matches one quoted part; the group is what stands between the quotes.
QUOTED = rb'"([^"\\]*+(?:\\["\\][^"\\]*+)*+)"'


def unescaped(quoted: bytes) -> bytes:
    """Return the text of a quoted part. Every quote in it has its backslash, so two passes do."""
    if b"\\" not in quoted:
        return quoted
    return quoted.replace(b'\\"', b'"').replace(b"\\\\", b"\\")
