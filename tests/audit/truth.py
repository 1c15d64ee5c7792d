"""The expected findings for a world, derived from the truth by the definitions of docs/audit.md alone.

This shares nothing with the audit: a finding is a tuple of its class and its identification.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.audit.world import Record, Send, Topic, World

#: Found for a key, not for a message or a record.
Finding = tuple[str, str, Any]


def truth(world: World) -> Counter[Finding]:
    """Return every expected (class, subject), and how often it must be found."""
    found: Counter[Finding] = Counter()
    for send in world.sends:
        if send.topic or send.without is None:
            found["message", send.truth, send.id] += 1
    for topic in world.topics.values():
        for p, o, record in topic.records():
            found["record", record.truth, (topic.name, p, o)] += 1
            if record.send is not None and record.truth in ("matched", "redelivered"):
                if record.send.id in world.equal_pairs:
                    found["note", "equivalent", record.send.id] = 1
                elif record.send.offset not in (None, o):
                    found["note", "moved", record.send.id] = 1
                if record.ts != record.send.time_ms:
                    found["note", "time_differs", record.send.id] = 1
                if record.headers_digest != record.send.headers_digest:
                    found["note", "headers_differ", record.send.id] = 1
    found.update(_gaps(world))
    found.update(_order(world))
    found.update(_latest(world))
    found.update(_transactions(world))
    found.update(_sessions(world))
    return found


def _gaps(world: World) -> Counter[Finding]:
    """Return the unexplained holes of logs where a message should be."""
    found: Counter[Finding] = Counter()
    places = {(s.topic, s.partition, s.offset) for s in world.sends if s.offset is not None}
    for topic in world.topics.values():
        if topic.compacts or not topic.settings_known:
            continue
        for p, log in enumerate(topic.logs):
            first = None
            for o in range(topic.low[p], topic.high[p] + 1):
                if o in log or o == topic.high[p]:
                    first = None
                    continue
                first = o if first is None else first
                if (topic.name, p, o) in places:
                    found["hole", "offset_gap", (topic.name, p, first)] = 1
    return found


def _arrived(world: World) -> Iterator[tuple[Topic, int, int, Record, Send]]:
    """Yield topic, partition, offset, record and message of each message that arrived as it was sent."""
    for topic in world.topics.values():
        for p, o, record in topic.records():
            if record.send is not None and record.truth in ("matched", "redelivered"):
                yield topic, p, o, record, record.send


def _order(world: World) -> Counter[Finding]:
    keys: dict[tuple[str, int, int], list[int]] = {}
    for topic, p, _, record, send in _arrived(world):
        if record.key_digest is not None:
            keys.setdefault((topic.name, p, record.key_digest), []).append(send.id)
    return Counter({
        ("key", "reordered", key): len(ids) - _longest_run(ids)
        for key, ids in keys.items() if _longest_run(ids) < len(ids)
    })  # fmt: skip


def _longest_run(numbers: list[int]) -> int:
    lengths: list[int] = []
    for at, number in enumerate(numbers):
        lengths.append(1 + max((lengths[i] for i in range(at) if numbers[i] < number), default=0))
    return max(lengths, default=0)


def _latest(world: World) -> Counter[Finding]:
    found: Counter[Finding] = Counter()
    last = {}
    for send in sorted(world.sends, key=lambda s: s.id):
        if send.topic and send.key_digest is not None and send.truth not in ("pending", "resent", "refused"):
            last[send.topic, send.key_digest] = send
    for (name, key), send in last.items():
        topic = world.topics[name]
        place = world.place_of(send) if send.truth in ("matched", "redelivered") else None
        p = place[0] if place else send.partition
        if p is None:
            continue
        inside = [
            (o, r) for o, r in topic.logs[p].items() if r.key_digest == key and r.truth != "outside_window"
        ]
        if not inside:
            continue
        newest = max(inside, key=lambda one: one[0])[1]
        is_equal = newest.value_digest == send.value_digest or (
            newest.send is not None and newest.send.id in world.equal_pairs
        )
        if not is_equal:
            is_there = any(r.send is send for _, _, r in topic.records()) or send.truth == "misrouted"
            name_ = "resurrected" if send.value_digest is None and not is_there else "regressed"
            found["key", name_, (name, p, key)] += 1
    return found


def _transactions(world: World) -> Counter[Finding]:
    found: Counter[Finding] = Counter()
    lost, there = set(), set()
    for send in world.sends:
        if send.in_transaction:
            if send.truth.startswith("lost"):
                lost.add(send.lsn)
            if send.topic and send.truth in ("matched", "redelivered"):
                there.add(send.lsn)
    found.update({("transaction", "torn_transaction", lsn): 1 for lsn in lost & there})
    return found


def _sessions(world: World) -> Counter[Finding]:
    found: Counter[Finding] = Counter()
    # Records that moved by the same distance kept their order among them.
    newest: dict[tuple[str, int, int], int] = {}
    for topic, p, o, _, send in sorted(_arrived(world), key=lambda a: (a[0].name, a[1], a[2])):
        number = send.pass_number
        at = topic.name, p, 0 if send.offset is None else o - send.offset
        if newest.get(at, number) > number:
            found["partition", "interleaved_sessions", (topic.name, p)] = 1
        newest[at] = number
    return found
