"""Make a clean world.

It has relays that were killed and sent their tail again, backfilled rows, compaction, retention, offsets that
other producers' transactions occupy, and records from before and after the recording.
"""

import random
from collections.abc import Iterator

from tests.audit.settling import settle_missing
from tests.audit.world import DAY_MS, NOW_MS, Record, Send, Topic, World

#: LSN, ordinal, part, operation, topic, key, value (or why there is no message), hash of the key.
Change = tuple[int, int, int, str, str | None, int | None, int | str | None, int | None]


def make(rng: random.Random, changes: int) -> World:
    """Return a clean world with about ``changes`` changes."""
    topics = {}
    for number in range(rng.randint(1, 3)):
        topic = _topic(rng, f"shop.t{number}")
        topics[topic.name] = topic
    world = World(rng, topics)
    for topic in topics.values():
        for key in range(rng.randint(2, 12)):
            world.keys[topic.name, 1000 * (1 + len(world.keys)) + key] = rng.getrandbits(31)
    _history(world)
    Relay(world).run(changes)
    _after(world)
    for topic in topics.values():
        _compact(world, topic)
        _retain(world, topic)
    settle_missing(world)
    return world


def _topic(rng: random.Random, name: str) -> Topic:
    compacts = rng.random() < 0.5
    deletes = not compacts or rng.random() < 0.2
    partitions = rng.choice([1, 1, 2, 3, 5])
    return Topic(
        name,
        partitions,
        compacts,
        deletes,
        retention_ms=rng.choice([-1, 3 * DAY_MS]) if deletes else -1,
        retention_bytes=rng.choice([-1, -1, 1 << 20]) if deletes else -1,
        lag_ms=rng.choice([0, DAY_MS]),
        keyed=compacts or rng.random() < 0.8,
        logs=[{} for _ in range(partitions)],
        low=[0] * partitions,
        high=[0] * partitions,
        slots=[[] for _ in range(partitions)],
    )


def _history(world: World) -> None:
    """Fill the topics with records from before the recording, some of them with the same bytes."""
    rng = world.rng
    for topic in world.topics.values():
        if rng.random() < 0.5:
            continue
        for p in range(topic.partitions):
            topic.low[p] = topic.high[p] = rng.choice([0, 0, 1000])
            for _ in range(rng.randint(0, 4)):
                mine = [k for (t, k), h in world.keys.items() if t == topic.name and topic.home(h) == p]
                key = rng.choice(mine) if mine and topic.keyed else None
                topic.append(p, Record(key, rng.randint(1, 5), NOW_MS - 30 * DAY_MS, "outside_window"))


class Relay:
    """Sends transactions, gets killed, and sends the tail again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.lsn = 5_000
        self.time_ms = NOW_MS - 10 * DAY_MS
        self.position = 0
        self.transactions: list[list[Change]] = []
        self.seen: set[tuple[int, int]] = set()
        self.confirmed = self.lsn
        #: Sent bytes that have no delivery report.
        self.unheard: set[tuple[str, int | None, int | None, int]] = set()

    def run(self, changes: int) -> None:
        """Make one to four passes."""
        passes = self.rng.randint(1, 4)
        number = 0
        if self.rng.random() < 0.5:
            number = 1
            self._snapshot(number)
        for _ in range(passes):
            number += 1
            self._pass(number, max(1, changes // passes), killed=self.rng.random() < 0.7)
        self.world.confirmed = self.confirmed

    def _snapshot(self, number: int) -> None:
        is_abandoned = self.rng.random() < 0.3
        self.world.passes[number] = not is_abandoned
        sends = []
        for name, topic in self.world.topics.items():
            for at, (key, h) in enumerate(k for k in _keys(self.world, name)):
                value = self.rng.randint(1, 5)
                kept, hashed = (key, h) if topic.keyed else (None, None)
                sends.append(self._send(number, (self.lsn, at + 1, 0, "snapshot", name, kept, value, hashed)))
        self._deliver(sends, killed=is_abandoned)

    def _pass(self, number: int, changes: int, *, killed: bool) -> None:
        self.world.passes[number] = True
        self.world.reached[number] = 0
        again = [t for t in self.transactions if t[0][0] > self.confirmed]
        fresh: list[list[Change]] = []
        while sum(map(len, fresh)) < changes:
            fresh.append(self._transaction())
        self.transactions += fresh
        sends = []
        for transaction in [*again, *fresh]:
            for change in transaction:
                send = self._send(number, change)
                send.is_repeat = (send.lsn, send.ordinal) in self.seen
                sends.append(send)
            if self.rng.random() < 0.1:
                sends += self._put(number, transaction[0][0] + 1)
        self.seen |= {(s.lsn, s.ordinal) for s in sends if s.in_transaction}
        self._deliver([s for s in sends if s.topic], killed=killed)
        bad = [s.lsn for s in sends if s.topic and s.state != "acknowledged"]
        done = sorted({s.lsn for s in sends if s.in_transaction and (not bad or s.lsn < min(bad))})
        if done:
            # An acknowledged message may still be unconfirmed when the relay is killed.
            back = self.rng.randint(0, min(3, len(done) - 1)) if killed else 0
            self.confirmed = max(self.confirmed, done[len(done) - 1 - back])
            self.world.reached[number] = done[len(done) - 1 - back] + 1

    def _put(self, number: int, lsn: int) -> list[Send]:
        """Backfill rows of a table, and tombstones of keys that it does not have."""
        name = self.rng.choice(list(self.world.topics))
        topic, sends = self.world.topics[name], []
        for ordinal, (key, h) in enumerate(_keys(self.world, name), 1):
            if self.rng.random() < 0.5:
                continue
            kept, hashed = (key, h) if topic.keyed else (None, None)
            gone = topic.keyed and self.rng.random() < 0.2
            value = None if gone else self.rng.choice([1, 2, 3, self.world.fresh_value()])
            op = "cleanup" if gone else "backfill"
            sends.append(self._send(number, (lsn, ordinal, 0, op, name, kept, value, hashed)))
        return sends

    def _transaction(self) -> list[Change]:
        self.lsn += self.rng.randint(1, 100)
        self.time_ms += self.rng.randint(1, 60_000)
        made: list[Change] = []
        for ordinal in range(1, 1 + self.rng.choice([1, 1, 1, 2, 3, 5])):
            name = self.rng.choice(list(self.world.topics))
            topic = self.world.topics[name]
            chosen = self.rng.choice(list(_keys(self.world, name)))
            key, h = chosen if topic.keyed else (None, None)
            kind = self.rng.random()
            # Few values, so that different changes have the same bytes.
            value = self.rng.randint(1, 5) if self.rng.random() < 0.3 else self.world.fresh_value()
            if kind < 0.05:
                made.append((self.lsn, ordinal, 0, "update", None, None, "superseded", None))
            elif kind < 0.15 and topic.keyed:
                made.append((self.lsn, ordinal, 0, "delete", name, key, None, h))
            elif kind < 0.2 and topic.keyed:
                other, h2 = self.rng.choice(list(_keys(self.world, name)))
                made.append((self.lsn, ordinal, 0, "update", name, key, None, h))
                made.append((self.lsn, ordinal, 1, "update", name, other, value, h2))
            else:
                made.append((self.lsn, ordinal, 0, "update", name, key, value, h))
        return made

    def _send(self, number: int, change: Change) -> Send:
        lsn, ordinal, part, op, name, key_digest, value, h = change
        if part == 0:
            self.position += 1
        send = Send(self.position * 4096 + part, number, lsn, ordinal, part, op,
                    self.time_ms, name, key_digest, value if isinstance(value, int) else None, h)  # fmt: skip
        if name is None:
            send.without, send.state = str(value), "unsent"
        self.world.sends.append(send)
        return send

    def _deliver(self, sends: list[Send], *, killed: bool) -> None:
        """Append the messages to the logs; of the last ones before a kill, some arrive unacknowledged."""
        rng = self.rng
        tail = rng.randint(1, 8) if killed else 0
        heard = len(sends) - tail
        stopped: set[tuple[str, int]] = set()
        for index, send in enumerate(sends):
            topic = self.world.topic_of(send)
            p = topic.home(send.key_hash) if send.key_digest is not None else rng.randrange(topic.partitions)
            if index >= heard:
                send.state = "unknown"
                content = topic.name, send.key_digest, send.value_digest, send.time_ms
                # If two messages have the same bytes, it can't be determined which one arrived.
                is_second = content in self.unheard
                self.unheard.add(content)
                if (topic.name, p) in stopped or (rng.random() < 0.4 and not is_second):
                    stopped.add((topic.name, p))
                    send.truth = "not there"
                    continue
                if is_second:
                    send.state = "acknowledged"
            if rng.random() < 0.1:
                topic.slots[p].append(topic.high[p])
                topic.high[p] += 1
            record = Record(send.key_digest, send.value_digest, send.time_ms, "matched", send)
            offset = topic.append(p, record)
            if send.state == "acknowledged":
                send.partition, send.offset = p, offset


def _keys(world: World, name: str) -> Iterator[tuple[int, int]]:
    for (topic, key), h in world.keys.items():
        if topic == name:
            yield key, h


def _after(world: World) -> None:
    """Append records that the relay sent after the recording had ended."""
    if world.rng.random() < 0.3:
        for topic in world.topics.values():
            for p in range(topic.partitions):
                if any(record.send is not None for record in topic.logs[p].values()):
                    key = next((k for k, h in _keys(world, topic.name) if topic.home(h) == p), None)
                    if key is not None:
                        record = Record(key, world.fresh_value(), NOW_MS - 1000, "outside_window")
                        record.key_digest = key if topic.keyed else None
                        topic.append(p, record)


def _compact(world: World, topic: Topic) -> None:
    """Clean the older part of each partition as a broker does."""
    if not topic.compacts or world.rng.random() < 0.3:
        return
    for p, log in enumerate(topic.logs):
        horizon = world.rng.randint(topic.low[p], max(topic.low[p], topic.high[p] - 1))
        # The cleaner does not reach records younger than the lag.
        young = (o for o, record in sorted(log.items()) if topic.lag_ms and record.ts > NOW_MS - topic.lag_ms)
        horizon = min(horizon, next(young, horizon))
        newest = {record.key_digest: o for o, record in sorted(log.items()) if o < horizon}
        drops_tombstones = world.rng.random() < 0.5
        for o in newest.values():
            # Records that a tombstone of unknown offset replaced can't be proven to be compacted.
            send = log[o].send
            if log[o].value_digest is None and (send is None or send.offset is None):
                drops_tombstones = False
        for o in sorted(log):
            record = log[o]
            if o >= horizon or record.key_digest is None:
                continue
            if newest[record.key_digest] > o:
                _gone(topic, p, o, "compacted")
            elif record.value_digest is None and drops_tombstones:
                ripe = (r for n, r in log.items() if n > o and r.ts <= NOW_MS - topic.lag_ms)
                later = any(r.key_digest == record.key_digest for r in ripe)
                _gone(topic, p, o, "compacted" if later else "tombstone_expired")


def _retain(world: World, topic: Topic) -> None:
    """Drop the beginning of each partition as a broker does."""
    if not topic.deletes or world.rng.random() < 0.5:
        return
    if topic.retention_ms < 0 and topic.retention_bytes < 0:
        return
    for p, log in enumerate(topic.logs):
        low = world.rng.randint(topic.low[p], topic.high[p])
        for o in [o for o in log if o < low]:
            _gone(topic, p, o, "expired")
        for record in list(log.values()):
            if record.send is not None and record.send.offset is not None and record.send.offset < low:
                record.send.truth = "expired"
        topic.low[p] = low
    # A message that was compacted below the new start counts as expired: the two look the same.
    for send in world.sends:
        if send.topic == topic.name and send.offset is not None and send.offset < topic.low[send.place[1]]:
            send.truth = "expired"


def _gone(topic: Topic, p: int, o: int, truth: str) -> None:
    record = topic.logs[p].pop(o)
    if record.send is not None:
        # If the offset is unknown, the only certain thing is that the message is missing.
        record.send.truth = truth if record.send.offset is not None else "not there"
