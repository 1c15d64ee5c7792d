"""bytea → bytes. The text form is ``\\x`` and two hexadecimal digits a byte (bytea_output = hex)."""

from binascii import unhexlify

from bwtui.types.codec import Codec
from bwtui.types.varint import prefixed


def encode_bytea(text: bytes) -> bytes:
    """Encode ``\\x00ff``, including zero bytes."""
    if text[:2] != b"\\x":
        raise ValueError("not in the hex format of bytea")
    return prefixed(unhexlify(memoryview(text)[2:]))


BYTEA = Codec("bytes", "bytea", encode_bytea)
