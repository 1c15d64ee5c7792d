"""numeric(p, s) → bytes with logicalType decimal; numeric without a precision → string.

PostgreSQL pads every value to the declared scale, so the digits without the point are the unscaled number.
NaN and the infinities, which no decimal can hold, use the escape field. Avro requires 0 ≤ scale ≤ precision
(Avro specification, "Decimal"): numeric(3, -2) becomes decimal(5, 0), and numeric(2, 4) becomes decimal(4,
4).

A numeric without a declared precision may have 131,072 digits before the point and 16,383 after it, with a
different scale for every value. A decimal has one scale for all, so only text is exact and readable.
"""

from bwtui.types.codec import Codec, InlineCode, Unholdable
from bwtui.types.strings import text_codec
from bwtui.types.varint import NULL, U, prefixed

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
