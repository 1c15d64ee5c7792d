"""money → bytes with logicalType decimal(19, 2).

money is a 64-bit count of the locale's smallest unit, and its text depends on lc_monetary. With the session's
C it is always ``-$1,234.56``, whatever the database's own locale: the count in hundredths. (If the locale's
currency has no hundredths, such as yen, the number is a hundredth of what that locale shows; casting it back
with C gives the same money.)
"""

from bwtui.types.codec import Codec, InlineCode
from bwtui.types.numeric import DECIMAL_BODY, DECIMAL_NAMES, to_bytes
from bwtui.types.varint import prefixed

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
