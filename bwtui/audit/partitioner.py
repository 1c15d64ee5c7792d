"""The partitioner of the Java clients: Kafka's MurmurHash2, written from its definition."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SEED, _M, _MASK = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


def murmur2_of(keys: pa.Array) -> pa.Array:
    """Return 31 bits of hash for each key: modulo the number of partitions, they are its partition.

    A null key has none. All keys of one length are hashed at once, as a matrix.
    """
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1]
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    lengths = np.diff(offsets)
    different = np.unique(lengths).tolist()
    if len(different) == 1:
        # Concatenated, they are a matrix already.
        (length,) = different
        hashes = _of_matrix(data[offsets[0] : offsets[-1]].reshape(len(keys), length), length)
    else:
        hashes = np.zeros(len(keys), np.uint32)
        for length in different:
            at = np.flatnonzero(lengths == length)
            hashes[at] = _of_matrix(data[offsets[at][:, None] + np.arange(length)], length)
    return pa.array((hashes & 0x7FFFFFFF).astype(np.int32), mask=keys.is_null().to_numpy(False))


def _of_matrix(keys: npt.NDArray[Any], length: int) -> npt.NDArray[np.uint32]:
    multiplier, shift = np.uint32(_M), np.uint32(24)
    h = np.full(len(keys), (_SEED ^ length) & _MASK, np.uint32)
    whole = length & ~3
    words = np.ascontiguousarray(keys[:, :whole]).view("<u4") if whole else np.empty((len(keys), 0), "<u4")
    for column in range(whole // 4):
        k = words[:, column].astype(np.uint32) * multiplier
        h = (h * multiplier) ^ ((k ^ (k >> shift)) * multiplier)
    for index in range(whole, length):
        h ^= keys[:, index].astype(np.uint32) << np.uint32(8 * (index - whole))
    if length > whole:
        h *= multiplier
    h = (h ^ (h >> np.uint32(13))) * multiplier
    return h ^ (h >> np.uint32(15))
