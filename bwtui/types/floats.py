"""float4 → float, float8 → double.

With extra_float_digits ≥ 1 PostgreSQL writes the shortest text that reads back as the same number. Avro's
float and double hold NaN, both infinities and -0.0 as well, so nothing needs the escape.
"""

import struct

from bwtui.types.codec import Codec, Inline
from bwtui.types.varint import NULL

_float = struct.Struct("<f").pack
_double = struct.Struct("<d").pack
_union_float = struct.Struct("<Bf").pack
_union_double = struct.Struct("<Bd").pack

_CODE = "h{i} = NULL if {f} is None else %s(2, float({f}))"


def encode_float4(text: bytes) -> bytes:
    """Encode ``1.5``, ``NaN``, ``-Infinity`` and the like as four bytes."""
    return _float(float(text))


def encode_float8(text: bytes) -> bytes:
    """Encode ``1.5``, ``NaN``, ``-Infinity`` and the like as eight bytes."""
    return _double(float(text))


FLOAT4 = Codec(
    "float",
    "real",
    encode_float4,
    Inline(_CODE % "union_float", ("h{i}",), {"NULL": NULL, "union_float": _union_float}, compiled="float4"),
)
FLOAT8 = Codec(
    "double",
    "double precision",
    encode_float8,
    Inline(
        _CODE % "union_double", ("h{i}",), {"NULL": NULL, "union_double": _union_double}, compiled="float8"
    ),
)
