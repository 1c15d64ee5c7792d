"""Restored logs: every record is there, but at a different offset."""

from collections.abc import Iterator

from tests.audit.victims import has_twin, use
from tests.audit.world import Record, Send, Topic, World


def shifted(world: World) -> bool:
    """All records of a partition have higher offsets than they had."""
    for topic, p, mine in _restorable(world):
        by = world.rng.randint(1, 3)
        _shift(topic, p, min(send.place[2] for send in mine), by)
        for send in mine:
            use(world, send)
        return True
    return False


def doubled_when_restored(world: World) -> bool:
    """A message was written twice in a row, and all later records are shifted."""
    for topic, p, mine in _restorable(world):
        for send in world.rng.sample(mine, len(mine)):
            if has_twin(world, send) or send.key_digest is None or not world.is_confirmed(send):
                continue
            behind = send.place[2] + 1
            _shift(topic, p, behind, 1)
            topic.logs[p][behind] = Record(send.key_digest, send.value_digest, send.time_ms, "duplicated")
            for one in mine:
                use(world, one)
            return True
    return False


def _restorable(world: World) -> Iterator[tuple[Topic, int, list[Send]]]:
    """Yield topic, partition and messages where no record is missing and there is no other fault."""
    for topic in world.rng.sample(list(world.topics.values()), len(world.topics)):
        sends = [s for s in world.sends if s.topic == topic.name]
        if world.gaps or topic.compacts or any((s.topic, s.key_digest) in world.used_keys for s in sends):
            continue
        if any(s.offset is None or s.truth not in ("matched", "redelivered") for s in sends):
            continue
        for p in world.rng.sample(range(topic.partitions), topic.partitions):
            mine: list[Send] = [s for s in sends if s.partition == p]
            others = [r for r in topic.logs[p].values() if r.send is None and r.truth != "outside_window"]
            if mine and not others:
                yield topic, p, mine
                break


def _shift(topic: Topic, p: int, since: int, by: int) -> None:
    topic.logs[p] = {o + by * (o >= since): record for o, record in sorted(topic.logs[p].items())}
    topic.high[p] += by
    topic.slots[p] = []
