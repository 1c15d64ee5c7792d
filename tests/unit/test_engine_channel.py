"""A worker sends nothing once the engine has not answered its beats: another relay may have begun."""

import threading
import time
from array import array
from types import SimpleNamespace
from typing import Any, cast

from bwtui.model.delivery import DeliverySpan
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.run_state import RunState
from bwtui.relay.snapshot.workers.channel import BlockingChannel
from bwtui.relay.snapshot.workers.engine_channel import EngineChannel
from bwtui.relay.snapshot.workers.messages import BatchRecorded, StartWorker
from bwtui.relay.snapshot.workers.piece_copier import PieceCopier, WorkerContext, WorkerRecorder
from bwtui.sink.base import Message

BEGIN = StartWorker({}, b"", "1-1", 0, 0, 1, is_recorded=True)


class _Late(EngineChannel):
    """A line to an engine that stood still before it answered."""

    def __init__(self) -> None:
        super().__init__(cast(BlockingChannel, None), cast(Any, None))

    def ask(self, message: object, kind: type[Any]) -> Any:
        self._heard_at -= 60
        return BatchRecorded([(0, 0, 1)])

    def answer_heartbeat(self) -> None:
        self._heard_at = time.monotonic()


def test_a_batch_that_the_engine_wrote_late_waits_for_its_word() -> None:
    """Whether the snapshot is still its own it has not said since."""
    line = _Late()
    recording = WorkerRecorder(line)
    context = SimpleNamespace(recorder=recording, session=b"", report=RunState(), sink=None)
    recording.reading = PieceCopier(cast(WorkerContext, context), BEGIN, line)
    recording.frames.append(b"1")
    route = cast(TableRoute, SimpleNamespace(messages=[(b"", b"1", 0, None)], positions=array("I", [0])))
    written = threading.Event()

    def write() -> None:
        recording.write_batch([route])
        written.set()

    threading.Thread(target=write, daemon=True).start()
    assert not written.wait(0.5)
    line.answer_heartbeat()
    assert written.wait(5)


class _Sink:
    """A sink from which others' messages go away while the engine stands still, which then goes on."""

    def __init__(self, line: _Late) -> None:
        self._line = line
        self._polls = 0
        self.sent_after = -1
        self._span: DeliverySpan | None = None

    def queued(self) -> int:
        return int(self._polls < 1)

    def answered(self) -> int:
        return 0

    def poll(self, seconds: float) -> None:
        self._polls += 1
        if self._polls == 1:
            self._line.ask(None, BatchRecorded)
        elif self._polls == 4:
            self._line.answer_heartbeat()
        if self._span is not None:
            self._span.pending = 0

    def send(self, topic: str, messages: Any, span: DeliverySpan, receipt: Any) -> None:
        self.sent_after, self._span = self._polls, span
        span.pending += len(messages)

    def take_failures(self) -> list[Any]:
        return []


def test_one_that_is_sent_again_waits_for_the_engine_too() -> None:
    line = _Late()
    sink = _Sink(line)
    report = SimpleNamespace(take_deliveries=lambda sink, acks: None)
    policy = SimpleNamespace(undelivered=lambda failures: failures)
    context = SimpleNamespace(
        recorder=None, session=b"", report=report, sink=sink, policy=policy, stop_requested=bool
    )
    reading = PieceCopier(cast(WorkerContext, context), BEGIN, line)
    assert reading._alone("t", Message(b"k", b"v", 0, None), None) == (None, None)
    assert sink.sent_after == 4
