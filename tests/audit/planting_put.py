"""Faults of backfilled rows, and rows that an unrecorded run backfilled."""

from tests.audit.planting_unrecorded import has_late_duplicate
from tests.audit.victims import (
    append_beside,
    has_twin,
    is_provable_loss,
    log_of,
    record_at,
    take_away,
    use,
    victims,
)
from tests.audit.world import NOW_MS, Record, Send, Topic, World


def is_put(world: World, send: Send) -> bool:
    """Return whether a message is a backfilled row or tombstone."""
    return not send.in_transaction and send.pass_number in world.reached


def lost_put(world: World) -> bool:
    """The broker lost a backfilled row, while the transaction after it is complete."""
    provable = is_provable_loss(world)
    for send in victims(world, lambda topic, s: is_put(world, s) and provable(topic, s))[:1]:
        take_away(world, send)
        send.truth = "lost_acked"
        use(world, send)
        return True
    return False


def unheard_put(world: World) -> bool:
    """A backfilled row without a delivery report is missing, although the pass got further."""

    def wanted(topic: Topic, send: Send) -> bool:
        return (
            is_put(world, send)
            and world.is_confirmed(send)
            and topic.settings_known
            and not topic.compacts
            and not (topic.deletes and any(topic.low))
            and send.offset
            != min(s.place[2] for s in world.sends if (s.topic, s.partition) == (send.topic, send.partition))
        )

    for send in victims(world, wanted)[:1]:
        take_away(world, send)
        send.truth, send.state, send.partition, send.offset = "lost_unacked", "unknown", None, None
        use(world, send)
        return True
    return False


def doubled_put(world: World) -> bool:
    """A backfilled row is in the topic twice."""
    if world.gaps:
        return False

    def wanted(topic: Topic, send: Send) -> bool:
        return (
            is_put(world, send)
            and world.is_confirmed(send)
            and (send.key_digest is not None or not topic.keyed)
        )

    for send in victims(world, wanted)[:1]:
        append_beside(world, send, Record(send.key_digest, send.value_digest, send.time_ms, "duplicated"))
        use(world, send)
        return True
    return False


def stale_put(world: World) -> bool:
    """A backfilled row came after a newer row of its key and restored an old state."""
    if world.gaps:
        return False
    for send in victims(world, lambda topic, s: s.key_digest is not None and is_put(world, s)):
        of_key = [s for s in world.sends if (s.topic, s.key_digest) == (send.topic, send.key_digest)]
        later = [s for s in of_key if s.id > send.id]
        if not later or any(s.truth != "matched" or s.state != "acknowledged" or s.partition !=
                            send.partition or has_twin(world, s) for s in of_key):  # fmt: skip
            continue
        log, one, other = log_of(world, send), send.place[2], later[-1].place[2]
        log[one], log[other] = record_at(world, later[-1]), record_at(world, send)
        use(world, send)
        return True
    return False


def chunk_again(world: World) -> bool:
    """An unrecorded run sent the same rows of a chunk again because the chunk's end was not noted."""
    if has_late_duplicate(world):
        return False
    for send in victims(world, lambda t, s: not t.compacts and t.keyed and is_put(world, s))[:1]:
        again = Record(send.key_digest, send.value_digest, NOW_MS, "outside_window", has_other_session=True)
        append_beside(world, send, again)
        use(world, send)
        return True
    return False


def put_later(world: World) -> bool:
    """Rows were backfilled after the recording had ended, and have not changed since."""
    if has_late_duplicate(world):
        return False
    for send in victims(world, lambda t, s: not t.compacts and t.keyed)[:1]:
        again = Record(send.key_digest, send.value_digest, NOW_MS, "outside_window", has_other_session=True)
        append_beside(world, send, again)
        use(world, send)
        return True
    return False
