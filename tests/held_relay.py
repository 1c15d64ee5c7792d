"""The relay's streaming phase, between a real PostgreSQL and a sink that acknowledges on request."""

import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bwtui.encode.registry import LocalRegistry, RegisteredSchema
from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.routes.routing import Router
from bwtui.relay.rows.policy import RowPolicy
from bwtui.relay.rows.samples import Samples
from bwtui.relay.rows.toast import ToastFiller
from bwtui.relay.state.ack import Acknowledgements
from bwtui.relay.state.run_state import RunState
from bwtui.relay.state.service_retry import ServiceRetry
from bwtui.relay.stream.session import StreamSession
from bwtui.settings import RelaySettings
from bwtui.sink.dead_letters import DeadLetterWriter
from bwtui.sink.destination import (
    DeliveryFailure,
    Destination,
    Limits,
    MessageTuple,
    SinkService,
    TopicLimits,
)
from bwtui.source.raw_session import connect_raw
from bwtui.source.raw_stream import ReplicationStream, StreamServer
from tests.relay_context import relay_context
from tests.waiting import eventually

_PATIENCE = 60.0


class HoldingSink(SinkService):
    """A `Sink` that accepts everything, and reports as durable only what is not held."""

    def __init__(self) -> None:
        #: Topics whose messages stay unacknowledged.
        self.held: set[str] = set()
        #: Number of messages by topic.
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
        """Let the paused thread continue."""
        self._orders.put(None)

    def poll(self, timeout: float) -> None:
        """Acknowledge the messages that are not held."""
        free = [entry for entry in self._waiting if entry[0] not in self.held]
        for entry in free:
            self._waiting.remove(entry)
            entry[1].pending -= entry[2]
        if not free and timeout:
            threading.Event().wait(min(timeout, 0.01))

    def flush(self, timeout: float) -> bool:
        """Return whether everything was acknowledged."""
        self.poll(timeout)
        return not self._waiting

    def take_failures(self) -> list[DeliveryFailure]:
        """Return no failures."""
        return []

    def discard(self, *, in_order: bool) -> None:
        """Drop the queued messages."""
        self._waiting.clear()

    def queued(self) -> int:
        """Return the number of queued messages."""
        return sum(count for _, _, count in self._waiting)

    def answered(self) -> int:
        """Return the number of messages that arrived or failed."""
        return sum(self.sent.values()) - self.queued()

    def ensure_topics(self, wanted: Mapping[str, bool]) -> Limits:
        """Do nothing: every topic exists."""
        return {topic: TopicLimits(1 << 26, keyed) for topic, keyed in wanted.items()}


class _Registry:
    """Give every schema an id without a registry."""

    def register(self, subject: str, schema: str) -> RegisteredSchema:
        return RegisteredSchema(subject, 1, 1, schema)


class HeldRelay:
    """`bwtui.relay.stream.session.StreamSession` in its own thread, over an existing slot."""

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
        context = relay_context(
            settings=settings,
            report=self.report,
            sink=self.sink,
            service=self.sink,
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
        """The server process of the stream."""
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
        """Cut the connection as a broken network does, and wait for the relay to notice."""
        with socket.socket(fileno=os.dup(self.stream.connection.socket)) as end:
            end.shutdown(socket.SHUT_RDWR)
        self._thread.join(_PATIENCE)
        assert isinstance(self._ended, ConnectionFailed), self._ended
        self._close()

    def stop(self) -> None:
        """Stop cleanly."""
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
