"""The hashes of keys by which librdkafka's partitioners choose a partition."""

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bwtui.audit.partitioner import murmur2_of


def hashes_of(partitioner: str) -> Callable[[Sequence[bytes]], NDArray[np.int64]]:
    """Return librdkafka's hash, of which the remainder by the number of partitions is a key's partition."""
    partitioner = partitioner.lower()
    if partitioner.startswith("murmur2"):
        return lambda keys: murmur2_of(pa.array(keys, pa.binary())).to_numpy().astype(np.int64)
    if partitioner.startswith("consistent"):
        return lambda keys: np.fromiter(map(zlib.crc32, keys), np.int64, len(keys))
    return lambda keys: np.fromiter(map(_fnv1a, keys), np.int64, len(keys))


def _fnv1a(key: bytes) -> int:
    """Return Sarama's form of FNV-1a, which librdkafka has: the absolute value of 32 signed bits."""
    number = 0x811C9DC5
    for byte in key:
        number = (number ^ byte) * 0x01000193 & 0xFFFFFFFF
    return number if number < 1 << 31 else (1 << 32) - number
