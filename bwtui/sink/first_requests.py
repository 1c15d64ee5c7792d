"""Send the first message to each partition alone, so that none can overtake one that is rejected.

A broker accepts any sequence number as the first of a producer in a partition (KIP-360). So if it rejects a
new producer's first request while the second is already in flight, it accepts the second: a key's later row
would be before its earlier one, which is sent again. After a request that it accepted, it rejects such a gap.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError

from bwtui.sink.base import Message, MessageTuple
from bwtui.sink.delivery_reports import Callback

#: Called with the error of a message that the producer did not accept, and the message.
Refuse = Callable[[KafkaError, Message], None]
#: Passes a message with its callback to the producer; False if it was rejected, which has then been reported.
Put = Callable[[MessageTuple, Callback, Refuse], bool]


class FirstRequests:
    """The messages of one topic, until each of its partitions has accepted one; then it is open.

    Only the first report of a key shows its partition. So a message with a new key waits until no message
    with an unknown partition is in flight for the topic, and all later messages wait after it.
    """

    def __init__(self, partitions: int) -> None:
        """Take the number of partitions of the topic."""
        self._partitions = partitions
        self._waiting: deque[tuple[MessageTuple, Callback, Refuse]] = deque()
        self._keys: set[bytes | None] = {None}
        self._seen: set[int] = set()
        self._is_asking = False

    def __len__(self) -> int:
        """Return the number of waiting messages."""
        return len(self._waiting)

    @property
    def is_open(self) -> bool:
        """Whether every partition has accepted a message."""
        return len(self._seen) >= self._partitions

    def knows(self, messages: Sequence[MessageTuple]) -> bool:
        """Return whether ``messages`` may be sent now: none waits, and the partition of each key is known."""
        keys = self._keys
        return not self._waiting and all(message[0] in keys for message in messages)

    def add(self, message: MessageTuple, callback: Callback, refuse: Refuse) -> None:
        """Let ``message`` wait for its turn."""
        self._waiting.append((message, callback, refuse))

    def pump(self, put: Put) -> None:
        """Send the messages whose turn has come. Messages without a key have no order, and never wait."""
        waiting = self._waiting
        while waiting:
            message, callback, refuse = waiting[0]
            asks = not self.is_open and message[0] not in self._keys
            if asks and self._is_asking:
                return
            waiting.popleft()
            if asks:
                self._is_asking = put(message, self._asking(message[0], callback), refuse)
            else:
                put(message, callback, refuse)

    def _asking(self, key: bytes | None, callback: Callback) -> Callback:
        def report(error: KafkaError | None, message: Any) -> None:
            self._is_asking = False
            if error is None:
                self._keys.add(key)
                self._seen.add(message.partition())
            callback(error, message)

        return report
