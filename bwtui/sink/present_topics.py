"""What topics are at this moment: which ones, of how many partitions, and what their beginnings have lost."""

from collections.abc import Collection
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec, TopicDescription

from bwtui.kafka.client import TOPIC_GONE, Heard, new_client, unreachable
from bwtui.kafka.commands import LoggedAdmin
from bwtui.sink.destination import PresentTopic, PresentTopics

_REQUEST_SECONDS = 10.0
#: A broker from before Kafka 2.8 knows of none.
_NO_ID = "A" * 22


class TopicsNow:
    """Asks Kafka what topics are; for one thread."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._heard = Heard()
        self._client = new_client(LoggedAdmin, {**config, "error_cb": self._heard})
        self._broker = str(config["bootstrap.servers"])

    def look(self, topics: Collection[str]) -> PresentTopics:
        """Return what ``topics`` are, None for one that is not there; those are missing that can't be told.

        Raises ConnectionFailed.
        """
        if not topics:
            return {}
        try:
            asked = self._client.describe_topics(
                TopicCollection(list(topics)), request_timeout=_REQUEST_SECONDS
            )
            described: dict[str, TopicDescription] = {}
            found: PresentTopics = {}
            for topic, future in asked.items():
                try:
                    described[topic] = future.result()
                except KafkaException as error:
                    if error.args[0].code() in TOPIC_GONE:
                        found[topic] = None
            return found | self._present(described)
        except KafkaException as error:
            raise unreachable(self._broker, self._heard.instead_of(error.args[0])) from error

    def _present(self, described: dict[str, TopicDescription]) -> PresentTopics:
        lost = dict.fromkeys(described, 0)
        places = {
            TopicPartition(topic, one.id): OffsetSpec.earliest()
            for topic, now in described.items()
            for one in now.partitions
        }
        asked = self._client.list_offsets(places, request_timeout=_REQUEST_SECONDS) if places else {}
        for place, future in asked.items():
            try:
                lost[place.topic] += future.result().offset
            except KafkaException as error:
                # A partition that has no leader at present is asked of another time.
                if error.args[0].code() == KafkaError._TRANSPORT:
                    raise
        return {
            topic: PresentTopic(_id(now), len(now.partitions), lost[topic])
            for topic, now in described.items()
        }


def _id(topic: TopicDescription) -> str:
    text = str(topic.topic_id)
    return "" if text == _NO_ID else text
