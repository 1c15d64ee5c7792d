"""Kafka's admin client with its requests in the command log."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource, NewTopic, OffsetSpec

from bwtui.command_log import COMMANDS, KAFKA
from bwtui.kafka.client import LastClientError

#: Maximum number of names in the log entry of a request.
_NAMED = 3

Of = TypeVar("Of")


class LoggedAdmin(AdminClient):
    """Logs every request with its result; a request about several things ends when the last one does."""

    def list_topics(self, *args: Any, **more: Any) -> ClusterMetadata:
        with COMMANDS.issued(KAFKA, _text("list_topics", args), _reason):
            return super().list_topics(*args, **more)

    def create_topics(self, new_topics: list[NewTopic], **more: Any) -> dict[str, Future[Any]]:  # type: ignore[override]
        end = _begin("create_topics", (topic.topic for topic in new_topics))
        return _ended(partial(super().create_topics, new_topics, **more), end)

    def describe_topics(self, topics: TopicCollection, **more: Any) -> dict[str, Future[Any]]:  # type: ignore[override]
        end = _begin("describe_topics", topics.topic_names)
        return _ended(partial(super().describe_topics, topics, **more), end)

    def describe_configs(  # type: ignore[override]
        self, resources: list[ConfigResource], **more: Any
    ) -> dict[ConfigResource, Future[Any]]:
        end = _begin("describe_configs", (resource.name for resource in resources))
        return _ended(partial(super().describe_configs, resources, **more), end)

    def list_offsets(  # type: ignore[override]
        self, topic_partition_offsets: dict[TopicPartition, OffsetSpec], **more: Any
    ) -> dict[TopicPartition, Future[Any]]:
        end = _begin("list_offsets", (f"{one.topic}[{one.partition}]" for one in topic_partition_offsets))
        return _ended(partial(super().list_offsets, topic_partition_offsets, **more), end)

    def list_consumer_groups(self, **more: Any) -> Future[Any]:  # type: ignore[override]
        end = _begin("list_consumer_groups", ())
        request = super().list_consumer_groups
        return _ended(lambda: {"": request(**more)}, end)[""]

    def describe_consumer_groups(  # type: ignore[override]
        self, group_ids: list[str], **more: Any
    ) -> dict[str, Future[Any]]:
        end = _begin("describe_consumer_groups", group_ids)
        return _ended(partial(super().describe_consumer_groups, group_ids, **more), end)

    def list_consumer_group_offsets(  # type: ignore[override]
        self, list_consumer_group_offsets_request: list[ConsumerGroupTopicPartitions], **more: Any
    ) -> dict[str, Future[Any]]:
        request = list_consumer_group_offsets_request
        # Without names: each group needs its own request, and there may be thousands.
        end = _begin("list_consumer_group_offsets", ())
        return _ended(partial(super().list_consumer_group_offsets, request, **more), end)


def ready_client(admin: LoggedAdmin, heard: LastClientError) -> LoggedAdmin:
    """Prepare the client for a request: drop the errors that ``heard`` has of earlier connections.

    Pending callbacks are served first; otherwise they would be kept forever.
    """
    admin.poll(0)
    heard.forget()
    return admin


def _begin(name: str, about: Iterable[object]) -> Callable[[str], None]:
    return COMMANDS.begin(KAFKA, _text(name, about))


def _text(name: str, about: Iterable[object]) -> str:
    names = [str(one) for one in about]
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return " ".join(filter(None, (name, ", ".join(names[:_NAMED]) + more)))


def _ended(
    request: Callable[[], Mapping[Of, Future[Any]]], end: Callable[[str], None]
) -> dict[Of, Future[Any]]:
    """Make a request and log its result; one that fails at once, or is about nothing, ends at once."""
    try:
        futures = request()
    except BaseException as error:
        end(_reason(error))
        raise
    pending = len(futures)
    if not futures:
        end("")
    results: list[str] = []

    def done(future: Future[Any]) -> None:
        nonlocal pending
        error = future.exception()
        if error is not None:
            results.append(_reason(error))
        pending -= 1
        if pending == 0:
            end(results[0] if results else "")

    for future in futures.values():
        future.add_done_callback(done)
    return dict(futures)


def _reason(error: BaseException) -> str:
    return str(error.args[0].name()) if isinstance(error, KafkaException) else type(error).__name__
