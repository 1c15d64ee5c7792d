"""hstore → map of ["null", string], in hstore's own order (PostgreSQL documentation, "hstore").

A different type with that name uses the escape field if its text is not valid hstore.
"""

import re

from bwtui.types.codec import Codec, Unholdable
from bwtui.types.quoting import QUOTED, unescaped
from bwtui.types.strings import check
from bwtui.types.varint import NULL, VALUE, long, prefixed

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
