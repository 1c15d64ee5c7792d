"""Real and apparent copies in other topics."""

from tests.audit.victims import oldest_tail_ms, use, victims
from tests.audit.world import DAY_MS, NOW_MS, Record, Send, World


def copied_elsewhere(world: World) -> bool:
    """A copy of a message is in another topic; also of a tombstone or of a row without a key."""
    until = min(oldest_tail_ms(world), max(s.time_ms for s in world.sends))
    for send in victims(world, lambda *_: True):
        for topic in world.topics.values():
            is_own = any(
                (s.topic, s.key_digest, s.value_digest) == (topic.name, send.key_digest, send.value_digest)
                for s in world.sends
            )
            if topic.name == send.topic or is_own or (send.key_digest is None and topic.compacts):
                continue
            places = [p for p, log in enumerate(topic.logs) if any(r.send for r in log.values())]
            if not places:
                continue
            # The relay itself may have sent a copy that looks like the topic's own and is recent enough.
            is_ours = send.time_ms < until and world.rng.random() < 0.5
            record = Record(send.key_digest, send.value_digest, send.time_ms, "misrouted", is_ours=is_ours)
            topic.append(world.rng.choice(places), record)
            use(world, send)
            return True
    return False


def twin_tombstones(world: World) -> bool:
    """Tombstones of two tables have the same bytes, as in JSON: one is lost, and the other is duplicated."""
    names = [t.name for t in world.topics.values() if t.keyed and t.settings_known and not t.compacts]
    if len(names) < 2 or world.gaps or any(s.lsn > world.confirmed for s in world.sends):
        return False
    # Records from after the recording would end up inside it.
    if any(r.truth == "outside_window" for name in names for _, _, r in world.topics[name].records()):
        return False
    key, hashed = world.fresh_value(), world.rng.getrandbits(31)
    for name, arrives in zip(world.rng.sample(names, 2), (False, True), strict=True):
        topic = world.topics[name]
        world.confirmed += 1
        p = topic.home(hashed)
        if not any(s.topic == name and s.offset is not None for s in world.sends) or topic.high[p] == 0:
            return False
        number, last = max(s.id for s in world.sends) + 4096, max(world.passes)
        send = Send(number, last, world.confirmed, 1, 0, "delete", NOW_MS - DAY_MS, name, key, None, hashed)
        send.partition, send.offset = p, topic.high[p]
        world.sends.append(send)
        if arrives:
            topic.append(p, Record(key, None, send.time_ms, "matched", send))
            topic.append(p, Record(key, None, send.time_ms, "duplicated"))
        else:
            send.truth = "lost_acked"
            topic.high[p] += 1
        use(world, send)
    return True
