"""--exactly-once, as far as it needs no services."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from bwtui.errors import ConnectionFailed, SlotLost, StateFailed
from bwtui.model.delivery import DeliverySpan
from bwtui.model.position import Position, RecordedPosition
from bwtui.relay.exactly_once.position_store import PositionStore
from bwtui.relay.exactly_once.rejected_row_finder import RejectedRowFinder
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.state.run_state import RunState
from bwtui.relay.stream.session import SessionLoop
from bwtui.relay.stream.transactional_stream import TransactionalStream
from bwtui.settings import RelaySettings
from bwtui.sink.kafka import KafkaService, KafkaSink
from bwtui.sink.transactions import PositionTopic, TransactionalSink, TransactionChecks
from bwtui.source.raw_stream import ServerIdentity
from tests.relay_context import relay_context
from tests.waiting import eventually

SETTINGS = RelaySettings(slot="bottledwater")
IDENTITY = ("7", "shop", "bottledwater")


def exactly() -> PositionStore:
    """A run's position store, without a connection."""
    return PositionStore(SETTINGS, TransactionalSink(SETTINGS), b"session1")


def server(timeline: int, *forks: tuple[int, int]) -> ServerIdentity:
    return ServerIdentity("7", timeline, forks, 0x9000, False)


def begin(known: PositionStore, position: Position) -> None:
    """Begin a session for which Kafka has ``position``."""
    once = cast(Any, object.__new__(TransactionalStream))
    once._sink, once._policy = SimpleNamespace(refused=[]), SimpleNamespace(is_sought=False)
    # The LSN that this process sent long ago does not show what Kafka has.
    memory = SimpleNamespace(last=SimpleNamespace(sent=lambda: 0x100), remember_sent=lambda lsn: None)
    once._context, once._exactly = relay_context(checkpoint=memory), known
    once._inner = SimpleNamespace(begin_session=lambda stream: None)
    once._begin = lambda *, is_careful, is_new_pass: position
    once.begin_session(
        SimpleNamespace(
            careful_until=0, leave_careful_mode=lambda: None, filters=[], rows=None, transaction=None
        )
    )


def test_what_another_relay_has_sent_since_is_left_out() -> None:
    known, position = exactly(), Position(*IDENTITY, 1, 0x800)
    known.server = server(1)
    begin(known, position)
    assert known.position == position


@pytest.mark.parametrize("now", [server(2, (1, 0x700)), server(3, (1, 0x700), (2, 0x900))])
def test_what_this_server_has_in_its_place_is_not_left_out(now: ServerIdentity) -> None:
    known, position = exactly(), Position(*IDENTITY, 1, 0x800)
    known.server = now
    with pytest.raises(SlotLost, match=r"forked from it at 0/700") as raised:
        begin(known, position)
    assert "bwtui slots drop bottledwater" in str(raised.value.hint)
    known.server = server(2, (1, 0x900))
    begin(known, position)


def test_positions_say_which_history_they_are_of() -> None:
    now = exactly().covering(0x800, None, 0, 0x800, server(2, (1, 0x700)))
    assert (now.timeline, now.forks) == (2, ((1, 0x700),))
    assert Position.from_json(now.to_json()) == now


def marked(
    known: PositionStore,
    commit_lsn: int,
    ordinal: int,
    *,
    at_boundary: bool,
    recorded: RecordedPosition | None = None,
) -> Position:
    """Return the position for a stream that is at a change, as Kafka stores it."""
    once = cast(Any, object.__new__(TransactionalStream))
    once._exactly = known
    recorder = SimpleNamespace(recorded=lambda *, is_new_pass: recorded)
    once._context = relay_context(recorder=recorder)
    current = SimpleNamespace(commit_lsn=commit_lsn, ordinal=ordinal, part=0, events={})
    position: Position = once._position(SimpleNamespace(transaction=current), 0x900, at_boundary=at_boundary)
    return Position.from_json(position.to_json())


def test_a_position_counts_the_changes_of_a_transaction_that_is_whole() -> None:
    known = exactly()
    known.position = Position(*IDENTITY, 1, 0x700, changes=4)
    # Backfilled rows do not move it.
    now = marked(known, 0x700, 0, at_boundary=True)
    assert (now.lsn, now.changes) == (0x700, 4)
    now = marked(known, 0x800, 7, at_boundary=True)
    assert (now.ordinal, now.changes) == (None, 7)
    now = marked(known, 0x800, 7, at_boundary=False)
    assert (now.ordinal, now.changes) == (7, None)


@pytest.mark.parametrize("recorded", [None, RecordedPosition("ab", 3, 70)])
def test_a_position_says_up_to_where_a_recording_is_in(recorded: RecordedPosition | None) -> None:
    assert marked(exactly(), 0x800, 7, at_boundary=True, recorded=recorded).recorded == recorded


def test_a_position_of_an_older_relay_counts_nothing() -> None:
    said = json.loads(Position(*IDENTITY, 1, 0x700, changes=4).to_json())
    del said["changes"]
    assert Position.from_json(json.dumps(said).encode()) == Position(*IDENTITY, 1, 0x700)


def test_keys_are_read_back_out_of_open_transactions_too() -> None:
    """A snapshot's own transaction is open while it looks for leftovers of an earlier one."""
    reader = KafkaService(SETTINGS, KafkaSink(SETTINGS)).reader
    assert reader._config["isolation.level"] == "read_uncommitted"


class Thread:
    """Makes a call later than its caller waits."""

    def __init__(self) -> None:
        self.call: Callable[[], Any] | None = None

    def ask(self, call: Callable[[], Any]) -> Any:
        self.call = call
        raise ConnectionFailed("PostgreSQL is gone", "")


def recalled(folder: Path, settings: RelaySettings = SETTINGS) -> tuple[PositionStore, Any]:
    """Return the position store of a run whose Kafka has no position, and a record of its requests."""
    known = PositionStore(settings, TransactionalSink(settings), b"session1")
    kafka = SimpleNamespace(connected=[], last=lambda key: None, prepare=lambda: None, topic="positions")
    known._positions = cast(Any, kafka)

    def connect(identity: str, *, check: Callable[[], None], **given: Any) -> Any:
        kafka.connected.append(identity)
        check()
        return kafka

    known._sink = cast(Any, SimpleNamespace(connect=connect))
    known.recall(IDENTITY, None, SlotCheckpointStore(folder, *IDENTITY))
    return known, kafka


def test_a_beginning_that_nobody_waits_for_any_more_fences_nobody(tmp_path: Path) -> None:
    known, kafka = recalled(tmp_path)
    thread = Thread()
    with pytest.raises(ConnectionFailed):
        known.begin(thread.ask)
    assert thread.call is not None
    with pytest.raises(ConnectionFailed, match="no longer waits"):
        thread.call()
    assert kafka.connected == []


def test_a_beginning_that_is_given_up_meanwhile_writes_no_position(tmp_path: Path) -> None:
    known, kafka = recalled(tmp_path)
    thread = Thread()

    def last(key: bytes) -> None:
        # This happens while the position is read.
        given_up.set()

    with pytest.raises(ConnectionFailed):
        known.begin(thread.ask)
    given_up = cast(Any, thread.call).args[0]
    given_up.clear()
    kafka.last = last
    with pytest.raises(ConnectionFailed, match="no longer waits"):
        cast(Any, thread.call)()
    assert len(kafka.connected) == 1


def test_a_copy_of_the_database_under_another_prefix_fences_nobody(tmp_path: Path) -> None:
    settings = [replace(SETTINGS, topic_prefix=prefix) for prefix in ("", "copy")]
    ids = {recalled(tmp_path, one)[0]._transactional_id for one in settings}
    assert ids == {"bwtui-7-bottledwater-/shop", "bwtui-7-bottledwater-copy/shop"}


@pytest.mark.parametrize(
    ("age", "is_whole", "commits"), [(29, False, 0), (31, False, 1), (1, True, 0), (31, True, 1)]
)
def test_a_transaction_ends_before_kafka_aborts_it(age: float, is_whole: bool, commits: int) -> None:
    settings = replace(SETTINGS, commit_ms=600_000)
    sink = cast(Any, TransactionalSink(settings))
    begun: list[Position] = []
    sink._begin_commit = lambda: begun.append(sink._mark[0])
    sink._is_open, sink._opened_at = True, time.monotonic() - age
    sink.mark(Position(*IDENTITY), is_whole=is_whole)
    sink.commit_when_due()
    assert len(begun) == commits


@pytest.mark.parametrize(
    ("since", "is_whole", "is_idle", "commits"),
    [(21, True, True, 1), (19, True, True, 0), (21, True, False, 0), (21, False, True, 0)],
)
def test_where_nothing_more_waits_a_transaction_ends_soon(
    since: float, is_whole: bool, is_idle: bool, commits: int
) -> None:
    sink = cast(Any, TransactionalSink(SETTINGS))
    sink._commit_seconds = 100
    begun: list[Position] = []
    sink._begin_commit = lambda: begun.append(sink._mark[0])
    sink._is_open, sink._opened_at = True, time.monotonic()
    sink._committed_at = time.monotonic() - since
    sink.mark(Position(*IDENTITY), is_whole=is_whole, is_idle=is_idle)
    sink.commit_when_due()
    assert len(begun) == commits


@pytest.mark.parametrize("linger", [5, 30_000])
def test_a_flush_sends_what_would_wait_for_longer_than_a_stop(linger: int) -> None:
    sink = cast(Any, KafkaSink(replace(SETTINGS, kafka_config=(("linger.ms", str(linger)),))))
    waiting = ["a message"]

    class Lingering:
        def __len__(self) -> int:
            return len(waiting)

        def poll(self, timeout: float) -> int:
            if linger == 5:
                waiting.clear()
            return 0

        def flush(self, timeout: float) -> int:
            assert linger != 5
            waiting.clear()
            return 0

    sink._producer = Lingering()
    assert sink.flush(0.1)


class OnDisk:
    """A recording that is on disk once the test says so."""

    def __init__(self) -> None:
        self.is_kept = False
        self.committed = False

    def commit_transaction(self, timeout: float) -> None:
        assert self.is_kept, "Kafka has what the recording may lose"
        self.committed = True

    def produce(self, *record: Any) -> None:
        """Accept the position."""

    def poll(self, timeout: float) -> int:
        return 0

    def __len__(self) -> int:
        return 0


def test_kafka_commits_what_is_on_the_recordings_disk_and_nothing_else() -> None:
    sink, recorded = cast(Any, TransactionalSink(SETTINGS)), OnDisk()
    sink._checks = TransactionChecks(promise=lambda: lambda: recorded.is_kept)
    sink._producer, sink._is_open, sink.is_eager = recorded, True, True
    sink.mark(Position(*IDENTITY), is_whole=True)
    sink.commit_when_due()
    sink.poll(0.01)
    assert not recorded.committed and not sink.is_clean
    # Messages sent meanwhile belong to the next transaction.
    sink.send("topic", [(b"k", b"v", 0, None)], DeliverySpan())
    assert sink.has_uncommitted
    sink._next.clear()
    recorded.is_kept = True
    eventually("it is committed", lambda: sink.poll(0.01) or sink.is_clean)
    assert recorded.committed


class Reporting(OnDisk):
    """A producer with unread delivery reports."""

    def __init__(self, reports: int) -> None:
        super().__init__()
        self.is_kept, self.reports, self.left = True, reports, -1

    def poll(self, timeout: float) -> int:
        self.reports = max(0, self.reports - 1)
        return 1

    def commit_transaction(self, timeout: float) -> None:
        self.left = self.reports
        super().commit_transaction(timeout)

    def __len__(self) -> int:
        return self.reports


@pytest.mark.parametrize(
    ("is_idle", "linger", "left"), [(False, 5, 0), (True, 5, 9), (False, 1_000, 9), (True, 1_000, 9)]
)
def test_a_busy_relay_takes_reports_before_a_commit_and_not_one_by_one_within(
    is_idle: bool, linger: int, left: int
) -> None:
    settings = replace(SETTINGS, kafka_config=(("linger.ms", str(linger)),))
    sink, producer = cast(Any, TransactionalSink(settings)), Reporting(9)
    sink._producer, sink._is_open, sink.is_eager = producer, True, True
    sink.mark(Position(*IDENTITY), is_whole=True, is_idle=is_idle)
    sink.commit_when_due()
    eventually("it is committed", lambda: sink.poll(0.01) or sink.is_clean)
    assert producer.left == left


@pytest.mark.parametrize(
    ("record", "is_snapshot", "is_careful", "is_quiet"),
    [
        ("", False, False, True),
        ("folder", False, False, False),
        ("", True, False, False),
        ("", False, True, False),
    ],
)
def test_what_is_delivered_is_reported_one_by_one_only_to_those_who_note_it(
    monkeypatch: pytest.MonkeyPatch, record: str, is_snapshot: bool, is_careful: bool, is_quiet: bool
) -> None:
    made: list[dict[str, Any]] = []

    def begun(config: dict[str, Any], check: Callable[[], None]) -> Taking:
        made.append(config)
        return Taking()

    monkeypatch.setattr("bwtui.sink.transactions.begin_producer", begun)
    sink = cast(Any, TransactionalSink(replace(SETTINGS, record=record)))
    how = {"snapshot": is_snapshot, "one_by_one": is_careful}
    sink.begin(sink.connect("bwtui", **how), TransactionChecks(), **how)
    assert made[0]["delivery.report.only.error"] is is_quiet
    span = DeliverySpan()
    sink.send("topic", [(b"k", b"v", 0, None), (b"l", b"w", 0, None)], span)
    sink.send("topic", [(b"k", b"x", 0, None)], span)
    # The end of the transaction counts as one more, except for a snapshot, which its slot confirms.
    assert span.pending == (1 if is_quiet else 3 if is_snapshot else 4)


class Taking(OnDisk):
    """A producer that accepts messages and reports nothing yet."""

    def begin_transaction(self) -> None:
        """Do nothing."""


class Slow(OnDisk):
    """A producer whose commit blocks until released; meanwhile nothing can be aborted."""

    def __init__(self, error: KafkaException | None) -> None:
        super().__init__()
        self.may_end, self.error = Event(), error

    def commit_transaction(self, timeout: float) -> None:
        assert self.may_end.wait(10)
        if self.error is not None:
            raise self.error

    def abort_transaction(self, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._PREV_IN_PROGRESS))

    def purge(self, in_queue: bool = True, in_flight: bool = True) -> None:
        """Do nothing: the queue is empty."""


@pytest.mark.parametrize("code", [None, KafkaError._TIMED_OUT, KafkaError._FENCED])
@pytest.mark.parametrize("is_seen_first", [True, False])
def test_a_commit_that_gets_through_while_all_is_called_back_counts(
    code: int | None, is_seen_first: bool
) -> None:
    error = None if code is None else KafkaException(KafkaError(code, retriable=True))
    sink, producer, span = cast(Any, TransactionalSink(SETTINGS)), Slow(error), DeliverySpan()
    sink._producer, sink._is_open, sink.is_eager = producer, True, True
    span.pending = 1
    sink._spans, sink._rows = [span], 3
    sink.mark(Position(*IDENTITY), is_whole=True)
    sink.commit_when_due()
    sink.hold_back()
    assert not sink.flush(0.05), "the commit is under way"
    producer.may_end.set()
    if is_seen_first:
        eventually("it has ended", lambda: sink.poll(0.01) or sink._commit is None)
    eventually("nothing is under way", lambda: sink.flush(0.05))
    assert span.pending == (0 if error is None else 1)
    assert sink.answered() == (3 if error is None else 0)
    sink.discard(in_order=True)


def waiting_on_a_disk_that_fails() -> tuple[Any, Any, Callable[[], bool]]:
    """Return a sink whose commit waits for the disk, a recorder with a failed disk, and a give-up check."""

    def settle(*, idle: bool) -> None:
        raise StateFailed("the recording can't be written", "free disk space")

    looks = iter(range(50))
    sink = SimpleNamespace(is_busy=True, poll=lambda seconds: None, flush=lambda seconds: False)
    return sink, SimpleNamespace(settle=settle), lambda: next(looks, None) is None


def test_a_disk_that_fails_ends_the_search_for_a_row_that_kafka_refuses() -> None:
    sink, recorder, is_enough = waiting_on_a_disk_that_fails()

    def pulse() -> None:
        assert not is_enough(), "it waits for ever"

    with pytest.raises(StateFailed):
        RejectedRowFinder(sink, cast(Any, None), pulse, {}, recorder).settle(DeliverySpan())


def test_a_disk_that_fails_ends_the_waiting_for_what_is_in_flight() -> None:
    sink, recorder, is_enough = waiting_on_a_disk_that_fails()
    report, session = RunState(), cast(Any, object.__new__(SessionLoop))
    session._report = SimpleNamespace(clock=report.clock, take_deliveries=lambda sink: None)
    session._context = relay_context(
        sink=sink, recorder=recorder, transactions=exactly(), stop_requested=is_enough
    )
    with pytest.raises(StateFailed):
        session._drain()


def test_a_leader_that_changes_ends_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    positions, position = PositionTopic(SETTINGS, {"bootstrap.servers": "nowhere:1"}), Position(*IDENTITY)
    answers: list[Any] = [
        KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)),
        KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)),
        position,
    ]

    def last(key: bytes) -> Position:
        answer = answers.pop(0)
        if isinstance(answer, KafkaException):
            raise answer
        return cast(Position, answer)

    monkeypatch.setattr(positions, "_last", last)
    assert positions.last(position.key) == position
    answers.append(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    with pytest.raises(ConnectionFailed, match="can't be read"):
        positions.last(position.key)
