"""Plant one fault of a kind into a made-up world, and note the truth.

Every function takes the world and returns whether it found a place for the fault. Faults of one case touch
different keys, so the expected result of a case is known without knowing how the audit works.
"""

import random
from collections.abc import Callable

from tests.audit import (
    planting_bytes,
    planting_copies,
    planting_logs,
    planting_partitions,
    planting_put,
    planting_shifts,
    planting_tails,
    planting_unrecorded,
)
from tests.audit.making import make
from tests.audit.planting_unrecorded import went_on
from tests.audit.victims import (
    append_beside,
    has_twin,
    is_last_of_key,
    is_provable_loss,
    log_of,
    oldest_tail_ms,
    opens_window,
    record_at,
    take_away,
    use,
    victims,
)
from tests.audit.world import DAY_MS, NOW_MS, Record, Send, Topic, World

Plant = Callable[[World], bool]


def lost_acked(world: World) -> bool:
    """The broker lost a message that it acknowledged."""
    for send in victims(world, is_provable_loss(world))[:1]:
        take_away(world, send)
        send.truth = "lost_acked"
        use(world, send)
        return True
    return False


def lost_unacked(world: World) -> bool:
    """A message without a delivery report is missing, although the relay confirmed it."""

    def wanted(topic: Topic, send: Send) -> bool:
        return (
            world.is_confirmed(send)
            and topic.settings_known
            and not topic.compacts
            and not (topic.deletes and any(topic.low))
            and not any(s is not send and s.identity == send.identity for s in world.sends)
            and not opens_window(world, send)
        )

    for send in victims(world, wanted)[:1]:
        take_away(world, send)
        send.truth, send.state, send.partition, send.offset = "lost_unacked", "unknown", None, None
        use(world, send)
        return True
    return False


def lost_unsent(world: World) -> bool:
    """The relay confirmed a change without making a message of it and without giving a reason."""
    found = [s for s in world.sends if s.without and s.lsn <= world.confirmed]
    for send in found[:1]:
        send.without, send.truth = None, "lost_unsent"
        return True
    return False


def pending(world: World) -> bool:
    """The last message is neither acknowledged nor confirmed."""
    lsn = max(s.lsn for s in world.sends) + 1
    made = [
        s
        for s in world.sends
        if s.topic and s.key_digest is not None and (s.topic, s.key_digest) not in world.used_keys
    ]
    if not made:
        return False
    like = world.rng.choice(made)
    number = max(world.passes)
    if not world.passes[number]:
        return False
    world.sends.append(
        Send(max(s.id for s in world.sends) + 4096, number, lsn, 1, 0, "insert", NOW_MS - DAY_MS, like.topic,
             like.key_digest, world.fresh_value(), like.key_hash, state="unknown", truth="pending")
    )  # fmt: skip
    use(world, like)
    return True


def refused(world: World) -> bool:
    """Kafka rejected a message, and the error policy dropped it."""
    for send in victims(world, lambda t, s: not t.compacts and not opens_window(world, s))[:1]:
        if any(s is not send and s.identity == send.identity for s in world.sends):
            return False
        take_away(world, send)
        send.truth, send.state, send.partition, send.offset = "refused", "refused", None, None
        use(world, send)
        return True
    return False


def duplicated(world: World) -> bool:
    """A byte-equal copy is at the end of the key's partition."""

    if world.gaps:
        return False

    def wanted(topic: Topic, send: Send) -> bool:
        return (send.key_digest is not None or not topic.keyed) and world.is_confirmed(send)

    for send in victims(world, wanted)[:1]:
        # If the relay continued after the recording, a later copy may be its own. The same holds for
        # backfilled rows.
        own = went_on(world) or planting_put.is_put(world, send)
        time = send.time_ms if own else world.rng.choice([send.time_ms, NOW_MS])
        record = Record(send.key_digest, send.value_digest, time, "duplicated")
        append_beside(world, send, record)
        use(world, send)
        return True
    return False


def corrupted(world: World) -> bool:
    """The record at a message's offset has a different value or a different key."""
    for send in victims(world, lambda topic, _: True)[:1]:
        record = record_at(world, send)
        if send.value_digest is not None and send.key_digest is not None and world.rng.random() < 0.3:
            of_key = [s for s in world.sends if (s.topic, s.key_digest) == (send.topic, send.key_digest)]
            if len(of_key) == 1:
                record.key_digest = world.fresh_value()
            else:
                record.value_digest = world.fresh_value()
        else:
            record.value_digest = (
                None if send.value_digest is not None and world.rng.random() < 0.2 else world.fresh_value()
            )
        if record.value_digest is None and _tombstones(world, send):
            record.value_digest = world.fresh_value()
        send.truth = record.truth = "corrupted"
        use(world, send)
        return True
    return False


def _tombstones(world: World, send: Send) -> bool:
    return any(
        (s.topic, s.key_digest, s.value_digest) == (send.topic, send.key_digest, None) for s in world.sends
    )


def miscoded(world: World) -> bool:
    """The relay sent a value that differs from PostgreSQL's."""
    for send in victims(world, lambda topic, _: True)[:1]:
        record = record_at(world, send)
        send.truth = record.truth = "corrupted"
        world.miscoded.add(send.id)
        use(world, send)
        return True
    return False


def equivalent(world: World) -> bool:
    """The bytes differ, but the row is the same."""
    for send in victims(world, lambda topic, send: send.value_digest is not None)[:1]:
        record_at(world, send).value_digest = world.fresh_value()
        world.equal_pairs.add(send.id)
        use(world, send)
        return True
    return False


def reordered(world: World) -> bool:
    """A message of a key came after later messages of that key."""
    if world.gaps:
        return False
    rng = world.rng
    for send in victims(world, lambda topic, s: s.key_digest is not None):
        log = log_of(world, send)
        of_key = [s for s in world.sends if (s.topic, s.key_digest) == (send.topic, send.key_digest)]
        if len(of_key) < 2 or any(s.truth != "matched" or s.state != "acknowledged" or s.partition !=
                                  send.partition or has_twin(world, s) for s in of_key):  # fmt: skip
            continue
        offsets = [s.place[2] for s in of_key]
        start = rng.randrange(len(of_key) - 1)
        stop = rng.randint(start + 1, len(of_key) - 1)
        order = of_key[:start] + of_key[start + 1 : stop + 1] + [of_key[start]] + of_key[stop + 1 :]
        records = [record_at(world, s) for s in order]
        for one, record, offset in zip(order, records, offsets, strict=True):
            one.offset = offset
            log[offset] = record
        use(world, send)
        return True
    return False


def exchanged(world: World) -> bool:
    """Two messages of a key are swapped, although their delivery reports say otherwise."""
    if world.gaps:
        return False
    for send in victims(world, lambda topic, s: s.key_digest is not None):
        of_key = [s for s in world.sends if (s.topic, s.key_digest) == (send.topic, send.key_digest)]
        if len(of_key) < 2 or any(s.truth != "matched" or s.state != "acknowledged" or s.partition !=
                                  send.partition or has_twin(world, s) for s in of_key):  # fmt: skip
            continue
        one, other = sorted(s.place[2] for s in world.rng.sample(of_key, 2))
        log = log_of(world, send)
        log[one], log[other] = log[other], log[one]
        use(world, send)
        return True
    return False


def interleaved(world: World) -> bool:
    """A record of a later pass precedes one of an earlier pass, with different keys."""
    if world.gaps:
        return False
    found = victims(world, lambda topic, s: s.key_digest is not None)
    for first in found:
        for second in found:
            if (
                first.topic == second.topic
                and first.partition == second.partition
                and first.pass_number < second.pass_number
                and len({k.key_digest for k in (first, second)}) == 2
                and all(sum((s.topic, s.key_digest) == (x.topic, x.key_digest) for s in world.sends) == 1
                        for x in (first, second))
            ):  # fmt: skip
                log, one, other = log_of(world, first), first.place[2], second.place[2]
                log[one], log[other] = log[other], log[one]
                first.offset, second.offset = other, one
                use(world, first)
                use(world, second)
                return True
    return False


def moved(world: World) -> bool:
    """A lost message was sent again, byte for byte."""
    for send in victims(world, is_provable_loss(world))[:1]:
        record = take_away(world, send)
        append_beside(world, send, record)
        use(world, send)
        return True
    return False


def _stranger(world: World, record: Record) -> bool:
    """Put a foreign record between ours or at the end of a partition."""
    rng = world.rng
    places = []
    for topic in world.topics.values():
        for p, log in enumerate(topic.logs):
            ours = [s.place[2] for s in world.sends if (s.topic, s.partition) == (topic.name, p)]
            if ours:
                low, high = max(min(ours) + 1, topic.low[p]), topic.high[p]
                slots = [o for o in topic.slots[p] if low <= o < high and o not in log]
                places += [(topic, p, o) for o in [*slots, None]]
    if not places:
        return False
    topic, p, offset = rng.choice(places)
    if record.key_digest is None and topic.compacts:
        return False
    if offset is None:
        topic.append(p, record)
    else:
        topic.logs[p][offset] = record
    return True


def phantom(world: World) -> bool:
    """A record that looks like the relay's holds a row that was never committed, with or without headers."""
    if world.gaps:
        return False
    confirmed = [s.lsn for s in world.sends if s.lsn <= world.confirmed]
    lsn = world.rng.choice([None, max(confirmed, default=None)])
    ts = oldest_tail_ms(world) - 1 if lsn is None else NOW_MS
    return _stranger(world, Record(world.fresh_value(), world.fresh_value(), ts, "phantom", lsn=lsn))


def foreign(world: World) -> bool:
    """Another producer wrote a record."""
    key = world.rng.choice([None, world.fresh_value()])
    return _stranger(world, Record(key, world.fresh_value(), NOW_MS, "foreign", is_ours=False))


def own_key_by_another(world: World) -> bool:
    """Another producer wrote a record under one of our keys, which readers now take for the row."""
    for send in victims(world, lambda t, s: s.key_digest is not None)[:1]:
        record = Record(send.key_digest, world.fresh_value(), NOW_MS, "foreign", is_ours=False)
        append_beside(world, send, record)
        use(world, send)
        return True
    return False


def replaced(world: World) -> bool:
    """The broker lost a message and gave its offset to another producer's record."""
    for send in victims(world, is_provable_loss(world))[:1]:
        record = Record(world.fresh_value(), world.fresh_value(), NOW_MS, "foreign", is_ours=False)
        log_of(world, send)[send.place[2]] = record
        send.truth = "lost_acked"
        use(world, send)
        return True
    return False


def resurrected(world: World) -> bool:
    """A tombstone is missing, and the row before it is still there."""

    def wanted(topic: Topic, send: Send) -> bool:
        of_key = [s for s in world.sends if (s.topic, s.key_digest) == (send.topic, send.key_digest)]
        return (
            send.value_digest is None
            and topic.settings_known
            and send is of_key[-1]
            and is_last_of_key(topic, send)
            and all(s.state == "acknowledged" and s.truth == "matched" for s in of_key)
            and any(
                r.key_digest == send.key_digest and r.value_digest is not None
                for r in log_of(world, send).values()
            )
        )

    for send in victims(world, wanted)[:1]:
        take_away(world, send)
        send.truth = "lost_acked"
        use(world, send)
        return True
    return False


FAULTS: dict[str, Plant] = {
    function.__name__: function
    for function in (
        lost_acked, lost_unacked, lost_unsent, pending, refused, duplicated, corrupted, miscoded, equivalent,
        reordered, exchanged, interleaved, moved, planting_partitions.misrouted_by_relay,
        planting_partitions.misrouted_later, planting_partitions.misrouted_copy, phantom, foreign,
        own_key_by_another, replaced, resurrected, planting_logs.start_moved,
        planting_logs.end_lost, planting_logs.settings_hidden, planting_logs.gap_in_recording,
        planting_unrecorded.later_of_the_relay, planting_unrecorded.sent_again,
        planting_unrecorded.same_bytes_later, planting_bytes.rekeyed, planting_bytes.retimed,
        planting_bytes.reheadered, planting_copies.copied_elsewhere, planting_copies.twin_tombstones,
        planting_tails.tail_again, planting_tails.superseded_again, planting_shifts.shifted,
        planting_shifts.doubled_when_restored, planting_logs.gone_with_its_tombstone,
        planting_logs.taken_too_early, planting_put.lost_put, planting_put.unheard_put,
        planting_put.doubled_put, planting_put.stale_put, planting_put.chunk_again, planting_put.put_later,
    )
}  # fmt: skip


def plant(world: World, rng: random.Random, names: list[str]) -> list[str]:
    """Plant the faults in turn; return those for which there was a place."""
    return [name for name in names if FAULTS[name](world)]


def make_with(rng: random.Random, changes: int, first: str) -> tuple[World, list[str]]:
    """Make worlds until one has room for a fault."""
    for _ in range(20):
        world = make(rng, changes)
        if FAULTS[first](world):
            return world, [first]
    return world, []
