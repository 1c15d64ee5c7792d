"""The demo's sabotage, and its judgement of the audit's findings."""

import random
from typing import Any

import pytest

from bwtui.demo.sabotage import PartitionRecord, Partitions, PlantedFault, judge, plan
from bwtui.errors import RefusedError


def held(keys: int = 12, versions: int = 4) -> Partitions:
    """Return three partitions in which each key has some versions."""
    return {
        partition: [
            PartitionRecord(
                b"\0\0\0\0\1%d" % (key * 3 + partition), b"%d of %d" % (version, key), version * 1000
            )
            for version in range(versions)
            for key in range(keys)
        ]
        for partition in range(3)
    }


@pytest.mark.parametrize("seed", range(20))
def test_every_fault_is_where_it_is_said_to_be(seed: int) -> None:
    before = held()
    after, faults = plan("t", before, random.Random(seed))
    at = {(fault.partition, fault.offset): fault.name for fault in faults}
    assert len(at) == len(faults) == 11
    for (partition, offset), name in at.items():
        record = after[partition][offset] if offset < len(after[partition]) else None
        was = before[partition][offset] if offset < len(before[partition]) else None
        if name == "lost_acked":
            assert record is None and was is not None
        elif name == "corrupted":
            assert record is not None and was is not None
            assert record._replace(value=was.value) == was != record
        elif name == "reordered":
            assert record is not None and was is not None
            assert record.key == was.key and record != was and record in before[partition]
        else:
            assert was is None and record is not None
            everywhere = [one for records in before.values() for one in records]
            assert (record in everywhere) == (name in ("duplicated", "misrouted"))
            assert (record.key in {one.key for one in everywhere}) == (name in ("duplicated", "misrouted"))
    untouched = sum(
        one == other
        for partition in before
        for one, other in zip(before[partition], after[partition], strict=False)
    )
    # Three records are lost, one is misplaced, two have different bytes, and two have swapped places.
    assert untouched == sum(map(len, before.values())) - 8


@pytest.mark.parametrize("little", [{0: [], 1: [], 2: []}, held(2, 1), {0: held()[0]}])
def test_too_little_to_sabotage(little: Partitions) -> None:
    with pytest.raises(RefusedError, match="sabotage"):
        plan("t", little, random.Random(1))


def report(*findings: tuple[str, int]) -> dict[str, Any]:
    total: dict[str, int] = {}
    for name, _ in findings:
        total[name] = total.get(name, 0) + 1
    return {
        "findings": [{"class": name, "topic": "t", "partition": 0, "offset": at} for name, at in findings],
        "findings_total": total | {"duplicated": total.get("duplicated", 0)},
    }


def test_judging() -> None:
    faults = [PlantedFault("lost_acked", "t", 0, 7), PlantedFault("foreign", "t", 0, 9)]
    good = judge(faults, report(("lost_acked", 7), ("foreign", 9), ("torn_transaction", 3)))
    assert good.holds
    assert good.to_json()["all_found"]
    elsewhere = judge(faults, report(("lost_acked", 8), ("foreign", 9)))
    assert not elsewhere.holds
    assert elsewhere.sentence.endswith("did not find lost_acked at t 0@7")
    more = judge(faults, report(("lost_acked", 7), ("foreign", 9), ("phantom", 1)))
    assert not more.holds and "phantom" in more.sentence
