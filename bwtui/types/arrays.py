"""Arrays → array of ["null", T], T being what a column of the element's type would have.

That holds arrays of one dimension that begin at 1, nulls inside and the empty array included: what tables
hold in practice. PostgreSQL does not declare dimensions, so any row may have others: those take the escape,
as does an array with an element that T can't hold. The text form is that of "Array Input and Output Syntax"
in PostgreSQL's documentation.
"""

import re

from bwtui.types.codec import Codec, Unholdable
from bwtui.types.strings import check
from bwtui.types.varint import NULL, VALUE, long, prefixed

_QUOTED = re.compile(rb"\\(.)", re.DOTALL)
_EMPTY = b"\x00"


def elements(text: bytes, token: re.Pattern[bytes], delimiter: bytes) -> list[bytes | None]:
    """Return the elements of ``{…}``. Raises Unholdable for more dimensions or another lower bound."""
    if text[:1] != b"{" or text[-1:] != b"}" or text[1:2] == b"{":
        raise Unholdable
    body = text[1:-1]
    if not body:
        return []
    if b'"' not in body:
        return [None if element == b"NULL" else element for element in body.split(delimiter)]
    found: list[bytes | None] = []
    position = 0
    while True:
        match = token.match(body, position)
        if match is None:
            raise Unholdable
        quoted, plain = match.groups()
        if quoted is not None:
            found.append(_QUOTED.sub(rb"\1", quoted) if b"\\" in quoted else quoted)
        else:
            found.append(None if plain == b"NULL" else plain)
        position = match.end()
        if position == len(body):
            return found
        if body[position : position + 1] != delimiter:
            raise Unholdable
        position += 1


def array_codec(element: Codec, delimiter: str = ",") -> Codec:
    """Return the codec of arrays of ``element``; ``delimiter`` is the element type's typdelim."""
    separator = delimiter.encode()
    token = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^"{}\\%b]+)' % re.escape(separator), re.DOTALL)
    # An array of texts is looked at as a whole.
    encode_element = prefixed if element.inline and element.copies_text else element.encode

    def encode(text: bytes) -> bytes:
        if element.copies_text:
            check(text)
        items = elements(text, token, separator)
        if not items:
            return _EMPTY
        out = [long(len(items))]
        for item in items:
            out += (NULL,) if item is None else (VALUE, encode_element(item))
        out.append(_EMPTY)
        return b"".join(out)

    avro = {"type": "array", "items": ["null", element.avro]}
    return Codec(avro, f"{element.pg_type}[]", encode, escapes=True, as_text=element.as_text)
