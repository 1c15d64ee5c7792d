"""Arrays → array of ["null", T], where T is the Avro type of the element's type.

This covers arrays of one dimension that begin at 1, including nulls and the empty array: those that occur in
practice. PostgreSQL does not declare dimensions, so any row may have different ones: these use the escape
field, as does an array with an element that T can't hold. The text form is that of "Array Input and Output
Syntax" in PostgreSQL's documentation.
"""

import re
from collections.abc import Iterable, Iterator

from bwtui.types.codec import Codec, Unholdable
from bwtui.types.strings import check
from bwtui.types.varint import NULL, VALUE, long, prefixed

# Quoted parts in the texts of arrays and hstores.
#
# array_out and hstore_out write a backslash before ``"`` and before a backslash, and nowhere else. The
# expression is possessive; otherwise `re` keeps 128 bytes of state for each character, or each escape, that
# it
# has passed.

#: Matches one quoted part; the group is the text between the quotes.
QUOTED = rb'"([^"\\]*+(?:\\["\\][^"\\]*+)*+)"'


def unescaped(quoted: bytes) -> bytes:
    """Return the text of a quoted part. Every quote in it has a backslash, so two passes are enough."""
    if b"\\" not in quoted:
        return quoted
    return quoted.replace(b'\\"', b'"').replace(b"\\\\", b"\\")


_EMPTY = b"\x00"
#: Number of bytes to split at a time: in a list, an element of one byte takes fifty.
_CHUNK = 4096


def elements(text: bytes, token: re.Pattern[bytes], delimiter: bytes) -> Iterable[list[bytes | None]]:
    """Yield the elements of ``{…}`` in chunks. Raises Unholdable for other dimensions or bounds."""
    if text[:1] != b"{" or text[-1:] != b"}" or text[1:2] == b"{":
        raise Unholdable
    body = text[1:-1]
    if b'"' in body:
        return _with_quoted(body, token, delimiter)
    if not body:
        return ()
    return (_plain(body, delimiter),) if len(body) < _CHUNK else _many_plain(body, delimiter)


def _many_plain(body: bytes, delimiter: bytes) -> Iterator[list[bytes | None]]:
    start = 0
    while (end := body.find(delimiter, start + _CHUNK)) >= 0:
        yield _plain(body[start:end], delimiter)
        start = end + 1
    yield _plain(body[start:], delimiter)


def _plain(body: bytes, delimiter: bytes) -> list[bytes | None]:
    return [None if element == b"NULL" else element for element in body.split(delimiter)]


def _with_quoted(body: bytes, token: re.Pattern[bytes], delimiter: bytes) -> Iterator[list[bytes | None]]:
    chunk: list[bytes | None] = []
    start = position = 0
    while True:
        match = token.match(body, position)
        if match is None:
            raise Unholdable
        quoted, plain = match.groups()
        if quoted is not None:
            chunk.append(unescaped(quoted))
        else:
            chunk.append(None if plain == b"NULL" else plain)
        position = match.end()
        if position == len(body):
            yield chunk
            return
        if body[position : position + 1] != delimiter:
            raise Unholdable
        position += 1
        if position - start > _CHUNK:
            yield chunk
            start, chunk = position, []


def array_codec(element: Codec, delimiter: str = ",") -> Codec:
    """Return the codec of arrays of ``element``; ``delimiter`` is the element type's typdelim."""
    separator = delimiter.encode()
    token = re.compile(rb'%b|([^"{}\\%b]++)' % (QUOTED, re.escape(separator)))
    # An array of texts is checked as a whole.
    encode_element = prefixed if element.inline and element.copies_text else element.encode

    def encode(text: bytes) -> bytes:
        if element.copies_text:
            check(text)
        count, parts = 0, []
        for chunk in elements(text, token, separator):
            count += len(chunk)
            parts.append(b"".join([NULL if item is None else VALUE + encode_element(item) for item in chunk]))
        return b"".join((long(count), *parts, _EMPTY)) if count else _EMPTY

    avro = {"type": "array", "items": ["null", element.avro]}
    return Codec(
        avro,
        f"{element.pg_type}[]",
        encode,
        escapes=True,
        as_text=element.as_text,
        connect_name=element.connect_name,
    )


# hstore → map of ["null", string], in hstore's own order (PostgreSQL documentation, "hstore").
#
# A different type with that name uses the escape field if its text is not valid hstore.

_PAIR = re.compile(rb"%b=>(?:%b|NULL)(?:, |\Z)" % (QUOTED, QUOTED))
_END = b"\x00"


def encode_hstore(text: bytes) -> bytes:
    """Encode ``"a"=>"1", "b"=>NULL``."""
    check(text)
    out = bytearray()
    position = count = 0
    while position < len(text):
        match = _PAIR.match(text, position)
        if match is None:
            raise Unholdable
        key, value = match.groups()
        out += prefixed(unescaped(key))
        if value is None:
            out += NULL
        else:
            out += VALUE
            out += prefixed(unescaped(value))
        position = match.end()
        count += 1
    return b"".join((long(count), out, _END)) if count else _END


HSTORE = Codec(
    {"type": "map", "values": ["null", "string"]}, "hstore", encode_hstore, escapes=True, copies_text=True
)
