"""float4 → float, float8 → double.

With extra_float_digits ≥ 1 PostgreSQL writes the shortest text that reads back as the same number. Avro's
float and double include NaN, both infinities and -0.0, so the escape field is not needed.

A float must result from its text in one rounding. ``float()`` returns a double, and rounding that to a float
is a second one, which returns the wrong neighbour when the double is halfway between two floats. A search
over all finite reals found one such text and its negative: 7.038531e-26.
"""

import struct
from fractions import Fraction

from bwtui.types.codec import Codec, InlineCode
from bwtui.types.varint import NULL

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
