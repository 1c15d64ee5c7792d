"""The hashes with which librdkafka's partitioners choose the partition of a key."""

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bwtui.audit.partitioner import murmur2_of


def hashes_of(partitioner: str) -> Callable[[Sequence[bytes]], NDArray[np.int64]]:
    """Return librdkafka's hash function. A key's partition is its hash modulo the number of partitions."""
    partitioner = partitioner.lower()
    if partitioner.startswith("murmur2"):
        return lambda keys: murmur2_of(pa.array(keys, pa.binary())).to_numpy().astype(np.int64)
    if partitioner.startswith("consistent"):
        return lambda keys: np.fromiter(map(zlib.crc32, keys), np.int64, len(keys))
    return lambda keys: np.fromiter(map(_fnv1a, keys), np.int64, len(keys))


def _fnv1a(key: bytes) -> int:
    """Return the FNV-1a hash as Sarama and librdkafka compute it: the absolute value of a signed int32."""
    number = 0x811C9DC5
    for byte in key:
        number = (number ^ byte) * 0x01000193 & 0xFFFFFFFF
    return number if number < 1 << 31 else (1 << 32) - number
