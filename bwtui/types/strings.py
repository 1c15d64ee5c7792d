"""text, varchar, char(n), name, json, jsonb, uuid, enums, and every type that travels as its text → string.

The bytes are UTF-8 already, because the session's client_encoding is: they are copied as they are. json and
jsonb stay text, for no Avro type keeps a number beyond double's precision.
"""

from bwtui.types.codec import Codec, Inline, Schema
from bwtui.types.varint import NULL, U, prefixed, varint

_CODE = """\
if {f} is None: h{i} = NULL; {f} = b""
else:
    n = len({f})
    h{i} = U[n + n] if n < 8192 else large(n)"""

INLINE_TEXT = Inline(
    _CODE, ("h{i}", "{f}"), {"NULL": NULL, "U": U, "large": lambda size: b"\x02" + varint(size + size)}
)


def text_codec(pg_type: str, avro: Schema = "string", as_text: bool = False) -> Codec:
    """Return the codec that copies PostgreSQL's text."""
    return Codec(avro, pg_type, prefixed, INLINE_TEXT, as_text=as_text)


UUID = text_codec("uuid", {"type": "string", "logicalType": "uuid"})
