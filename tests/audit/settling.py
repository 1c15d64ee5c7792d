"""Classify messages without a delivery report that are missing in a clean world."""

from tests.audit.world import Send, World


def settle_missing(world: World) -> None:
    """Classify the missing messages without a delivery report, and mark the ones that arrived twice."""
    firsts: dict[tuple[int, int, int, str | None], list[Send]] = {}
    for send in world.sends:
        if send.topic and send.in_transaction:
            firsts.setdefault(send.identity, []).append(send)
    for send in world.sends:
        if send.truth == "not there":
            same = firsts.get(send.identity, [send])
            if send.in_transaction and any(other.id > send.id for other in same):
                send.truth = "resent"
            else:
                send.truth = "lost_unacked" if world.is_confirmed(send) else "pending"
            if send.truth == "lost_unacked":
                send.truth = "indeterminate" if _may_be_excused(world, send) else "lost_unacked"
    for same in firsts.values():
        arrived = [send for send in same if send.truth == "matched"]
        for send in arrived[1:]:
            send.truth = "redelivered"
    for topic in world.topics.values():
        for _, _, record in topic.records():
            if record.send is not None and record.truth in ("matched", "redelivered"):
                record.truth = record.send.truth


def _may_be_excused(world: World, send: Send) -> bool:
    topic = world.topic_of(send)
    expired = any(low > 0 for low in topic.low)
    keyed = any(r.key_digest == send.key_digest and r.key_digest is not None for _, _, r in topic.records())
    # A tombstone makes compaction drop a key's rows, and is then dropped itself.
    buried = send.key_digest is not None and any(
        (s.topic, s.key_digest, s.value_digest) == (send.topic, send.key_digest, None) and s.id >= send.id
        for s in world.sends
    )
    return (topic.compacts and (keyed or expired or buried)) or (topic.deletes and expired)
