"""bool → boolean."""

from bwtui.types.codec import Codec, InlineCode
from bwtui.types.varint import NULL, VALUE

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
