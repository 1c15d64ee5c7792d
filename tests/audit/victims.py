"""Select messages for a fault: only of keys that no other fault has touched."""

from collections.abc import Callable

from tests.audit.world import Record, Send, Topic, World


def victims(world: World, wanted: Callable[[Topic, Send], bool]) -> list[Send]:
    found = []
    for send in world.sends:
        if send.truth not in ("matched",) or send.state != "acknowledged" or send.topic is None:
            continue
        if (send.topic, send.key_digest) in world.used_keys or has_twin(world, send):
            continue
        if wanted(world.topic_of(send), send):
            found.append(send)
    world.rng.shuffle(found)
    return found


def has_twin(world: World, send: Send) -> bool:
    """Return whether other messages have the same bytes, so that they can't be distinguished."""
    content = (send.key_digest, send.value_digest)
    others: list[Send | Record] = [o for o in world.sends if o is not send and o.topic == send.topic]
    others += [r for _, _, r in world.topic_of(send).records() if r.send is not send]
    return any((one.key_digest, one.value_digest) == content for one in others)


def use(world: World, send: Send) -> None:
    world.used_keys.add((send.topic, send.key_digest))


def oldest_tail_ms(world: World) -> int:
    """Return the time from which an unrecorded run would send."""
    tail = [s.time_ms for s in world.sends if s.in_transaction and s.lsn > world.confirmed]
    return min(tail, default=max(s.time_ms for s in world.sends))


def is_last_of_key(topic: Topic, send: Send) -> bool:
    _, p, offset = send.place
    log = topic.logs[p]
    return not any(o > offset and r.key_digest == send.key_digest for o, r in log.items())


def opens_window(world: World, send: Send) -> bool:
    """Return whether it begins the window of its partition: without its offset, others would lie outside."""
    mine = [o.place[2] for o in world.sends if (o.topic, o.partition) == (send.topic, send.partition)]
    return send.offset == min(mine)


def is_provable_loss(world: World) -> Callable[[Topic, Send], bool]:
    """Return a test for messages that compaction could not have dropped, nor any older one of the key."""

    def wanted(topic: Topic, send: Send) -> bool:
        if not topic.settings_known:
            return False
        if not topic.compacts:
            return True
        of_key = [s for s in world.sends if s.topic == send.topic and s.key_digest == send.key_digest]
        return (
            is_last_of_key(topic, send)
            and send.value_digest is not None
            and all(s.truth in ("matched", "redelivered") for s in of_key)
        )

    return wanted


def log_of(world: World, send: Send) -> dict[int, Record]:
    """Return the log of the partition in which a message was acknowledged."""
    topic, p, _ = send.place
    return world.topics[topic].logs[p]


def record_at(world: World, send: Send) -> Record:
    """Return the record at the offset where a message was acknowledged."""
    return log_of(world, send)[send.place[2]]


def append_beside(world: World, send: Send, record: Record) -> None:
    """Append a record to the partition in which a message was acknowledged."""
    topic, p, _ = send.place
    world.topics[topic].append(p, record)


def take_away(world: World, send: Send) -> Record:
    return log_of(world, send).pop(send.place[2])
