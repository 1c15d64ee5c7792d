"""int2, int4 → int; int8, oid, xid, cid → long.

Small numbers are in a table; larger ones are joined from groups of 14 bits.
"""

import struct
from fractions import Fraction

from bwtui.types.codec import Codec, InlineCode, Unholdable
from bwtui.types.strings import text_codec
from bwtui.types.varint import NULL, VALUE, C, D, U, V, long, prefixed, union_long

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


# numeric(p, s) → bytes with logicalType decimal; numeric without a precision → string.
#
# PostgreSQL pads every value to the declared scale, so the digits without the point are the unscaled number.
# NaN and the infinities, which no decimal can hold, use the escape field. Avro requires 0 ≤ scale ≤ precision
# (Avro specification, "Decimal"): numeric(3, -2) becomes decimal(5, 0), and numeric(2, 4) becomes decimal(4,
# 4).
#
# A numeric without a declared precision may have 131,072 digits before the point and 16,383 after it, with a
# different scale for every value. A decimal has one scale for all, so only text is exact and readable.

NOT_NUMBERS = frozenset((b"NaN", b"Infinity", b"-Infinity"))

# PostgreSQL's typmod: ((precision << 16) | (scale & 0x7ff)) + 4; the scale is an 11-bit two's complement
# number.
_TYPMOD_OFFSET = 4

# The text of a declared numeric is always shorter than this; Python's own limit on int() is 4,300 digits.
_INT_DIGITS = 4000

# Header of a decimal by its number of bytes: branch, length.
_HEADS = tuple(U[n + n] for n in range(1024))

# Sets h{i} from n.
DECIMAL_BODY = """\
    z{i} = n if n >= 0 else ~n
    n{i} = (z{i}.bit_length() >> 3) + 1
    h{i} = HEADS[n{i}] + n.to_bytes(n{i}, "big", signed=True)"""

DECIMAL_NAMES = {"NULL": NULL, "HEADS": _HEADS}

_SCALED = """\
if {f} is None: h{i} = NULL
else:
    if {f}[-%d] != 46: raise ValueError
    n = int({f}.replace(b".", b"", 1))
"""

_WHOLE = """\
if {f} is None: h{i} = NULL
else:
    n = int({f})
"""


def declared(typmod: int) -> tuple[int, int] | None:
    """Return (precision, scale) as declared, or None for a numeric without them."""
    if typmod < _TYPMOD_OFFSET:
        return None
    packed = typmod - _TYPMOD_OFFSET
    scale = packed & 0x7FF
    return packed >> 16 & 0xFFFF, scale - 0x800 if scale & 0x400 else scale


def avro_decimal(precision: int, scale: int) -> tuple[int, int]:
    """Return the precision and scale of an Avro decimal that can hold every numeric(precision, scale)."""
    if scale < 0:
        return precision - scale, 0
    return max(precision, scale), scale


def unscaled(text: bytes, scale: int) -> int:
    """Return the number without its point. Raises Unholdable for NaN and ±Infinity, or ValueError."""
    if text in NOT_NUMBERS:
        raise Unholdable
    whole, _, fraction = text.partition(b".")
    if len(fraction) != scale or len(text) > _INT_DIGITS:
        raise ValueError(f"not a number with {scale} decimal places")
    return int(whole + fraction)


def to_bytes(number: int) -> bytes:
    """Return the shortest big-endian two's complement, like Java's BigInteger."""
    return number.to_bytes(((number if number >= 0 else ~number).bit_length() >> 3) + 1, "big", signed=True)


def decimal_codec(pg_type: str, precision: int, scale: int) -> Codec:
    """Return the codec of decimals with ``scale`` ≥ 0 places."""

    def encode(text: bytes) -> bytes:
        return prefixed(to_bytes(unscaled(text, scale)))

    code = (_SCALED % (scale + 1) if scale else _WHOLE) + DECIMAL_BODY
    avro = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    inline = InlineCode(code, ("h{i}",), DECIMAL_NAMES, compiled="decimal", scale=scale)
    return Codec(avro, pg_type, encode, inline, escapes=True)


def numeric_codec(typmod: int) -> Codec:
    """Return the codec of a numeric column with this type modifier."""
    modifier = declared(typmod)
    if modifier is None:
        return text_codec("numeric")
    precision, scale = modifier
    return decimal_codec(f"numeric({precision},{scale})", *avro_decimal(precision, scale))


# money → bytes with logicalType decimal(19, 2).
#
# money is a 64-bit count of the locale's smallest unit, and its text depends on lc_monetary. With the
# session's
# C it is always ``-$1,234.56``, whatever the database's own locale: the count in hundredths. (If the locale's
# currency has no hundredths, such as yen, the number is a hundredth of what that locale shows; casting it
# back
# with C gives the same money.)

_CODE = (
    """\
if {f} is None: h{i} = NULL
else:
    if {f}[-3] != 46: raise ValueError
    n = int({f}.translate(None, b"$,."))
"""
    + DECIMAL_BODY
)


def encode_money(text: bytes) -> bytes:
    """Encode ``-$1,234.56``."""
    if text[-3:-2] != b".":
        raise ValueError("not an amount of money under lc_monetary C")
    return prefixed(to_bytes(int(text.translate(None, b"$,."))))


MONEY = Codec(
    {"type": "bytes", "logicalType": "decimal", "precision": 19, "scale": 2},
    "money",
    encode_money,
    InlineCode(_CODE, ("h{i}",), DECIMAL_NAMES),
)


# float4 → float, float8 → double.
#
# With extra_float_digits ≥ 1 PostgreSQL writes the shortest text that reads back as the same number. Avro's
# float and double include NaN, both infinities and -0.0, so the escape field is not needed.
#
# A float must result from its text in one rounding. ``float()`` returns a double, and rounding that to a
# float
# is a second one, which returns the wrong neighbour when the double is halfway between two floats. A search
# over all finite reals found one such text and its negative: 7.038531e-26.

_float = struct.Struct("<f").pack
_double = struct.Struct("<d").pack
_union_float = struct.Struct("<Bf").pack
_union_double = struct.Struct("<Bd").pack
_from_float = struct.Struct("<f").unpack

_DOUBLE = "h{i} = NULL if {f} is None else union_double(2, float({f}))"
# Multiplying by 2²⁸ + 1 rounds a double to 25 significant bits (T. J. Dekker, "A floating-point technique for
# extending the available precision", 1971). A double halfway between two floats has no more.
_SINGLE = """\
if {f} is None: h{i} = NULL
else:
    n = float({f})
    z = n * 268435457.0
    h{i} = union_float(2, n if z - (z - n) != n else single({f}))"""


def single(text: bytes) -> float:
    """Return the float nearest to a number's text."""
    number = float(text)
    (near,) = _from_float(_float(number))
    # The candidate at the same distance from the double on its other side.
    other = number + (number - near)
    if other == near or _from_float(_float(other)) != (other,):
        return float(near)
    beyond = Fraction(text.decode()) - Fraction(number)
    return float(near if not beyond else max(near, other) if beyond > 0 else min(near, other))


def encode_float4(text: bytes) -> bytes:
    """Encode ``1.5``, ``NaN``, ``-Infinity`` and the like as four bytes."""
    return _float(single(text))


def encode_float8(text: bytes) -> bytes:
    """Encode ``1.5``, ``NaN``, ``-Infinity`` and the like as eight bytes."""
    return _double(float(text))


FLOAT4 = Codec(
    "float",
    "real",
    encode_float4,
    InlineCode(
        _SINGLE,
        ("h{i}",),
        {"NULL": NULL, "union_float": _union_float, "single": single},
        compiled="float4",
    ),
)
FLOAT8 = Codec(
    "double",
    "double precision",
    encode_float8,
    InlineCode(_DOUBLE, ("h{i}",), {"NULL": NULL, "union_double": _union_double}, compiled="float8"),
)


# bool → boolean.

_TEXT = {b"t": b"\x01", b"f": b"\x00"}
_UNION = {None: NULL, b"t": VALUE + b"\x01", b"f": VALUE + b"\x00"}


def encode_boolean(text: bytes) -> bytes:
    """Encode ``t`` or ``f``."""
    try:
        return _TEXT[text]
    except KeyError:
        raise ValueError("neither t nor f") from None


BOOL = Codec(
    "boolean", "boolean", encode_boolean, InlineCode("", ("BOOL[{f}]",), {"BOOL": _UNION}, compiled="boolean")
)
