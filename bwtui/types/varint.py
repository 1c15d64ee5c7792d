"""Avro's int and long: zigzag, then seven bits per byte, low bits first.

See "Binary Encoding" in the Avro specification. The tables have every 14-bit group precomputed, so that
generated code joins a long of any size from a few of them.
"""


def zigzag(number: int) -> int:
    """Return ``number`` as the unsigned integer that Avro writes."""
    return number + number if number >= 0 else -1 - number - number


def varint(unsigned: int) -> bytes:
    """Return an unsigned integer in groups of seven bits, low first; the high bit means that more follow."""
    out = bytearray()
    while unsigned > 0x7F:
        out.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    out.append(unsigned)
    return bytes(out)


def long(number: int) -> bytes:
    """Return ``number`` as Avro's int or long."""
    return varint(zigzag(number))


# V: a varint below 2**14, in its shortest form. C: the two bytes of a 14-bit group that is followed by
# another one. U and D: the same after the byte 2, which selects the second branch of a union ["null", T].
# Computed without `varint`, because every process of the relay computes them when it starts.
C = tuple(bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(1 << 14))
V = tuple(bytes((n,)) for n in range(1 << 7)) + tuple(
    bytes((n & 0x7F | 0x80, n >> 7)) for n in range(1 << 7, 1 << 14)
)
U = tuple(map(b"\x02".__add__, V))
D = tuple(map(b"\x02".__add__, C))

NULL = b"\x00"
VALUE = b"\x02"


def union_long(number: int) -> bytes:
    """Return the second branch of ["null", long] with ``number``."""
    return VALUE + long(number)


def prefixed(data: bytes) -> bytes:
    """Return ``data`` as Avro's bytes or string: its length, then the bytes."""
    return long(len(data)) + data
