"""Recordings that end in an unconfirmed tail, which an unrecorded run sent again."""

from tests.audit.world import Record, Send, World


def tail_again(world: World) -> bool:
    """The relay sent its tail again, some of it with different bytes because values were read again."""
    newest: dict[tuple[int, int, int, str | None], Send] = {}
    for send in sorted(world.sends, key=lambda s: s.id):
        if send.topic and send.in_transaction and send.lsn > world.confirmed:
            newest[send.identity] = send
    tail = sorted(newest.values(), key=lambda s: (s.lsn, s.ordinal, s.part))
    if not tail or world.gaps or not all(_may_come_again(world, send) for send in tail):
        return False
    for send in tail:
        topic = world.topic_of(send)
        p = (
            topic.home(send.key_hash)
            if send.key_digest is not None
            else world.rng.randrange(topic.partitions)
        )
        record = Record(send.key_digest, send.value_digest, send.time_ms, "outside_window")
        if send.value_digest is not None and world.rng.random() < 0.3:
            record.value_digest = world.fresh_value()
            record.lsn, record.ordinal = world.rng.choice([(None, None), (send.lsn, send.ordinal)])
        elif send.truth == "pending":
            # It can't be distinguished from the one without a delivery report.
            record.truth, record.send, send.truth = "matched", send, "matched"
        topic.append(p, record)
        world.used_keys.add((send.topic, send.key_digest))
    return True


def _may_come_again(world: World, send: Send) -> bool:
    same = [
        s
        for s in world.sends
        if (s.topic, s.key_digest, s.value_digest) == (send.topic, send.key_digest, send.value_digest)
    ]
    return (
        not world.topic_of(send).compacts
        and (send.topic, send.key_digest) not in world.used_keys
        and send.truth in ("matched", "redelivered", "pending")
        and (send.truth != "pending" or len(same) == 1)
        # Without a key and a delivery report, the partition in which it arrived is unknown.
        and (send.key_digest is not None or send.state == "acknowledged")
    )


def superseded_again(world: World) -> bool:
    """A change of the tail had no message because its row was deleted, and has one when it is sent again."""
    found = [s for s in world.sends if s.without and s.lsn > world.confirmed]
    places = [
        (topic, p)
        for topic in world.topics.values()
        for p, log in enumerate(topic.logs)
        if topic.keyed and any(r.send for r in log.values())
    ]
    if not found or not places:
        return False
    send, (topic, p) = world.rng.choice(found), world.rng.choice(places)
    lsn, ordinal = world.rng.choice([(None, None), (send.lsn, send.ordinal)])
    value = world.fresh_value()
    topic.append(p, Record(value, value, send.time_ms, "outside_window", lsn=lsn, ordinal=ordinal))
    return True
