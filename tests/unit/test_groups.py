"""The consumer groups view without groups, and with a group that can't be queried."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from bwtui.kafka.groups import GroupReader
from bwtui.model.service_views import Consumers


def answer(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Admin:
    """Groups that have read one message of two; like the real client, it rejects an empty name."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def list_consumer_groups(self, **more: Any) -> Future[Any]:
        valid = [SimpleNamespace(group_id=name, state="stable") for name in self._names]
        return answer(SimpleNamespace(errors=[], valid=valid))

    def list_consumer_group_offsets(
        self, request: list[ConsumerGroupTopicPartitions], **more: Any
    ) -> dict[str, Future[Any]]:
        (asked,) = request
        if not asked.group_id:
            raise ValueError("'group_id' cannot be empty")
        return {asked.group_id: answer(SimpleNamespace(topic_partitions=[TopicPartition("t", 0, 2)]))}

    def describe_topics(self, topics: Any, **more: Any) -> dict[str, Future[Any]]:
        return {"t": answer(SimpleNamespace(partitions=[SimpleNamespace(id=0)]))}

    def list_offsets(self, wanted: Any, **more: Any) -> dict[Any, Future[Any]]:
        return {place: answer(SimpleNamespace(offset=2)) for place in wanted}

    def describe_consumer_groups(self, names: list[str], **more: Any) -> dict[str, Future[Any]]:
        return {name: answer(SimpleNamespace(members=[])) for name in names}


def look(*names: str) -> Consumers:
    reader = GroupReader({})
    reader._ready_client = lambda: Admin(*names)  # type: ignore[assignment, method-assign, return-value]
    return reader.poll(["t"])


def test_a_group_without_a_name_does_not_hide_the_others() -> None:
    found = look("", "billing")
    assert found.failure == ""
    assert [group.name for group in found.groups] == ["billing"]
    (note,) = found.notes
    assert "empty name" in note


def test_no_group_is_not_blamed_on_a_right() -> None:
    (note,) = look().notes
    assert note.startswith("Kafka lists no consumer groups: there are none")
    assert "ACL: Describe on groups" in note
