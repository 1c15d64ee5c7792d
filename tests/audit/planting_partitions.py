"""Faults that put messages into wrong partitions and topics."""

from tests.audit.victims import is_provable_loss, take_away, use, victims
from tests.audit.world import Record, Send, Topic, World


def misrouted_by_relay(world: World) -> bool:
    """The delivery report and Kafka agree on a partition that is not the key's."""

    def wanted(topic: Topic, send: Send) -> bool:
        sends = [s for s in world.sends if s.topic == topic.name and s.partition is not None]
        astray = [s for s in sends if s.key_hash is not None and topic.home(s.key_hash) != s.partition]
        return (
            topic.partitions > 1
            and send.key_hash is not None
            and (len(astray) + 1) < 0.1 * len([s for s in sends if s.key_hash is not None])
            and not topic.compacts
        )

    for send in victims(world, wanted):
        topic = world.topic_of(send)
        p = next(n for n in range(topic.partitions) if n != send.partition)
        if any(r.truth == "outside_window" and r.ts >= send.time_ms for r in topic.logs[p].values()):
            continue
        record = take_away(world, send)
        send.offset, send.partition = topic.append(p, record), p
        send.truth = record.truth = "misrouted"
        use(world, send)
        return True
    return False


def misrouted_later(world: World) -> bool:
    """A message is missing at its offset and is in another partition or topic instead."""
    others = list(world.topics.values())
    for send in victims(world, lambda t, s: is_provable_loss(world)(t, s) and s.key_digest is not None):
        places = [
            (t, p)
            for t in others
            for p in range(t.partitions)
            if (t.name, p) != (send.topic, send.partition) and any(r.send for r in t.logs[p].values())
        ]
        if places:
            record = take_away(world, send)
            record.truth = send.truth = "misrouted"
            topic, p = world.rng.choice(places)
            topic.append(p, record)
            use(world, send)
            return True
    return False


def misrouted_copy(world: World) -> bool:
    """A copy of a message is in a partition that is not the key's."""
    for send in victims(world, lambda t, s: t.partitions > 1 and s.key_hash is not None):
        topic = world.topic_of(send)
        if not _knows_homes(world, topic):
            continue
        p = next(n for n in range(topic.partitions) if n != topic.home(send.key_hash))
        if any(r.send for r in topic.logs[p].values()):
            topic.append(p, Record(send.key_digest, send.value_digest, send.time_ms, "misrouted"))
            use(world, send)
            return True
    return False


def _knows_homes(world: World, topic: Topic) -> bool:
    return any(s.topic == topic.name and s.offset is not None and s.key_hash is not None for s in world.sends)
