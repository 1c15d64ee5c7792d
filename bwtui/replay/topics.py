"""Check whether the topics of a replay can accept its messages."""

import time
from collections.abc import Mapping

from bwtui.encode.names import colliding_topics
from bwtui.errors import RefusedError, UsageError
from bwtui.kafka.scan import TopicState
from bwtui.replay.rows import TopicMessageCount

_OTHER = "choose a different --topic-prefix"
_HOUR, _DAY = 3_600_000, 86_400_000


def refuse_names(names: Mapping[str, str], existing: Mapping[str, int]) -> None:
    """Raise if names of target topics (by recorded one) collide, with each other or with ``existing``."""
    if len(set(names.values())) < len(names):
        raise UsageError("two recorded topics would be replayed to the same topic", _OTHER)
    new = set(names.values()) - existing.keys()
    for group in colliding_topics([*existing, *new]) if new else ():
        if new.intersection(group):
            raise RefusedError(
                f"the names of topics {' and '.join(group)} differ only in dots and underscores, "
                "which Kafka does "
                "not allow",
                _OTHER,
            )


def judge_topic(state: TopicState, count: TopicMessageCount) -> list[str]:
    """Return warnings about an existing topic. Raises RefusedError if it can't accept all messages."""
    if state.compacts and not state.deletes and count.without_key:
        has = "has" if count.without_key == 1 else "have"
        raise RefusedError(
            f"topic {state.name} is compacted, and {count.without_key:,} of its messages {has} no key",
            f"exclude them with --table or --where, or {_OTHER}",
        )
    retention_ms = int((state.settings or {}).get("retention.ms", -1))
    by_us = (state.settings or {}).get("message.timestamp.type") != "LogAppendTime"
    if state.deletes and by_us and 0 <= retention_ms < time.time() * 1000 - count.first_stamp:
        return [
            f"topic {state.name} keeps messages for {_span(retention_ms)}: Kafka will remove replayed "
            "messages that are "
            "older"
        ]
    return []


def _span(milliseconds: int) -> str:
    for size, name in ((_DAY, "day"), (_HOUR, "hour")):
        if milliseconds >= size and not milliseconds % size:
            return f"{milliseconds // size:,} {name}{'' if milliseconds == size else 's'}"
    return f"{milliseconds / 1000:,g} s"
