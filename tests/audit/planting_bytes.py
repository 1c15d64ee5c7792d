"""Faults that change a record where it stands: its key's bytes, its time, its headers."""

from tests.audit.victims import record_at, use, victims
from tests.audit.world import Send, Topic, World


def rekeyed(world: World) -> bool:
    """The key is in other bytes that decode the same, so that it is another key to brokers."""

    def wanted(topic: Topic, send: Send) -> bool:
        # What it took away when it stood under its own key has no excuse any more.
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
    """A record has another timestamp than its message."""
    for send in victims(world, lambda topic, _: True)[:1]:
        record_at(world, send).ts += world.rng.choice([-1, 1, 60_000])
        use(world, send)
        return True
    return False


def reheadered(world: World) -> bool:
    """A record has other headers than its message, or one of the two has none."""
    for send in victims(world, lambda topic, _: True)[:1]:
        record = record_at(world, send)
        send.headers_digest, record.headers_digest = world.rng.choice([(1, 2), (None, 2), (1, None)])
        use(world, send)
        return True
    return False
