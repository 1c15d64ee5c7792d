"""Columns of a sealed recording's rows on their way to a topic: set schema ids, and choose partitions.

All operations work on columns, not on rows. A *lane* is a partition of a target topic: all messages for it go
through one task, in the order of the recording, and so do all messages of a key.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bwtui.errors import DamagedRecording, RefusedError

Ints = npt.NDArray[np.int64]
Hash = Literal["murmur2", "crc32"]

_SEED, _M = 0x9747B28C, np.uint32(0x5BD1E995)
_ID = np.arange(1, 5)


@dataclass(slots=True)
class ReplayRoute:
    """The target of one recorded topic."""

    recorded: str
    topic: str
    partitions: int
    #: Recorded schema id → written schema id; empty without a registry.
    keys: Mapping[int, int] = field(default_factory=dict)
    values: Mapping[int, int] = field(default_factory=dict)
    #: True if every message stays in its recorded partition; otherwise its key determines the partition.
    keeps_partitions: bool = False
    #: Lane number of its partition 0, counted over all routes.
    first_lane: int = 0
    hash: Hash = "murmur2"


def number_lanes(routes: Sequence[ReplayRoute]) -> int:
    """Number the lanes of all routes, and return how many there are."""
    count = 0
    for route in routes:
        route.first_lane = count
        count += route.partitions
    return count


def routes_of(topics: pa.Array, routes: Sequence[ReplayRoute]) -> Ints:
    """Return the index of each row's route."""
    recorded = pa.array([route.recorded for route in routes], pa.string())
    indexes: Ints = pc.index_in(topics, value_set=recorded).to_numpy(zero_copy_only=False).astype(np.int64)
    return indexes


def with_ids(cells: pa.Array, ids: pa.Array, of: Ints, routes: Sequence[ReplayRoute], part: str) -> pa.Array:
    """Return keys or values (``part``) with their new schema ids, after a check of the recorded ids.

    Raises RefusedError for an id without a new one, DamagedRecording when the bytes have a different id.
    """
    has_id = ids.is_valid().to_numpy(zero_copy_only=False)
    if not has_id.any():
        return cells
    recorded = pc.fill_null(ids, 0).to_numpy(zero_copy_only=False)
    new_ids = recorded.copy()
    for number, route in enumerate(routes):
        here = has_id & (of == number)
        for schema in np.unique(recorded[here]).tolist():
            written_id = (route.keys if part == "key" else route.values).get(schema)
            if written_id is None:
                hint = "seal the recording again, which reads its schemas again: bwtui recording seal"
                raise RefusedError(
                    f"schema {schema} of topic {route.recorded} has no id in the target registry", hint
                )
            new_ids[here & (recorded == schema)] = written_id
    starts, lengths, data = parts_of(cells)
    rows = np.flatnonzero(has_id)
    _check(data, starts[rows], lengths[rows], recorded[rows], part)
    changed = np.flatnonzero(has_id & (new_ids != recorded))
    if not len(changed):
        return cells
    written = data.copy()
    written[starts[changed][:, None] + _ID] = new_ids[changed].astype(">u4").view(np.uint8).reshape(-1, 4)
    validity, offsets, _ = cells.buffers()
    buffers = [validity, offsets, pa.py_buffer(written)]
    return pa.Array.from_buffers(pa.binary(), len(cells), buffers, offset=cells.offset)


#: Hint for a recording whose parts contradict each other.
_CHECK = "find the damaged file with 'bwtui recording check', and restore it from a copy"


def _check(
    data: npt.NDArray[np.uint8], starts: Ints, lengths: Ints, ids: npt.NDArray[Any], part: str
) -> None:
    if (lengths < 5).any() or data[starts].any():
        raise DamagedRecording(
            f"a recorded {part} has a schema id, but does not start with the header of Confluent's "
            "wire format",
            _CHECK,
        )
    written_ids = data[starts[:, None] + _ID].reshape(-1).view(">u4")
    if (written_ids != ids).any():
        raise DamagedRecording(
            f"the schema id in a recorded {part} differs from the one recorded for it", _CHECK
        )


def parts_of(cells: pa.Array) -> tuple[Ints, Ints, npt.NDArray[np.uint8]]:
    """Return the start of each cell, its length, and all bytes."""
    _, offsets, content = cells.buffers()
    ends = np.frombuffer(offsets, np.int32)[cells.offset : cells.offset + len(cells) + 1].astype(np.int64)
    data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    return ends[:-1], np.diff(ends), data


def partitions_of(
    keys: pa.Array, recorded: pa.Array, positions: Ints, of: Ints, routes: Sequence[ReplayRoute]
) -> Ints:
    """Return each message's partition; one without a key keeps its own, or is distributed by position."""
    counts = np.array([route.partitions for route in routes], np.int64)[of]
    keeps = np.array([route.keeps_partitions for route in routes], bool)[of]
    at = pc.fill_null(recorded, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    has_place = (at >= 0) & (at < counts)
    without = keys.is_null().to_numpy(zero_copy_only=False)
    chosen = np.where(has_place, at, positions % counts)
    hashed = np.flatnonzero(~without & ~(keeps & has_place))
    if len(hashed):
        by_crc = any(route.hash == "crc32" for route in routes)
        some = keys if len(hashed) == len(keys) else keys.take(pa.array(hashed))
        chosen[hashed] = (crc32(some) if by_crc else murmur2(some)) % counts[hashed]
    return chosen


def crc32(keys: pa.Array) -> Ints:
    """Hash keys as librdkafka's partitioner ``consistent`` does."""
    return np.array([zlib.crc32(key) for key in keys.to_pylist()], np.int64)


def murmur2(keys: pa.Array) -> Ints:
    """Hash keys as the Java clients do: the remainder by the number of partitions is the partition."""
    starts, lengths, data = parts_of(keys)
    different = np.unique(lengths).tolist()
    if len(different) == 1:
        # Keys of one length already form a matrix.
        (length,) = different
        cells = data[starts[0] : starts[0] + len(keys) * length]
        hashes = _murmur2(cells.reshape(len(keys), length), length)
    else:
        hashes = np.zeros(len(keys), np.uint32)
        for length in different:
            rows = np.flatnonzero(lengths == length)
            hashes[rows] = _murmur2(data[starts[rows][:, None] + np.arange(length)], length)
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64)


def _murmur2(keys: npt.NDArray[np.uint8], length: int) -> npt.NDArray[np.uint32]:
    """Hash keys of one length, one per row, all at once."""
    h = np.full(len(keys), _SEED ^ length, np.uint32)
    whole = length & ~3
    words = np.ascontiguousarray(keys[:, :whole]).view("<u4").astype(np.uint32)
    for at in range(whole // 4):
        k = words[:, at] * _M
        h = (h * _M) ^ ((k ^ (k >> np.uint32(24))) * _M)
    for shift, at in enumerate(range(whole, length)):
        h ^= keys[:, at].astype(np.uint32) << np.uint32(8 * shift)
    if length > whole:
        h *= _M
    h = (h ^ (h >> np.uint32(13))) * _M
    return h ^ (h >> np.uint32(15))
