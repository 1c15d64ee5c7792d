"""int2, int4 → int; int8, oid, xid, cid → long.

Small numbers are in a table; larger ones are joined from groups of 14 bits.
"""

from bwtui.types.codec import Codec, InlineCode, Unholdable
from bwtui.types.varint import NULL, C, D, U, V, long, union_long

# Text of -1,000 to 9,999 (and None for NULL) to the whole union: most numbers in most tables are small.
_SMALL: dict[bytes | None, bytes] = {None: NULL}
_SMALL |= {b"%d" % n: U[-1 - n - n] for n in range(-1000, 0)}
_SMALL |= {b"%d" % n: U[n + n] for n in range(8192)}
_SMALL |= {b"%d" % n: union_long(n) for n in range(8192, 10_000)}

_INT4 = """\
h{i} = SMALL.get({f})
if h{i} is None:
    n = int({f})
    z = n + n if n >= 0 else -1 - n - n
    if z < 16384: h{i} = U[z]
    elif z < 268435456: h{i} = D[z & 16383] + V[z >> 14]
    else: h{i} = union_long(n)"""

_INT8 = """\
if {f} is None: h{i} = NULL
else:
    n = int({f})
    z = n + n if n >= 0 else -1 - n - n
    if z < 16384: h{i} = U[z]
    elif z < 268435456: h{i} = D[z & 16383] + V[z >> 14]
    elif z < 4398046511104: h{i} = D[z & 16383] + C[z >> 14 & 16383] + V[z >> 28]
    else: h{i} = union_long(n)"""

_NAMES = {"SMALL": _SMALL, "NULL": NULL, "C": C, "D": D, "U": U, "V": V, "union_long": union_long}


def encode_integer(text: bytes) -> bytes:
    """Encode the decimal text of an integer."""
    return long(int(text))


def _codec(avro: str, name: str, code: str) -> Codec:
    return Codec(avro, name, encode_integer, InlineCode(code, ("h{i}",), _NAMES, compiled="integer"))


INT2 = _codec("int", "smallint", _INT4)
INT4 = _codec("int", "integer", _INT4)
INT8 = _codec("long", "bigint", _INT8)
# Unsigned 32-bit numbers: an int can't hold the upper half.
OID = _codec("long", "oid", _INT8)
XID = _codec("long", "xid", _INT8)
CID = _codec("long", "cid", _INT8)


def encode_xid8(text: bytes) -> bytes:
    """Encode an unsigned 64-bit number; the upper half, which no server reaches, uses the escape field."""
    number = int(text)
    if number >= 1 << 63:
        raise Unholdable
    return long(number)


XID8 = Codec("long", "xid8", encode_xid8, escapes=True)
