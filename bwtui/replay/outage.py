"""Wait for the end of an outage of the target Kafka, up to a limit."""

import time
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError

from bwtui.errors import ConnectionFailed
from bwtui.kafka.client import Config, plain_kafka_error
from bwtui.kafka.offsets import pin

#: A longer outage ends the replay, which can be resumed; the relay, in contrast, waits without limit.
_SECONDS = 60.0
_LOOK_SECONDS = 0.1


class KafkaOutage:
    """Measures for how long Kafka has accepted no message."""

    def __init__(self, client: Config, topics: Sequence[str], is_stopped: Callable[[], bool]) -> None:
        self._client = client
        self._topics = topics
        self._is_stopped = is_stopped
        self._sent = -1
        self._since = 0.0

    def wait(self, sent: int) -> None:
        """Wait until Kafka answers or the replay is stopped; ``sent`` messages are durable so far.

        Raises ConnectionFailed when no message became durable for too long, RefusedError when a topic is
        missing.
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
                    silent = KafkaError(KafkaError._MSG_TIMED_OUT, "the brokers accept no messages")
                    raise plain_kafka_error(silent, self._client)
                return
            time.sleep(_LOOK_SECONDS)
