"""Faults that change a record in place: its key's bytes, its time, its headers."""

from tests.audit.victims import record_at, use, victims
from tests.audit.world import Send, Topic, World


def rekeyed(world: World) -> bool:
    """The key has different bytes that decode the same, so brokers treat it as a different key."""

    def wanted(topic: Topic, send: Send) -> bool:
        # The records that it replaced under its own key now have no excuse for being missing.
        of_key = [s for s in world.sends if (s.topic, s.key_digest) == (send.topic, send.key_digest)]
        return send.key_digest is not None and (
            not topic.compacts or all(s.truth == "matched" for s in of_key)
        )

    for send in victims(world, wanted)[:1]:
        record = record_at(world, send)
        record.key_digest = world.fresh_value()
        world.equal_pairs.add(send.id)
        send.truth = record.truth = "rekeyed"
        use(world, send)
        return True
    return False


def retimed(world: World) -> bool:
    """A record has a different timestamp than its message."""
    for send in victims(world, lambda topic, _: True)[:1]:
        record_at(world, send).ts += world.rng.choice([-1, 1, 60_000])
        use(world, send)
        return True
    return False


def reheadered(world: World) -> bool:
    """A record has different headers than its message, or only one of the two has headers."""
    for send in victims(world, lambda topic, _: True)[:1]:
        record = record_at(world, send)
        send.headers_digest, record.headers_digest = world.rng.choice([(1, 2), (None, 2), (1, None)])
        use(world, send)
        return True
    return False
