"""The verdict on activities that the relay's own code reports; none of the observations are made up."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bwtui.model.delivery import Receipt
from bwtui.model.verdict import RelayVerdict
from bwtui.relay.rows.recorder import NullRecorder
from bwtui.relay.snapshot import initial_setup, snapshot_copier
from bwtui.relay.snapshot.initial_setup import InitialSetup, Leftovers
from bwtui.relay.snapshot.snapshot_copier import SnapshotCopier
from bwtui.relay.state.ack import Acknowledgements
from bwtui.relay.state.run_state import RunState
from bwtui.relay.state.service_retry import ServiceRetry
from bwtui.relay.stream.session import StreamSession
from bwtui.relay.watch.judge import ServiceNames
from bwtui.relay.watch.relay_watch import RelayWatch
from bwtui.settings import RelaySettings
from bwtui.sink.destination import KeyRecord, Message
from bwtui.sink.kafka import open_destination
from bwtui.source import publication
from bwtui.source.lag import LagSampler
from bwtui.source.raw_stream import StreamServer
from tests.faults.doubles import MemorySink
from tests.faults.fed_stream import Fed, FedStream, insert, relation, transaction, truncate
from tests.relay_context import relay_context

NAMES = ServiceNames("PostgreSQL", "Kafka", "the registry", "the recording")


class Watched:
    """A watched report, whose clock moves only when the test moves it."""

    def __init__(self, report: RunState) -> None:
        self.now = 1_000.0
        self.report = report
        self.names = NAMES
        sampler = LagSampler(StreamServer(""), lambda: "slot", lambda _: None)
        self._watch = RelayWatch(report, sampler, lambda: self.names, lambda: None, lambda dropped: None)
        self.verdicts: list[RelayVerdict] = []

    def wait(self, looks: int = 1) -> None:
        """Let half a second pass and poll, ``looks`` times."""
        for _ in range(looks):
            self.now += 0.5
            self.verdicts.append(self._watch.look()[0])

    @property
    def stalls(self) -> list[tuple[str, str]]:
        """The causes of its stalls, each with its last sentence."""
        stalled = {v.cause: v.sentence for v in self.verdicts if v.condition == "stalled"}
        return list(stalled.items())

    @property
    def blamed(self) -> list[str]:
        """The causes of its stalls."""
        return [cause for cause, _ in self.stalls]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[RunState], Watched]:
    def make(report: RunState) -> Watched:
        watched = Watched(report)
        monkeypatch.setattr(time, "monotonic", lambda: watched.now)
        report.clock.turn_to("read")
        report.state = "streaming"
        return watched

    return make


class SlowSink(MemorySink):
    """Lets ``arriving`` messages arrive at each poll, which takes time."""

    def __init__(self, arriving: int = 0, takes: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.arriving, self.takes = arriving, takes

    def poll(self, timeout: float) -> None:
        """Let a few messages arrive."""
        if timeout:
            self.takes()
            for _ in range(min(self.arriving, len(self._waiting))):
                self._arrive(self._waiting.popleft())


class HungDisk:
    """A ledger that accepts everything and makes nothing durable."""

    durable_lsn = 0

    def take_settled(self, receipts: list[Receipt]) -> None:
        """Accept it."""

    def take_unsettled(self, receipts: list[Receipt]) -> None:
        """Accept it."""

    def reach(self, lsn: int) -> None:
        """Do nothing."""


class Turns(FedStream):
    """Yields the frames of one turn after the other."""

    def __init__(self, *turns: list[bytes], ends: Callable[[], object] = lambda: None) -> None:
        super().__init__([])
        self._turns = deque(turns)
        self._ends = ends

    def frames(self) -> Iterator[bytes]:
        return iter(self._turns.popleft() if self._turns else [])

    def end(self) -> None:
        self._ends()


def streaming(
    fed: Fed, stream: FedStream, acks: Acknowledgements | None = None
) -> tuple[StreamSession, Acknowledgements]:
    """Return a session of ``fed`` that reads ``stream``."""
    acks = acks or Acknowledgements(0)
    return StreamSession(fed._context, cast(Any, stream), acks, None), acks


def test_what_is_sent_beside_the_tables_is_no_word_of_kafka(
    tmp_path: Path, watch: Callable[[RunState], Watched]
) -> None:
    fed = Fed(SlowSink(), tmp_path, [], truncate_topic="emptied")
    watched = watch(fed.report)
    turns = [transaction(100 * n, truncate(16_384)) for n in range(2, 22)]
    session, _ = streaming(fed, Turns([relation(), *transaction(100, insert(1, "a"))], *turns))
    for _ in range(21):
        session._step()
        watched.wait()
    assert fed.report.durable == 0
    assert watched.blamed == ["kafka"]


def test_a_stop_that_the_server_leaves_unanswered_is_its_own_matter(
    tmp_path: Path, watch: Callable[[RunState], Watched]
) -> None:
    fed = Fed(MemorySink(), tmp_path, [])
    watched = watch(fed.report)
    session, _ = streaming(fed, Turns(ends=lambda: watched.wait(8)))
    session._finish()
    assert watched.blamed == ["postgresql"]
    assert "PostgreSQL has not ended the stream for 4.0 s" in watched.stalls[0][1]


@pytest.mark.parametrize(("arriving", "blamed"), [(0, ["kafka"]), (1, [])])
def test_a_stop_that_waits_for_kafka_stalls_if_nothing_arrives(
    tmp_path: Path, watch: Callable[[RunState], Watched], arriving: int, blamed: list[str]
) -> None:
    sink = SlowSink(arriving)
    fed = Fed(sink, tmp_path, [])
    watched = watch(fed.report)
    rows = [insert(number, "a") for number in range(15)]
    session, _ = streaming(fed, Turns([relation(), *transaction(100, *rows)]))
    session._step()
    sink.takes = watched.wait
    session._finish()
    assert len(watched.verdicts) > 10
    assert watched.blamed == blamed


def test_a_stop_that_waits_for_the_disk_blames_the_disk(
    tmp_path: Path, watch: Callable[[RunState], Watched]
) -> None:
    sink = SlowSink(9)
    fed = Fed(sink, tmp_path, [])
    watched = watch(fed.report)
    acks = Acknowledgements(0, HungDisk())
    session, _ = streaming(fed, Turns([relation(), *transaction(100, insert(1, "a"))]), acks)
    session._step()
    sink.takes = watched.wait
    session._finish()
    assert watched.blamed == ["disk"]


def test_a_disk_that_hangs_is_told_of_while_rows_pass(
    tmp_path: Path, watch: Callable[[RunState], Watched]
) -> None:
    sink = SlowSink(1)
    fed = Fed(sink, tmp_path, [])
    watched = watch(fed.report)
    turns = [transaction(100 * n, insert(n, "a")) for n in range(1, 20)]
    session, _ = streaming(fed, Turns([relation(), *turns[0]], *turns), Acknowledgements(0, HungDisk()))
    for _ in range(19):
        session._step()
        sink.poll(0.1)
        watched.wait()
    assert fed.report.in_flight
    assert watched.blamed == ["disk"]


def test_a_state_folder_that_hangs_is_no_idle_relay(
    tmp_path: Path, watch: Callable[[RunState], Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = Fed(MemorySink(), tmp_path, [])
    watched = watch(fed.report)
    session, _ = streaming(fed, Turns([relation(), *transaction(100, insert(1, "a"))]))

    monkeypatch.setattr(fed._context.history.checkpoint, "remember", lambda *_, **__: watched.wait(8))
    session._step()
    session._step()
    assert watched.blamed == ["disk"]
    assert "the relay's state folder" in watched.stalls[0][1]


def test_a_main_thread_that_stands_still_is_no_idle_relay(watch: Callable[[RunState], Watched]) -> None:
    watched = watch(RunState())
    watched.report.clock.turn_to("work")
    watched.wait(8)
    assert watched.blamed == ["relay"]


def copier(sink: MemorySink, report: RunState) -> SnapshotCopier:
    """Return a snapshot's copier over ``sink``."""
    context = relay_context(
        sink=sink,
        service=sink.destination.service,
        report=report,
        recorder=NullRecorder(),
        policy=SimpleNamespace(undelivered=lambda failures: failures),
        session=bytes(8),
        stop_requested=lambda: False,
        samples=SimpleNamespace(refill=lambda: None),
    )
    return SnapshotCopier(context.run, context.output, 0, 0, lambda: None)


def test_the_end_of_a_snapshot_is_no_stall_while_rows_become_durable(
    watch: Callable[[RunState], Watched],
) -> None:
    sink, report = SlowSink(2), RunState()
    copy, watched = copier(sink, report), watch(report)
    sink.takes = watched.wait
    copy._batch.span.pending = 0
    copy._batch.span.lsn = 1
    sink.send("t", [Message(b"1", b"1", 0)] * 20, copy._batch.span)
    copy._batch.flush()
    copy._wait_until_durable()
    assert len(watched.verdicts) == 10
    assert watched.blamed == []
    assert report.clock.current[0] == "read"


@pytest.mark.parametrize(("row_filter", "blamed"), [(None, ["postgresql"]), ("false", [])])
def test_a_filter_that_passes_nothing_is_no_stall(
    watch: Callable[[RunState], Watched],
    monkeypatch: pytest.MonkeyPatch,
    row_filter: str | None,
    blamed: list[str],
) -> None:
    report = RunState()
    copy, watched = copier(MemorySink(), report), watch(report)
    monkeypatch.setattr(snapshot_copier, "copy_rows", lambda *_: watched.wait(20))
    monkeypatch.setattr(snapshot_copier, "interruptible", lambda *_: nullcontext())
    table = SimpleNamespace(relation=SimpleNamespace(qualified_name="public.t"), row_filter=row_filter)
    route = SimpleNamespace(counters=report.table("t"), relation=table.relation)
    copy._copy(cast(Any, None), cast(Any, table), cast(Any, route))
    assert watched.blamed == blamed
    assert any("has sent no row of public.t" in verdict.sentence for verdict in watched.verdicts)


@pytest.mark.parametrize(("records", "blamed"), [(20, []), (0, ["kafka"])])
def test_reading_a_topic_back_is_no_stall_while_records_come(
    watch: Callable[[RunState], Watched], monkeypatch: pytest.MonkeyPatch, records: int, blamed: list[str]
) -> None:
    report, sink = RunState(), MemorySink()
    watched = watch(report)

    def keys(_: str, start: Any, end: Any, on_wait: Callable[[], None]) -> Iterator[KeyRecord]:
        for number in range(20):
            on_wait()
            watched.wait()
            if number < records:
                yield KeyRecord(str(number).encode(), False, None)

    monkeypatch.setattr(sink, "keys", keys)
    context = relay_context(destination=sink.destination, report=report)
    leftovers = Leftovers(context, lambda seconds: None, lambda topic: {0: 1})
    route = SimpleNamespace(topic="t", relation=SimpleNamespace(qualified_name="public.t"))
    leftovers.remove(cast(Any, route), {0: 0}, {0: 20}, [], Message(b"", None, 0))
    assert watched.blamed == blamed
    assert report.clock.current[0] == "read"


def test_many_questions_that_are_answered_one_by_one_are_no_stall(
    watch: Callable[[RunState], Watched],
) -> None:
    report = RunState()
    watched = watch(report)
    patience = ServiceRetry(StreamServer(""), report, lambda seconds: None)
    # Calls run one after the other, as with a registry that answers one at a time.
    lock = threading.Lock()

    def call() -> None:
        with lock:
            watched.wait()

    patience.call_all("the schema registry", [call] * 20)
    assert watched.blamed == []


def test_locks_are_waited_for_only_while_tables_are_locked(
    watch: Callable[[RunState], Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = RunState()
    watched = watch(report)
    at: dict[str, str] = {}

    def note(name: str, answer: Any = ()) -> Callable[..., Any]:
        def call(*_: Any) -> Any:
            at[name] = report.clock.current[0]
            return answer

        return call

    for name in ("chosen_tables", "lock_tables", "tables_at_export", "check_unchanged", "load_tables"):
        monkeypatch.setattr(initial_setup, name, note(name))
    monkeypatch.setattr(publication, "published_tables", note("published"))
    begin = InitialSetup.__new__(InitialSetup)
    begin._settings = cast(Any, None)
    begin._report = watched.report
    begin._check_publications = note("publications")  # type: ignore[method-assign]
    begin._joined = SimpleNamespace(begin=note("joined"))  # type: ignore[assignment]
    begin._tables(cast(Any, None), cast(Any, None), (), ())
    assert at.pop("lock_tables") == "locks"
    assert "locks" not in at.values()


@pytest.mark.parametrize(
    ("property_", "seconds"), [("linger.ms", 8), ("queue.buffering.max.ms", 8), ("x", 0)]
)
def test_what_lingers_as_it_was_told_to_is_not_kafkas_doing(
    tmp_path: Path, watch: Callable[[RunState], Watched], property_: str, seconds: int
) -> None:
    given = ((property_, "8000"),) if seconds else ()
    settings = RelaySettings(broker="127.0.0.1:1", kafka_config=given)
    destination = open_destination(settings)
    fed = Fed(SlowSink(), tmp_path, [])
    watched = watch(fed.report)
    watched.names = replace(NAMES, linger=destination.service.lingers)
    session, _ = streaming(fed, Turns([relation(), *transaction(100, insert(1, "a"))]))
    destination.service.close()
    for _ in range(16):
        session._step()
        watched.wait()
    assert watched.blamed == ([] if seconds else ["kafka"])
    for _ in range(8):
        session._step()
        watched.wait()
    assert watched.blamed == ["kafka"]
