"""Records that a relay sent outside of the recording; none of them is a fault."""

from tests.audit.victims import append_beside, use, victims
from tests.audit.world import NOW_MS, Record, World


def later_of_the_relay(world: World) -> bool:
    """The relay continued after the recording had ended, as the headers or the time show."""
    if has_late_duplicate(world):
        return False
    lsn = world.rng.choice([None, max(s.lsn for s in world.sends) + 1000])
    for send in world.sends:
        if send.offset is not None and world.topic_of(send).keyed:
            record = Record(world.fresh_value(), world.fresh_value(), NOW_MS, "outside_window", lsn=lsn)
            append_beside(world, send, record)
            return True
    return False


def sent_again(world: World) -> bool:
    """An unrecorded run sent the unconfirmed messages again."""
    for send in victims(world, lambda t, s: not t.compacts and not world.is_confirmed(s))[:1]:
        record = Record(send.key_digest, send.value_digest, send.time_ms, "outside_window")
        append_beside(world, send, record)
        use(world, send)
        return True
    return False


def same_bytes_later(world: World) -> bool:
    """The relay continued, and a row returned to an earlier value, as headers or later records show."""
    if has_late_duplicate(world):
        return False
    lsn = world.rng.choice([None, max(s.lsn for s in world.sends) + 1000])
    for send in victims(world, lambda t, s: not t.compacts and t.keyed)[:1]:
        append_beside(
            world, send, Record(send.key_digest, send.value_digest, NOW_MS, "outside_window", lsn=lsn)
        )
        if lsn is None:
            other = Record(world.fresh_value(), world.fresh_value(), NOW_MS, "outside_window")
            append_beside(world, send, other)
        use(world, send)
        return True
    return False


def went_on(world: World) -> bool:
    """Return whether a record proves that the relay continued after the recording."""
    last = max(s.time_ms for s in world.sends)
    return any(
        r.truth == "outside_window" and r.ts > last for t in world.topics.values() for _, _, r in t.records()
    )


def has_late_duplicate(world: World) -> bool:
    """Return whether a copy would be the relay's own if the relay had continued."""
    last = max(s.time_ms for s in world.sends)
    return any(
        r.truth == "duplicated" and r.ts > last for t in world.topics.values() for _, _, r in t.records()
    )
