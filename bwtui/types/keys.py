"""The codecs of key columns (docs/adr/0006-give-equal-keys-equal-bytes.md).

Integers are longs. Values that the row's Avro type may not hold are sent as PostgreSQL's text, so that no key
needs the escape field. Bytes that are not text are marked (see `bwtui.types.strings.in_key`).
"""

from dataclasses import replace

from bwtui.types.codec import Codec, InlineCode
from bwtui.types.numbers import INT8
from bwtui.types.strings import in_key, text_codec
from bwtui.types.varint import VALUE, U, varint

# A key column is never NULL. The field is left unchanged: the row may encode it differently.
_CODE = """\
if {f} is None: raise ValueError
n = len({f})
h{i} = U[n + n] if n < 8192 else VALUE + varint(n + n)"""
_INLINE = InlineCode(
    _CODE, ("h{i}", "{f}"), {"U": U, "VALUE": VALUE, "varint": varint}, copies=True, compiled="text"
)


def key_codec(codec: Codec) -> Codec:
    """Return the codec of a column within the key, given its codec within the row; it never escapes.

    A key's bytes contain its schema's id. With one form for all integers, and text for every numeric, ALTER
    TYPE within a family leaves the keys, and so the partitions, unchanged.
    """
    if codec.avro == "int":
        return INT8
    if isinstance(codec.avro, dict) and codec.avro.get("logicalType") == "decimal":
        return text_codec("numeric")
    if codec.copies_text and codec.inline:
        return in_key(codec)
    if codec.escapes or codec.copies_text:
        return replace(in_key(text_codec(codec.pg_type)), inline=_INLINE)
    return codec
