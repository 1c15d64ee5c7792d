"""The relay's streaming phase, between a real PostgreSQL and a sink that acknowledges when told to."""

import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bwtui.encode.local_registry import LocalRegistry
from bwtui.encode.registry import RegisteredSchema
from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.relay.ack import Acknowledgements
from bwtui.relay.context import RelayContext
from bwtui.relay.policy import RowPolicy
from bwtui.relay.routes.routing import Router
from bwtui.relay.run_state import RunState
from bwtui.relay.samples import Samples
from bwtui.relay.service_retry import ServiceRetry
from bwtui.relay.session import StreamSession
from bwtui.relay.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.toast import ToastFiller
from bwtui.settings import RelaySettings
from bwtui.sink.base import DeliveryFailure, MessageTuple
from bwtui.sink.dead_letter_writer import DeadLetterWriter
from bwtui.sink.destination import Destination, Limits, SinkService, TopicLimits
from bwtui.source.failover.stream_server import StreamServer
from bwtui.source.raw.session import connect_raw
from bwtui.source.raw.stream import ReplicationStream
from tests.waiting import eventually

_PATIENCE = 60.0


class HoldingSink(SinkService):
    """A `bwtui.sink.base.Sink` that takes everything, and calls durable only what is not held."""

    def __init__(self) -> None:
        #: Topics whose messages stay unacknowledged.
        self.held: set[str] = set()
        #: How many messages each topic was sent.
        self.sent: dict[str, int] = {}
        #: The topic whose next message stops the relay's thread, until `resume`.
        self.pause_at = ""
        self.paused = threading.Event()
        self._orders: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._waiting: list[tuple[str, DeliverySpan, int]] = []

    def send(
        self, topic: str, messages: Sequence[MessageTuple], span: DeliverySpan, receipt: Receipt | None = None
    ) -> None:
        """Take ``messages``; see `pause_at`."""
        span.pending += len(messages)
        self._waiting.append((topic, span, len(messages)))
        self.sent[topic] = self.sent.get(topic, 0) + len(messages)
        if topic == self.pause_at:
            self.pause_at = ""
            self.paused.set()
            while (order := self._orders.get(timeout=_PATIENCE)) is not None:
                order()

    def while_paused(self, order: Callable[[], None]) -> None:
        """Run ``order`` in the paused thread, and wait until it is done."""
        done = threading.Event()

        def run() -> None:
            order()
            done.set()

        self._orders.put(run)
        assert done.wait(_PATIENCE)

    def resume(self) -> None:
        """Let the paused thread go on."""
        self._orders.put(None)

    def poll(self, timeout: float) -> None:
        """Acknowledge what is not held."""
        free = [entry for entry in self._waiting if entry[0] not in self.held]
        for entry in free:
            self._waiting.remove(entry)
            entry[1].pending -= entry[2]
        if not free and timeout:
            threading.Event().wait(min(timeout, 0.01))

    def flush(self, timeout: float) -> bool:
        """Say whether everything was acknowledged."""
        self.poll(timeout)
        return not self._waiting

    def take_failures(self) -> list[DeliveryFailure]:
        """Nothing fails here."""
        return []

    def discard(self, *, in_order: bool) -> None:
        """Forget what waits."""
        self._waiting.clear()

    def queued(self) -> int:
        """Return how many messages wait."""
        return sum(count for _, _, count in self._waiting)

    def answered(self) -> int:
        """Return how many messages arrived or failed."""
        return sum(self.sent.values()) - self.queued()

    def ensure_topics(self, wanted: Mapping[str, bool]) -> Limits:
        """Every topic is there."""
        return {topic: TopicLimits(1 << 26, keyed) for topic, keyed in wanted.items()}


class _Registry:
    """Gives every schema an id, and asks nobody."""

    def register(self, subject: str, schema: str) -> RegisteredSchema:
        return RegisteredSchema(subject, 1, 1, schema)


class HeldRelay:
    """`bwtui.relay.session.StreamSession` in a thread of its own, over a slot that exists."""

    def __init__(
        self,
        dsn: str,
        slot: str,
        folder: Path,
        exclude: tuple[str, ...] = (),
        sink: HoldingSink | None = None,
        registry: Any = None,
    ) -> None:
        settings = RelaySettings(
            postgres=dsn, slot=slot, publication="everything", exclude_tables=exclude, allow_unkeyed=True
        )
        self.sink = sink or HoldingSink()
        self.report = RunState()
        self._stop = threading.Event()
        self.memory = SlotCheckpointStore(folder, "1", "test", slot)
        patience = ServiceRetry(StreamServer(dsn), self.report, self._pulse)
        router = Router(settings, self.sink, registry or _Registry(), self.report, patience)  # type: ignore[arg-type]
        policy = RowPolicy(settings, self.report, DeadLetterWriter(folder), self.sink)
        toast = ToastFiller(settings, patience, self._pulse)
        context = RelayContext(
            settings=settings,
            report=self.report,
            destination=Destination(self.sink, LocalRegistry(), self.sink),
            patience=patience,
            router=router,
            policy=policy,
            toast=toast,
            samples=Samples(),
            checkpoint=self.memory,
            stop_requested=self._stop.is_set,
            session=bytes(8),
        )
        self._close_patience = patience.close
        self.stream = ReplicationStream(connect_raw(dsn), slot, ["everything"])
        self.acks = Acknowledgements()
        self._streaming = StreamSession(context, self.stream, self.acks, None)
        self._ended: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="held relay", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The server's process at the other end."""
        return int(self.stream.connection.backend_pid)

    def wait_sent(self, topic: str, count: int = 1) -> None:
        """Wait until the sink was given ``count`` messages for ``topic``."""
        eventually(f"{count} messages for {topic}", lambda: self.sink.sent.get(topic, 0) >= count)

    def ask_for_keepalive(self) -> None:
        """Ask the server, from the paused thread, for a keepalive at once."""
        message = struct.pack(">cQQQqB", b"r", *[self.acks.confirmed] * 3, 0, 1)

        def ask() -> None:
            self.stream.connection.put_copy_data(message)
            self.stream.connection.flush()

        self.sink.while_paused(ask)

    def cut(self) -> None:
        """Cut the connection, as a network does that goes away, and wait for the relay to notice."""
        with socket.socket(fileno=os.dup(self.stream.connection.socket)) as end:
            end.shutdown(socket.SHUT_RDWR)
        self._thread.join(_PATIENCE)
        assert isinstance(self._ended, ConnectionFailed), self._ended
        self._close()

    def stop(self) -> None:
        """End in order."""
        self._stop.set()
        self.sink.held.clear()
        self._thread.join(_PATIENCE)
        self._close()
        if self._ended is not None:
            raise self._ended

    def _close(self) -> None:
        self._streaming.abandon()
        self._close_patience()

    def _pulse(self, seconds: float) -> None:
        self._streaming.pulse(seconds)

    def _run(self) -> None:
        try:
            self._streaming.run()
        except (BwtuiError, AssertionError, queue.Empty) as error:
            self._ended = error
