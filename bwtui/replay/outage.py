"""An outage of the Kafka that is replayed into: it is waited for as long as it may last."""

import time
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError

from bwtui.errors import ConnectionFailed
from bwtui.kafka.client import Config, plain_kafka_error
from bwtui.kafka.offsets import pin

#: An outage that is longer ends the replay, which can be gone on with; the relay waits for ever.
_SECONDS = 60.0
_LOOK_SECONDS = 0.1


class Outage:
    """How long Kafka has taken no message."""

    def __init__(self, client: Config, topics: Sequence[str], is_stopped: Callable[[], bool]) -> None:
        self._client = client
        self._topics = topics
        self._is_stopped = is_stopped
        self._sent = -1
        self._since = 0.0

    def wait(self, sent: int) -> None:
        """Wait until Kafka answers, or nobody wants to know; ``sent`` messages are durable by now.

        Raises ConnectionFailed when none became so for too long, and RefusedError when a topic is gone.
        """
        if sent != self._sent:
            self._sent, self._since = sent, time.monotonic()
        while not self._is_stopped():
            is_over = time.monotonic() - self._since > _SECONDS
            try:
                pin(self._client, self._topics)
            except ConnectionFailed:
                if is_over:
                    raise
            else:
                if is_over:
                    silent = KafkaError(KafkaError._MSG_TIMED_OUT, "it takes no message")
                    raise plain_kafka_error(silent, self._client)
                return
            time.sleep(_LOOK_SECONDS)
