"""Where the Java clients' partitioner puts a key: Kafka's MurmurHash2, written from its definition."""

_SEED, _M, _MASK = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the 31 bits of which the remainder by the number of partitions is the partition."""
    h = _SEED ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if len(key) > whole:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return (h ^ h >> 15) & 0x7FFFFFFF
