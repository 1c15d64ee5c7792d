"""A worker's channel to the engine: several threads send, one thread reads, and one sends heartbeats.

The worker ends when the engine does. While the engine does not answer heartbeats, nothing more is sent to
Kafka: the engine may have been suspended for so long that a different relay is taking the snapshot by now.
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from bwtui.relay.snapshot.workers.channel import BlockingChannel
from bwtui.relay.snapshot.workers.messages import Answer, Heartbeat, HeartbeatReply

BEAT_SECONDS = 0.25
#: Maximum time after the engine's last answer to a heartbeat in which a worker still sends.
_LEASH_SECONDS = 3.0

A = TypeVar("A", bound=Answer)


class EngineChannel:
    """The channel; the worker's main thread calls `ask`, any thread `send`."""

    def __init__(self, end: BlockingChannel, beat: Callable[[], Heartbeat]) -> None:
        """``beat`` returns the worker's progress; any thread may call it."""
        self._end = end
        self._beat = beat
        self._sending = threading.Lock()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._heard_at = time.monotonic()
        self._is_answered = True

    def start(self) -> None:
        """Start listening, and start sending heartbeats."""
        for work, name in ((self._listen, "engine messages"), (self._beat_on, "beats")):
            threading.Thread(target=work, name=name, daemon=True).start()

    def send(self, message: object) -> None:
        """Send a message that needs no answer."""
        try:
            with self._sending:
                self._end.send(message)
        except OSError:
            os._exit(1)

    def ask(self, message: object, kind: type[A]) -> A:
        """Send a message, and wait for its answer."""
        self.send(message)
        answer = self._answers.get()
        assert isinstance(answer, kind), answer
        return answer

    @property
    def may_send(self) -> bool:
        """True if the snapshot is known to be still the engine's."""
        return time.monotonic() - self._heard_at < _LEASH_SECONDS

    def _listen(self) -> None:
        try:
            while True:
                message = self._end.receive()
                if isinstance(message, HeartbeatReply):
                    self._heard_at, self._is_answered = time.monotonic(), True
                else:
                    self._answers.put(message)
        except (EOFError, OSError):
            # The engine, which knows what is in flight, has ended, or is ending this worker.
            os._exit(1)

    def _beat_on(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            if self._is_answered:
                self._is_answered = False
                self.send(self._beat())
