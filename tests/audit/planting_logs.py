"""Faults that affect a whole log, a topic's settings, or the recording itself."""

from tests.audit.planting_unrecorded import has_late_duplicate
from tests.audit.victims import append_beside, is_provable_loss, take_away, use, victims
from tests.audit.world import DAY_MS, NOW_MS, Record, Send, Topic, World


def start_moved(world: World) -> bool:
    """Records were deleted from the beginning of a log that keeps everything."""
    for topic in world.topics.values():
        if topic.compacts or topic.retention_bytes >= 0 or topic.retention_ms >= 0 or any(topic.low):
            continue
        p = world.rng.randrange(topic.partitions)
        mine = [s for s in world.sends if (s.topic, s.partition) == (topic.name, p)]
        if not mine or any(
            (s.topic, s.key_digest) in world.used_keys for s in world.sends if s.topic == topic.name
        ):
            continue
        if any(s.topic == topic.name and s.state != "acknowledged" for s in world.sends):
            continue
        topic.low[p] = mine[len(mine) // 2].place[2] + 1
        _drop(world, topic, p, set(range(topic.low[p])))
        return True
    return False


def end_lost(world: World) -> bool:
    """The broker lost the end of a log."""
    for topic in world.topics.values():
        p = world.rng.randrange(topic.partitions)
        mine = [s for s in world.sends if (s.topic, s.partition) == (topic.name, p)]
        if not mine or topic.compacts or not topic.settings_known:
            continue
        if any((s.topic, s.key_digest) in world.used_keys for s in world.sends if s.topic == topic.name):
            continue
        if any(s.topic == topic.name and s.state != "acknowledged" for s in world.sends):
            continue
        high = topic.high[p]
        topic.high[p] = max(topic.low[p], mine[-1 - world.rng.randrange(len(mine))].place[2])
        _drop(world, topic, p, set(range(topic.high[p], high)))
        return True
    return False


def _drop(world: World, topic: Topic, p: int, gone: set[int]) -> None:
    for send in world.sends:
        if (send.topic, send.partition) == (topic.name, p) and send.offset is not None:
            if send.offset in gone:
                send.truth = "lost_acked"
            world.used_keys.add((send.topic, send.key_digest))
    for o in gone & set(topic.logs[p]):
        del topic.logs[p][o]
    # A change that was sent twice and has only one record left counts as sent once.
    firsts: dict[tuple[int, int, int, str | None], Send] = {}
    for send in world.sends:
        if send.topic and send.truth in ("matched", "redelivered") and send.in_transaction:
            first = firsts.setdefault(send.identity, send)
            send.truth = "matched" if first is send else "redelivered"
    for _, _, record in topic.records():
        if record.send is not None:
            record.truth = record.send.truth


def gone_with_its_tombstone(world: World) -> bool:
    """All records of a key are missing, although its tombstone is too young to have been compacted."""
    for topic in world.topics.values():
        mine = [s for s in world.sends if s.topic == topic.name]
        if (
            not topic.compacts
            or not topic.settings_known
            or any(s.truth == "tombstone_expired" for s in mine)
        ):
            continue
        for last in mine:
            of_key = [s for s in mine if s.key_digest == last.key_digest]
            records = [(p, o) for p, o, r in topic.records() if r.key_digest == last.key_digest]
            if (
                last.value_digest is not None
                or last is not of_key[-1]
                or (topic.name, last.key_digest) in world.used_keys
                or any(s.state != "acknowledged" or s.truth != "matched" for s in of_key)
                or len(records) != len(of_key)
            ):
                continue
            topic.delete_retention_ms = 30 * DAY_MS
            for p, o in records:
                del topic.logs[p][o]
            for send in of_key:
                # The cleaner may have replaced each of them by the next one, but the last has no excuse.
                send.truth = "lost_acked" if send is last else "indeterminate"
            use(world, last)
            return True
    return False


def taken_too_early(world: World) -> bool:
    """A record is missing from a compacted log, but its key's next record is too young to be compacted."""
    if has_late_duplicate(world):
        return False

    def wanted(topic: Topic, send: Send) -> bool:
        return topic.compacts and topic.lag_ms > 0 and is_provable_loss(world)(topic, send)

    for send in victims(world, wanted)[:1]:
        take_away(world, send)
        send.truth = "indeterminate"
        later = Record(send.key_digest, world.fresh_value(), NOW_MS - 1000, "outside_window")
        append_beside(world, send, later)
        use(world, send)
        return True
    return False


def settings_hidden(world: World) -> bool:
    """A topic's settings can't be read, so no excuse can be proven."""
    for topic in world.topics.values():
        if any(s.topic == topic.name and s.truth.startswith("lost") for s in world.sends):
            continue
        if any(s.topic == topic.name and s.state != "acknowledged" for s in world.sends):
            continue
        gone = [s for s in world.sends if s.topic == topic.name and s.truth in
                ("compacted", "expired", "tombstone_expired")]  # fmt: skip
        if gone and topic.settings_known:
            topic.settings_known = False
            for send in gone:
                send.truth = "indeterminate"
                world.used_keys.add((send.topic, send.key_digest))
            return True
    return False


def gap_in_recording(world: World) -> bool:
    """Between two recorded changes, the relay sent changes that were not recorded."""
    if any(
        r.truth in ("phantom", "duplicated") for topic in world.topics.values() for _, _, r in topic.records()
    ):
        return False
    stream = [s for s in world.sends if s.topic and s.offset is not None and s.op != "snapshot"]
    for send in world.rng.sample(stream, len(stream)):
        topic, p = world.topic_of(send), send.place[1]
        # A misrouted message may be out of order, and so may a row of the snapshot.
        before = [s.offset for s in world.sends if s.partition == send.partition and s.topic == send.topic
                  and s.offset is not None and s.id < send.id]  # fmt: skip
        later = [s.place[2] for s in stream if s.place[:2] == send.place[:2] and s.id >= send.id]
        for o in topic.slots[p]:
            if before and max(before) < o < min(later) and o not in topic.logs[p]:
                if not topic.low[p] <= o < topic.high[p]:
                    continue
                if not any(max(before) < s < o for s in topic.logs[p]):
                    record = Record(world.fresh_value(), world.fresh_value(), send.time_ms, "outside_window")
                    topic.logs[p][o] = record
                    world.gaps.append((len(world.gaps), send.id))
                    return True
    return False
