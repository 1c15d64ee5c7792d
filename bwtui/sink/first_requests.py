"""The first message into each partition goes alone, so that none can overtake one that is refused.

A broker takes any sequence number as the first of a producer in a partition (KIP-360). So if it refuses a new
producer's first request and the second is under way by then, it takes the second: a key's later row would
stand before its earlier one, which is sent again. Behind a request that it took, it refuses such a gap.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError

from bwtui.sink.base import Message, MessageTuple
from bwtui.sink.delivery_reports import Callback

#: Takes the error of a message that did not get into the producer's queue, and the message.
Refuse = Callable[[KafkaError, Message], None]
#: Hands a message to the producer, with its callback; False when it was refused, which is reported by then.
Put = Callable[[MessageTuple, Callback, Refuse], bool]


class FirstRequests:
    """The messages of one topic, until each of its partitions has taken one; then it is open.

    Only the first report of a key says which partition it belongs to. So a key that is not known yet waits
    until nothing of the topic is under way whose partition isn't known, and the others wait after it.
    """

    def __init__(self, partitions: int) -> None:
        """``partitions`` is how many the topic has."""
        self._partitions = partitions
        self._waiting: deque[tuple[MessageTuple, Callback, Refuse]] = deque()
        self._keys: set[bytes | None] = {None}
        self._seen: set[int] = set()
        self._is_asking = False

    def __len__(self) -> int:
        """Messages that wait."""
        return len(self._waiting)

    @property
    def is_open(self) -> bool:
        """Whether every partition has taken a message."""
        return len(self._seen) >= self._partitions

    def knows(self, messages: Sequence[MessageTuple]) -> bool:
        """Whether ``messages`` may go as they are: nothing waits, and the partition of each key is known."""
        keys = self._keys
        return not self._waiting and all(message[0] in keys for message in messages)

    def add(self, message: MessageTuple, callback: Callback, refuse: Refuse) -> None:
        """Let ``message`` wait for its turn."""
        self._waiting.append((message, callback, refuse))

    def pump(self, put: Put) -> None:
        """Hand over what may go by now. Messages without a key have no order, and go at once."""
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
