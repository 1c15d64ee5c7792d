"""Consumer groups that read topics: those with committed offsets in them, and the lag of each.

Each poll uses Kafka's admin API to get the groups, their committed offsets and the partitions' ends, and
reads the first message that a group has not read for its timestamp. These reads are bounded and cached, since
the message at an offset never changes. Nothing is committed, and no group is joined.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from bwtui.command_log import COMMANDS, KAFKA
from bwtui.errors import BwtuiError
from bwtui.kafka.client import (
    MISSING_TOPIC,
    REQUEST_SECONDS,
    Config,
    LastClientError,
    new_client,
    plain_kafka_error,
)
from bwtui.kafka.commands import LoggedAdmin, ready_client
from bwtui.kafka.scan import Place
from bwtui.model.service_views import Consumers, GroupEntry, PartitionLag

#: Maximum number of groups, and of partitions of each, in one answer: those with the largest lag.
_GROUPS, _PARTITIONS = 200, 200
#: Maximum number of first unread messages per poll, the time limit for these, and the size of the cache.
_READS, _READ_SECONDS, _REMEMBERED = 100, 2.0, 10_000
#: Settings to fetch a single batch of a partition, as small as the broker has it.
_FETCH: Mapping[str, Any] = {
    "group.id": "bwtui-unused",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "fetch.message.max.bytes": 1_024,
    "queued.min.messages": 1,
    # A partition without more messages would delay the next one.
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 10,
}
#: Errors that exclude one topic or group from the result, rather than fail the whole poll.
_PASSED_OVER = frozenset(
    {
        *MISSING_TOPIC,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)

#: Offsets by partition: a group's committed offsets, or the ends of logs.
_Offsets = dict[Place, int]
#: A partition, and the first offset that a group has not read there.
_Unread = tuple[Place, int]


class GroupReader:
    """Polls the groups with clients that live from the first poll to `close`; for one thread."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._heard = LastClientError()
        self._admin: LoggedAdmin | None = None
        self._consumer: Consumer | None = None
        #: Timestamp of the first message from an offset on, if it has one.
        self._times: dict[_Unread, float | None] = {}
        #: Offsets after which the last poll found only transaction markers or compacted offsets.
        self._empty: set[_Unread] = set()

    def poll(self, topics: Collection[str]) -> Consumers:
        """Return the groups that read ``topics``; the result says what could not be read."""
        begun = time.monotonic()
        notes: list[str] = []
        try:
            groups = self._groups(set(topics), notes)
        except KafkaException as error:
            return Consumers(time.time(), self._plain(error.args[0]), (), time.monotonic() - begun)
        except BwtuiError as error:
            return Consumers(time.time(), error.message, (), time.monotonic() - begun)
        return Consumers(time.time(), "", tuple(notes), time.monotonic() - begun, groups)

    def close(self) -> None:
        """Disconnect; the next poll connects again."""
        if self._consumer is not None:
            self._consumer.close()
        self._admin = self._consumer = None
        # A topic may be recreated in the meantime.
        self._times.clear()

    def _groups(self, topics: set[str], notes: list[str]) -> tuple[GroupEntry, ...]:
        states = self._listed()
        if not states:
            notes.append(
                "Kafka lists no consumer groups: there are none, or this user may not see any "
                "(ACL: Describe on groups)"
            )
        if states.pop("", None) is not None:
            notes.append("a group with an empty name is omitted: Kafka's client can't query its offsets")
        committed = self._committed(states, topics, notes)
        ends = self._ends({place[0] for offsets in committed.values() for place in offsets}, notes)
        unread = _unread(committed, ends)
        self._read_times(unread, notes)
        members = self._members(list(committed))
        groups = [
            self._group(name, states[name], members.get(name), offsets, ends)
            for name, offsets in committed.items()
        ]
        groups.sort(key=lambda group: (-group.unread, group.name))
        if len(groups) > _GROUPS:
            notes.append(f"only the {_GROUPS} of {len(groups):,} groups with the largest lag are shown")
        return tuple(groups[:_GROUPS])

    def _listed(self) -> dict[str, str]:
        """Return the state of each group."""
        result = self._ready_client().list_consumer_groups(request_timeout=REQUEST_SECONDS).result()
        self._heard.has_answered = True
        for error in result.errors:
            # The client's own error class is not an Exception.
            raise error if isinstance(error, KafkaException) else KafkaException(error)
        return {one.group_id: _words(one.state) for one in result.valid}

    def _committed(self, groups: Iterable[str], topics: set[str], notes: list[str]) -> dict[str, _Offsets]:
        """Return each group's committed offsets in ``topics``, without groups that have none there."""
        admin = self._ready_client()
        futures = {
            name: admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(name)], request_timeout=REQUEST_SECONDS
            )[name]
            for name in groups
        }
        committed: dict[str, _Offsets] = {}
        refused = 0
        for name, future in futures.items():
            result = _result(future)
            if result is None:
                refused += 1
                continue
            offsets = {(p.topic, p.partition): p.offset for p in result.topic_partitions if p.topic in topics}
            offsets = {place: offset for place, offset in offsets.items() if offset >= 0}
            if offsets:
                committed[name] = offsets
        if refused:
            notes.append(f"this user may not read the committed offsets of {_many(refused, 'group')} (ACL)")
        return committed

    def _ends(self, topics: set[str], notes: list[str]) -> _Offsets:
        """Return the end of every partition of ``topics``."""
        if not topics:
            return {}
        admin = self._ready_client()
        described = admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=REQUEST_SECONDS)
        places: list[Place] = []
        refused = 0
        for topic, future in described.items():
            result = _result(future)
            refused += result is None
            places += [(topic, one.id) for one in result.partitions] if result else []
        request = {TopicPartition(*place): OffsetSpec.latest() for place in places}
        futures = admin.list_offsets(request, request_timeout=REQUEST_SECONDS) if request else {}
        ends: _Offsets = {}
        for at, future in futures.items():
            result = _result(future)
            if result is not None:
                ends[at.topic, at.partition] = int(result.offset)
        if refused:
            notes.append(
                f"the end offsets of {_many(refused, 'topic')} are unavailable: no right, or no such topic"
            )
        return ends

    def _members(self, groups: list[str]) -> dict[str, int]:
        if not groups:
            return {}
        futures = self._ready_client().describe_consumer_groups(groups, request_timeout=REQUEST_SECONDS)
        results = {name: _result(future) for name, future in futures.items()}
        return {name: len(one.members) for name, one in results.items() if one is not None}

    def _group(
        self, name: str, state: str, members: int | None, committed: _Offsets, ends: _Offsets
    ) -> GroupEntry:
        read = {topic for topic, _ in committed}
        places = [place for place in ends if place[0] in read]
        lags = [self._lag(place, committed.get(place), ends[place]) for place in places]
        lags.sort(key=lambda lag: (-lag.unread, lag.topic, lag.partition))
        times = [lag.unread_since for lag in lags if lag.unread_since is not None]
        return GroupEntry(
            name=name,
            state=state,
            members=members,
            topics=tuple(sorted(read)),
            unread=sum(lag.unread for lag in lags),
            unread_since=min(times, default=None),
            partition_count=len(lags),
            uncommitted=sum(lag.committed is None and lag.end > 0 for lag in lags),
            partitions=tuple(lags[:_PARTITIONS]),
        )

    def _lag(self, place: Place, committed: int | None, end: int) -> PartitionLag:
        if committed is None or committed >= end:
            return PartitionLag(*place, committed, end)
        which = (place, committed)
        unread = 0 if which in self._empty else end - committed
        return PartitionLag(*place, committed, end, unread, self._times.get(which))

    # Timestamps of messages.

    def _read_times(self, unread: list[_Unread], notes: list[str]) -> None:
        """Look up the timestamps of first unread messages that are not cached."""
        pending = [which for which in unread if which not in self._times][:_READS]
        until = time.monotonic() + _READ_SECONDS
        self._empty.clear()
        if not pending:
            return
        with COMMANDS.issued(KAFKA, "read the first unread message of partitions"):
            while pending and time.monotonic() < until:
                # A partition can be read only from one offset at a time.
                now = dict(reversed(pending))
                pending = [which for which in pending if now.get(which[0]) != which[1]]
                if not self._read(now, until, notes):
                    return
        while len(self._times) > _REMEMBERED:
            del self._times[next(iter(self._times))]

    def _read(self, places: Mapping[Place, int], until: float, notes: list[str]) -> bool:
        """Read one message per partition; return whether it is worth reading more."""
        if self._consumer is None:
            self._consumer = new_client(Consumer, {**self._config, **_FETCH})
        consumer, waiting = self._consumer, dict(places)
        consumer.assign([TopicPartition(*place, offset) for place, offset in waiting.items()])
        try:
            while waiting and time.monotonic() < until:
                message = consumer.poll(0.1)
                if message is None:
                    continue
                place, error = (message.topic() or "", message.partition() or 0), message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    notes.append(f"the age of unread messages is unknown: {self._plain(error)}")
                    return False
                if place not in waiting:
                    continue
                which = (place, waiting.pop(place))
                kind, milliseconds = message.timestamp()
                if error is not None:
                    self._empty.add(which)
                else:
                    self._times[which] = milliseconds / 1000 if kind else None
                consumer.incremental_unassign([TopicPartition(*place)])
        finally:
            consumer.unassign()
        return True

    def _ready_client(self) -> LoggedAdmin:
        if self._admin is None:
            self._admin = new_client(LoggedAdmin, {**self._config, "error_cb": self._heard})
        return ready_client(self._admin, self._heard)

    def _plain(self, error: KafkaError) -> str:
        if self._admin is not None:
            self._admin.poll(0)
        return plain_kafka_error(self._heard.instead_of(error), self._config).message


def _unread(committed: Mapping[str, _Offsets], ends: _Offsets) -> list[_Unread]:
    """Return the first unread offsets of groups, those with the most unread messages first."""
    sizes = {
        (place, offset): ends[place] - offset
        for offsets in committed.values()
        for place, offset in offsets.items()
        if offset < ends.get(place, 0)
    }
    return sorted(sizes, key=lambda which: -sizes[which])


def _result(future: Future[Any]) -> Any:
    """Return a result, or None if the user has no right to it, or it is missing. Raises KafkaException."""
    try:
        return future.result()
    except KafkaException as error:
        if error.args[0].code() in _PASSED_OVER:
            return None
        raise


def _words(state: Any) -> str:
    return str(getattr(state, "name", state)).replace("_", " ").lower()


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
