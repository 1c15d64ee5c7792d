"""A handmade recording and its topics, for tests of one rule each."""

import random
from collections import Counter
from typing import Any

from tests.audit import judging
from tests.audit.world import DAY_MS, NOW_MS, Record, Send, Topic, World

LAST_MS = NOW_MS - 5 * DAY_MS


class Made:
    """A recording of one or more passes over one or more topics."""

    def __init__(self, partitions: int = 1, **settings: Any) -> None:
        self.world = World(random.Random(0), {}, passes={1: True})
        self.topic = self.add_topic("shop.t", partitions, **settings)
        self.number = 0

    def add_topic(self, name: str, partitions: int = 1, **settings: Any) -> Topic:
        topic = Topic(name, partitions, **{"compacts": False, "deletes": True} | settings)
        topic.logs = [{} for _ in range(partitions)]
        topic.low, topic.high = [0] * partitions, [0] * partitions
        self.world.topics[name] = topic
        return topic

    def send(self, key: int | None, value: int | None, *, state: str = "acknowledged",
             arrives: bool = True, p: int = 0, topic: str = "shop.t", **more: Any) -> Send:  # fmt: skip
        """Record a message in a transaction of its own, in the last millisecond of the recording."""
        self.number += 1
        facts: dict[str, Any] = {"ordinal": 1, "pass_number": 1, "op": "update", "time_ms": LAST_MS}
        facts["lsn"] = 100 * self.number
        home = None if key is None else p
        send = Send(self.number * 4096, part=0, topic=topic, key_digest=key, value_digest=value,
                    key_hash=home, state=state, **facts | more)  # fmt: skip
        self.world.passes[send.pass_number] = True
        self.world.sends.append(send)
        self.world.confirmed = send.lsn
        there = self.world.topics[topic]
        offset = there.high[p]
        if arrives:
            there.append(p, Record(key, value, send.time_ms, "", send, headers_digest=send.headers_digest))
        elif state == "acknowledged":
            there.high[p] += 1
        if state == "acknowledged":
            send.partition, send.offset = p, offset
        return send

    def superseded(self, time_ms: int = LAST_MS) -> None:
        """Record a change that has no message, for a reason."""
        self.number += 1
        self.world.sends.append(
            Send(self.number * 4096, 1, 100 * self.number, 1, 0, "update", time_ms, None, None, None, None,
                 state="unsent", without="superseded")
        )  # fmt: skip

    def stand(self, key: int | None, value: int | None, ts: int = LAST_MS, p: int = 0,
              topic: str = "shop.t", **more: Any) -> None:  # fmt: skip
        """Append a record that does not match any message of the recording."""
        self.world.topics[topic].append(p, Record(key, value, ts, "", **more))

    def classes(self) -> tuple[Counter[str], Counter[str], Counter[str]]:
        """Return the classes of the messages and of the records, and the remaining findings."""
        found, connection = judging.audit(self.world)
        connection.close()
        kinds: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
        for (kind, name, _), number in found.items():
            kinds[{"message": 0, "record": 1}.get(kind, 2)][name] += number
        return kinds
