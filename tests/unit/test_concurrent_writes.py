"""A repair without a relay detects a topic's other writers, and the keys that they wrote before it."""

from collections.abc import Callable, Iterator

import pytest

from bwtui.errors import RefusedError
from bwtui.repair import concurrent_writes
from bwtui.repair.concurrent_writes import ConcurrentWrites
from bwtui.sink.destination import KeyRecord, Offsets, TopicScanner

_OURS = b"ours"


class Topic(TopicScanner):
    """A topic of one partition."""

    def __init__(self) -> None:
        self.records: list[KeyRecord] = []

    def write(self, *keys: bytes, session: bytes | None = None) -> None:
        self.records += [KeyRecord(key, False, session) for key in keys]

    def end_offsets(self, topic: str) -> Offsets:
        return {0: len(self.records)}

    def keys(
        self, topic: str, start: Offsets, end: Offsets, on_wait: Callable[[], None]
    ) -> Iterator[KeyRecord]:
        yield from self.records[start[0] : end[0]]


def test_of_a_key_only_what_came_right_before_ours_overtakes_it() -> None:
    topic = Topic()
    topic.write(b"before the comparison")
    seen = ConcurrentWrites(topic, "t", topic.end_offsets("t"), _OURS)
    topic.write(b"left out", session=b"another's")
    assert seen.advance() == set()
    assert seen.since(0) == {b"left out"}
    # Where theirs precede ours, ours may be older. Where theirs is the last, theirs is the newest.
    topic.write(b"a", b"b", b"c", b"d")
    topic.write(b"a", b"b", b"c", session=_OURS)
    topic.write(b"b")
    assert seen.advance() == {b"a", b"c"}
    assert seen.since(0) == {b"left out", b"a", b"b", b"c", b"d"}
    looked = seen.looks
    topic.write(b"c")
    # Records from before the last poll no longer prevent a resend of the key.
    assert seen.advance() == set()
    assert seen.since(looked) == {b"c"}


def test_it_remembers_no_more_keys_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent_writes, "_MOST_KEYS", 3)
    topic = Topic()
    seen = ConcurrentWrites(topic, "t", {0: 0}, _OURS)
    topic.write(b"1", b"2", b"3", b"3")
    seen.advance()
    topic.write(b"4")
    with pytest.raises(RefusedError, match="more than 3 keys were written to topic t"):
        seen.advance()
