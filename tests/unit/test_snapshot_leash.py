"""A worker sends nothing once the engine has not answered its beats: another relay may have begun."""

import threading
import time
from array import array
from types import SimpleNamespace
from typing import Any, cast

from bwtui.relay.report import Report
from bwtui.relay.routes.route import Route
from bwtui.relay.snapshot.workers.channel import WorkerEnd
from bwtui.relay.snapshot.workers.line import Line
from bwtui.relay.snapshot.workers.reading import ReadingPieces, Recording, WorkerContext
from bwtui.relay.snapshot.workers.words import Begin, Written

BEGIN = Begin({}, b"", "1-1", 0, 0, 1, is_recorded=True)


class _Late(Line):
    """A line to an engine that stood still before it answered."""

    def __init__(self) -> None:
        super().__init__(cast(WorkerEnd, None), cast(Any, None))

    def ask(self, word: object, kind: type[Any]) -> Any:
        self._heard_at -= 60
        return Written([(0, 0, 1)])

    def go_on(self) -> None:
        self._heard_at = time.monotonic()


def test_a_batch_that_the_engine_wrote_late_waits_for_its_word() -> None:
    """Whether the snapshot is still its own it has not said since."""
    line = _Late()
    recording = Recording(line)
    context = SimpleNamespace(recorder=recording, session=b"", report=Report(), sink=None)
    recording.reading = ReadingPieces(cast(WorkerContext, context), BEGIN, line)
    recording.frames.append(b"1")
    route = cast(Route, SimpleNamespace(messages=[(b"", b"1", 0, None)], positions=array("I", [0])))
    written = threading.Event()

    def write() -> None:
        recording.write_batch([route])
        written.set()

    threading.Thread(target=write, daemon=True).start()
    assert not written.wait(0.5)
    line.go_on()
    assert written.wait(5)
