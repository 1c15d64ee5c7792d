"""What a column is in a key (docs/adr/0006-give-equal-keys-equal-bytes.md).

Integers are longs. What the Avro type of a row may not hold is PostgreSQL's text, so that no key needs the
escape field. Bytes that are no text are marked: see `bwtui.types.strings.in_key`.
"""

from dataclasses import replace

from bwtui.types import integers
from bwtui.types.codec import Codec, Inline
from bwtui.types.strings import in_key, text_codec
from bwtui.types.varint import VALUE, U, varint

# A key has no NULL where it is one. The field is left as it is: the row may encode it in another way.
_CODE = """\
if {f} is None: raise ValueError
n = len({f})
h{i} = U[n + n] if n < 8192 else VALUE + varint(n + n)"""
_INLINE = Inline(
    _CODE, ("h{i}", "{f}"), {"U": U, "VALUE": VALUE, "varint": varint}, copies=True, compiled="text"
)


def key_codec(codec: Codec) -> Codec:
    """Return the codec of a column as part of the key, by its codec as part of the row; it never escapes.

    A key's bytes hold its schema's id. With one form for all integers, and text for every numeric, ALTER TYPE
    within the family leaves the keys, and so the partitions, as they are.
    """
    if codec.avro == "int":
        return integers.INT8
    if isinstance(codec.avro, dict) and codec.avro.get("logicalType") == "decimal":
        return text_codec("numeric")
    if codec.copies_text and codec.inline:
        return in_key(codec)
    if codec.escapes or codec.copies_text:
        return replace(in_key(text_codec(codec.pg_type)), inline=_INLINE)
    return codec
