"""Create topics for a test."""

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.waiting import eventually


def create_topic(admin: AdminClient, topic: NewTopic) -> None:
    """Create ``topic``.

    A broker without CPU time for three seconds is fenced, and rejects topics for a moment.
    """

    def is_made() -> bool:
        # A client that has not seen a broker can't ask for the controller, and waits for a minute.
        if not admin.list_topics(timeout=30).brokers:
            return False
        try:
            admin.create_topics([topic])[topic.topic].result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
                raise
            return False
        return True

    eventually(f"topic {topic.topic} is made", is_made)
