"""A replay assigns keys to the same partitions as the audit, which has its own hash."""

import random

import pyarrow as pa
import pytest

from bwtui.audit.partitioner import murmur2_of
from bwtui.replay.rows import murmur2


@pytest.mark.parametrize(
    "lengths", [(0,), (1,), (3,), (4,), (9,), (0, 1), (4, 5, 8), (9, 10, 11)], ids=lambda found: f"{found}"
)
@pytest.mark.parametrize("count", [1, 2, 100])
def test_keys_of_one_length_and_of_several(lengths: tuple[int, ...], count: int) -> None:
    choice = random.Random(count)
    keys = pa.array([choice.randbytes(choice.choice(lengths)) for _ in range(count + 1)], pa.binary())
    for cells in (keys, keys.slice(1), keys.slice(0, count)):
        assert murmur2(cells).tolist() == murmur2_of(cells).to_pylist()
