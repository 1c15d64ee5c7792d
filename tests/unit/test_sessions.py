"""Transitions from one session with PostgreSQL to the next, which a different server may answer."""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from psycopg import pq

from bwtui.blocking import StopRequested
from bwtui.errors import ConnectionFailed, ServiceRefused, SlotLost
from bwtui.model.delivery import DeliverySpan
from bwtui.pgoutput.messages import UNCHANGED, Column, Relation
from bwtui.recording.check import check
from bwtui.recording.payloads import NoMessageReason
from bwtui.relay.history import promotion
from bwtui.relay.history.coverage_ledger import Coverage
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows import toast
from bwtui.relay.rows.batch import OutgoingBatch
from bwtui.relay.rows.journal_recorder import JournalRecorder
from bwtui.relay.rows.policy import RowTooLarge
from bwtui.relay.rows.toast import ToastFiller, ToastUpdate
from bwtui.relay.state.ack import Acknowledgements
from bwtui.relay.state.run_state import RunState, TableCounters
from bwtui.relay.stream import session as session_module
from bwtui.relay.stream.row_handler import RowHandler
from bwtui.relay.stream.session import SessionLoop, StreamSession
from bwtui.settings import RelaySettings
from bwtui.sink.destination import Message, TopicLimits
from bwtui.sink.kafka import KafkaSink
from bwtui.source.preflight import wait_for_release
from bwtui.source.raw_session import ServerError
from bwtui.source.raw_stream import ENDLESS, ReachedServer
from bwtui.source.slot import SlotState
from bwtui.state_folder import state_folder
from tests.faults.fed_stream import keepalive
from tests.recorded_stream import Stream
from tests.recorded_stream import table as recorded_table
from tests.scripted_relay import ScriptedRelay, table
from tests.waiting import eventually


class Session:
    """A connection that counts its `finish` calls."""

    def __init__(self) -> None:
        self.finished = 0

    def finish(self) -> None:
        self.finished += 1


def follower(relay: ScriptedRelay) -> SessionLoop:
    return SessionLoop(relay.context, lambda session, slot: None)


def test_a_session_that_can_not_stream_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*given: object, **more: object) -> None:
        raise ConnectionFailed("the stream ended", "see the log")

    monkeypatch.setattr(session_module, "ReplicationStream", refuses)
    session = Session()
    with pytest.raises(ConnectionFailed, match="the stream ended"):
        follower(ScriptedRelay(tmp_path))._start(session, (), 0, make_failover=False)  # type: ignore[arg-type]
    assert session.finished == 1


class Calls:
    """Runs calls; the main thread gets ``answers`` results, and then a stop."""

    def __init__(self, answers: int) -> None:
        self._answers = answers

    def make(self, call: Callable[[], Any]) -> Any:
        if not self._answers:
            # The call is still running in its thread.
            raise StopRequested
        self._answers -= 1
        return call()


def opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, answers: int = 9, failover: bool | None = None
) -> tuple[ScriptedRelay, SessionLoop, Session]:
    """Return a relay whose slot has this ``failover`` flag, its session loop, and the session."""
    session: Any = Session()
    session.server_version, session.status = 180000, pq.ConnStatus.OK
    server: Any = SimpleNamespace(system_identifier="1", timeline=1, in_recovery=False)
    slot: Any = SimpleNamespace(confirmed_lsn=0, failover=failover)
    relay = ScriptedRelay(tmp_path)
    relay.patience.calls = Calls(answers)  # type: ignore[assignment]
    one = follower(relay)
    reached = ReachedServer("", "1", "", 1)
    start = session_module._SessionStart(session, server, reached, slot, {}, set())
    monkeypatch.setattr(one, "_prepare_session", lambda *_: start)
    monkeypatch.setattr(session_module, "check_readable", lambda *given: None)
    monkeypatch.setattr(session_module, "ReplicationStream", lambda connection, *given, **more: connection)
    monkeypatch.setattr(relay.context.history.checkpoint, "check", lambda slot: None)
    monkeypatch.setattr(relay.context.history.checkpoint, "start_lsn", lambda server, slot: 0)
    monkeypatch.setattr(SessionLoop, "_check_history", lambda *given: None)
    monkeypatch.setattr(one, "_published", SimpleNamespace(take=lambda *given: None))
    return relay, one, session


@pytest.mark.parametrize("failover", [None, False])
def test_a_stop_leaves_a_session_to_the_thread_that_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failover: bool | None
) -> None:
    """START_REPLICATION, or the call that enables failover for the slot, is running in its thread."""
    _, one, session = opened(tmp_path, monkeypatch, answers=1, failover=failover)
    one._settings = replace(one._settings, failover=True)
    with pytest.raises(StopRequested):
        one._open_stream(("p",))
    assert session.finished == 0


def test_a_server_with_a_shorter_history_gives_up_what_waited_beyond_it(tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path, record=False)
    log = relay.report.transaction_log
    for lsn in (1_000, 2_000):
        log.note((lsn, lsn, 0, 1, 10, 1.0, None))
    server: Any = SimpleNamespace()
    slot: Any = SimpleNamespace(synced=False)
    for end, given_up in ((ENDLESS, []), (1_500, [2_000])):
        memory = SimpleNamespace(
            common_end=lambda *given, end=end, **more: end, take_over=lambda *given: None, last=None
        )
        relay.context.history.checkpoint = memory  # type: ignore[assignment]
        follower(relay)._check_history(server, slot)
        log.tick(time.monotonic())
        assert [one.xid for one in log.view(0, 2).transactions if one.is_given_up] == given_up


@pytest.mark.parametrize(
    ("hosts", "timeline", "accept", "is_former"),
    [
        ("one,two", 1, False, True),
        ("one,two", 2, False, False),
        ("one,two", 3, False, False),
        ("one,two", 1, True, False),
        # The only address has an older copy: refuse it, since no other server will answer.
        ("one", 1, False, False),
    ],
)
def test_of_several_hosts_a_former_primary_is_waited_out(
    hosts: str, timeline: int, accept: bool, is_former: bool
) -> None:
    settings = RelaySettings(postgres=f"host={hosts} dbname=shop", accept_divergence=accept)
    memory: Any = SimpleNamespace(last=SimpleNamespace(timeline=2))
    refused = pytest.raises(ConnectionFailed, match="a former primary answered: it is on timeline 1")
    with refused if is_former else nullcontext():
        promotion.refuse_former(settings, memory, timeline)


def test_a_start_waits_out_a_former_primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This comes before the slot is checked, which proves nothing: it may be missing there, or moved."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    settings = RelaySettings(postgres="host=one,two dbname=shop", slot="orders")
    memory = SlotCheckpointStore(state_folder("orders"), "1", "shop", "orders")
    known: Any = SimpleNamespace(timeline=2, forks=(), in_recovery=False)
    memory.take_over(known, None, ENDLESS)  # type: ignore[arg-type]
    memory.remember(1_000)
    timelines, closed, told = [1, 1, 2], list[int](), list[str]()

    def connect(dsn: str) -> Any:
        timeline = timelines.pop(0)
        return SimpleNamespace(timeline=timeline, close=lambda: closed.append(timeline))

    monkeypatch.setattr(promotion, "connect", connect)
    monkeypatch.setattr(promotion, "server_and_database", lambda connection: ("1", "shop"))
    monkeypatch.setattr(promotion, "primary_timeline", lambda connection: connection.timeline)
    monkeypatch.setattr(promotion, "_FORMER_SECONDS", 0.0)
    report = RunState()
    found: Any = promotion.connect_to_newest(settings, report, told.append)
    assert (found.timeline, closed) == (2, [1, 1])
    assert len(told) == 2 and "a former primary answered" in told[0]
    (error,) = report.errors()
    assert error.dependency == "PostgreSQL"

    def stop(what: str) -> None:
        raise StopRequested

    timelines.append(1)
    with pytest.raises(StopRequested):
        promotion.connect_to_newest(settings, report, stop)
    assert closed == [1, 1, 1]


@pytest.mark.parametrize("status", [pq.ConnStatus.OK, pq.ConnStatus.BAD])
def test_that_a_slot_can_not_be_taken_along_is_told_once_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: pq.ConnStatus
) -> None:
    """This also holds if the server, or a proxy before it, closes the session; the next session streams."""
    tried: list[str] = []
    relay, one, session = opened(tmp_path, monkeypatch, failover=False)
    relay.context.run.settings = one._settings = replace(one._settings, failover=True)
    monkeypatch.setattr(promotion, "execute_raw", lambda *_: [("",)])

    def refuses(connection: Any, name: str) -> None:
        tried.append(name)
        connection.status = status
        raise ServerError("no such option", "42601", "")

    monkeypatch.setattr(promotion, "make_failover", refuses)
    lost = status == pq.ConnStatus.BAD
    with pytest.raises(ConnectionFailed, match="no such option") if lost else nullcontext():
        one._open_stream(("p",))
    assert session.finished == lost
    # A new session loop follows when a slot is invalidated.
    another = follower(relay)
    monkeypatch.setattr(another, "_prepare_session", one._prepare_session)
    monkeypatch.setattr(another, "_published", one._published)
    for again in (one, another):
        again._open_stream(("p",))
    assert tried == [relay.settings.slot]
    (told,) = relay.report.errors()
    assert "can't be made a failover slot: no such option" in told.message
    assert "--no-failover" in (told.hint or "")


@pytest.mark.parametrize(
    ("failover", "hosts", "is_new", "is_made"),
    [
        (None, "one", True, True),
        (None, "one", False, False),
        (None, "one,two", False, True),
        (True, "one", False, True),
        (False, "one,two", True, False),
    ],
)
@pytest.mark.parametrize("awaited", ["", "standby_1"])
def test_a_slot_that_was_there_is_left_as_it_is_unless_that_is_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failover: bool | None,
    hosts: str,
    is_new: bool,
    is_made: bool,
    awaited: str,
) -> None:
    made: list[str] = []
    relay, one, _ = opened(tmp_path, monkeypatch, failover=False)
    one._settings = replace(one._settings, postgres=f"host={hosts} dbname=shop", failover=failover)
    memory = relay.context.history.checkpoint
    memory.remember(1_000)
    if not is_new:
        known: Any = SimpleNamespace(timeline=1, forks=(), in_recovery=False)
        memory.take_over(known, SimpleNamespace(synced=False), ENDLESS)  # type: ignore[arg-type]
    monkeypatch.setattr(promotion, "make_failover", lambda connection, name: made.append(name))
    monkeypatch.setattr(promotion, "execute_raw", lambda *_: [(awaited,)])
    one._open_stream(("p",))
    assert made == [one._settings.slot] * is_made
    # Report settings that the user has not made before the day on which the stream blocks.
    told = [error.message for error in relay.report.errors()]
    assert ["synchronized_standby_slots (standby_1)" in one for one in told] == [True] * (
        is_made and bool(awaited)
    )


def test_a_new_slot_whose_first_session_breaks_is_made_one_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    relay, one, _ = opened(tmp_path, monkeypatch, failover=False)
    memory = relay.context.history.checkpoint
    memory.remember(1_000)
    answers: list[Any] = [ServerError("the session ended", "57P01", ""), [("",)]]

    def answer(*_: object) -> Any:
        # By this time the facts from the first session are stored.
        memory.take_over(
            SimpleNamespace(timeline=1, forks=(), in_recovery=False),  # type: ignore[arg-type]
            SimpleNamespace(synced=False),  # type: ignore[arg-type]
            ENDLESS,
        )
        now = answers.pop(0)
        if isinstance(now, ServerError):
            raise now
        return now

    monkeypatch.setattr(promotion, "make_failover", lambda connection, name: made.append(name))
    monkeypatch.setattr(promotion, "execute_raw", answer)
    with pytest.raises(ConnectionFailed, match="the session ended"):
        one._open_stream(("p",))
    assert not memory.is_unread and not made
    one._open_stream(("p",))
    assert made == [one._settings.slot]


def test_a_session_that_begins_earlier_takes_nothing_after_it_for_durable(tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path)
    assert isinstance(relay.recorder, JournalRecorder)
    recorder = relay.recorder

    def is_durable() -> bool:
        recorder.reach(5_000)
        return recorder.durable_lsn == 5_000

    eventually("the journal is synced", is_durable)
    recorder.begin_pass("stream", 3_000)
    assert recorder.durable_lsn == 3_000
    relay.close()


class Marks(Coverage):
    """Counts how often all tables were marked."""

    count = 0

    def mark_all(
        self,
        reason: str,
        tables: Collection[str] | None = None,
        *,
        has_extra: bool | None = None,
        since: int = 0,
    ) -> None:
        assert "lacks a sent transaction" in reason
        self.count += 1


@pytest.mark.parametrize(
    ("what", "is_marked"),
    [
        ("the same", False),
        ("an earlier and the same", False),
        ("a keepalive before it", False),
        ("a keepalive after it", True),
        ("a later one", True),
        ("another one at its LSN", True),
        ("a start after it", False),
        ("a start at it and a later one", True),
        ("other publications", False),
    ],
)
def test_a_server_that_lacks_the_newest_sent_transaction_is_an_older_copy(
    tmp_path: Path, what: str, is_marked: bool
) -> None:
    relay, orders = ScriptedRelay(tmp_path, record=False), table(7, "orders", ("id", "text"))
    relay.context.history.coverage = marks = Marks()
    checkpoint = relay.context.history.checkpoint
    checkpoint.remember(1)

    def transaction(id: bytes) -> list[bytes]:
        relay.begin()
        relay.announce(orders)
        relay.insert(orders, [id, b"x"])
        relay.commit()
        return list(relay.frames)

    earlier = transaction(b"1")
    relay.play()
    sent = transaction(b"2")
    relay.play()
    lsn = relay._lsn
    later = transaction(b"3")
    relay.frames.clear()
    changed = bytearray(sent[0])
    changed[-5] ^= 1
    relay.connect()
    if what == "other publications":
        checkpoint.remember_publications(("others",))
    frames = {
        "the same": sent + later,
        "an earlier and the same": [*earlier, keepalive(lsn - 5), *sent, *later],
        "a keepalive before it": [keepalive(lsn)],
        "a keepalive after it": [keepalive(lsn + 1)],
        "another one at its LSN": [bytes(changed), *sent[1:]],
    }
    for _ in range(2):
        relay.connect(lsn + 1 if what == "a start after it" else lsn if "a start at" in what else 0)
        relay.frames += frames.get(what, later)
        relay.play()
    assert marks.count == is_marked
    relay.close()


def test_what_was_noted_of_a_change_that_ended_the_relay_is_left_out(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    relation = recorded_table(7, "t")
    stream.begin_pass()
    stream.change("insert", relation, 1, b"x")
    # The second change's frame is never added: a stop or an error came while its row was read.
    stream.recorder.filled([b"2", UNCHANGED], [b"2", b"body"])
    stream.recorder.without(stream._route(relation), NoMessageReason.DROPPED)
    stream.stop()
    checked = check(tmp_path)
    assert (checked.verdict, checked.changes) == ("clean", 1)


def test_a_right_that_is_missing_is_no_reason_to_build_a_route_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = ScriptedRelay(tmp_path, record=False)
    relation = table(7, "t", ["id"])
    relay.begin()
    relay.announce(relation)
    relay.insert(relation, [b"1"])
    relay.play()
    assert relay._streaming is not None
    route = relay._streaming.rows.routes[7]
    assert route is not None

    def refuses(draft: object) -> tuple[str, ...]:
        raise ServiceRefused("no right to read the catalog", "grant it")

    monkeypatch.setattr(relay.router, "_keys", refuses)
    with pytest.raises(ServiceRefused):
        relay.router.still_holds(route)


class AtOnce:
    """Runs queries without a session."""

    def query(self, query: Callable[[Any], Any]) -> Any:
        return query(None)

    def query_ahead(self, query: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: query(None)


def but_known(updates: Sequence[ToastUpdate]) -> Callable[..., list[ToastUpdate]]:
    return lambda known, *_: [update for update in updates if id(update.frame) not in known]


def test_a_new_session_reads_again_what_was_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server may be a different one, and a row may have changed in between."""
    read: list[int] = []

    class RowHandler:
        def read(self, session: object, relation: object, keys: list[object], *_: object) -> dict[int, Any]:
            read.append(len(keys))
            return {number: [b"large"] for number in range(len(keys))}

    monkeypatch.setattr(toast, "_locked", lambda session, xids: set())
    monkeypatch.setattr(toast, "PresentRows", RowHandler)
    columns = (Column("id", 20, -1, True), Column("body", 25, -1, False))
    limits = TopicLimits(1 << 20, compacted=True)
    route = TableRoute(Relation(1, "public", "t", "d", columns), "t", ("id",), TableCounters(), None, limits)
    fill = ToastFiller(RelaySettings(), AtOnce(), lambda seconds: None)
    first, *rest = [ToastUpdate(b"%d" % n, [b"%d" % n, UNCHANGED], None, False, 7) for n in range(3)]
    assert fill.fill(route, first, but_known(rest)) == [b"0", b"large"]
    assert fill.fill(route, rest[0]) == [b"1", b"large"]
    assert read == [3]
    fill.begin_session()
    assert fill.fill(route, rest[1]) == [b"2", b"large"]
    assert read == [3, 1]


@pytest.mark.parametrize("fails", [False, True])
def test_values_are_read_while_those_before_are_sent(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """If that fails, they are read when it is their turn."""
    asked: list[str] = []

    class RowHandler:
        def read(self, session: object, relation: object, keys: list[Any], *rest: Any) -> dict[int, Any]:
            return {number: [key["id"] * 2] for number, key in enumerate(keys)}

    class Asking(AtOnce):
        def query(self, query: Callable[[Any], Any]) -> Any:
            asked.append("look")
            return query(None)

        def query_ahead(self, query: Callable[[Any], Any]) -> Callable[[], Any]:
            asked.append("ahead")
            return lambda: None if fails else query(None)

    # Each half is read ahead on its own; the last transaction is not visible when its values would be read.
    locked = iter([set(), *[set()] * (not fails), {"8"}, *[set()] * 9])
    monkeypatch.setattr(toast, "_locked", lambda session, xids: next(locked))
    monkeypatch.setattr(toast, "PresentRows", RowHandler)
    columns = (Column("id", 20, -1, True), Column("body", 25, -1, False))
    limits = TopicLimits(1 << 20, compacted=True)
    route = TableRoute(Relation(1, "public", "t", "d", columns), "t", ("id",), TableCounters(), None, limits)
    updates = [ToastUpdate(b"%d" % n, [b"%d" % n, UNCHANGED], None, False, 7 + n // 250) for n in range(300)]
    fill = ToastFiller(RelaySettings(), Asking(), lambda seconds: None)
    for number, update in enumerate(updates):
        rest = updates[number + 1 :]
        assert fill.fill(route, update, but_known(rest))[1] == b"%d" % number * 2
    assert asked == ["look", "ahead", "ahead", "look"] + ["look"] * fails


def test_frames_of_which_the_values_are_kept_are_not_taken_apart_again(tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path, record=False)
    relation = table(7, "t", ["id"])
    relay.begin()
    relay.announce(relation)
    relay.insert(relation, [b"1"])
    relay.play()
    assert relay._streaming is not None
    route = relay._streaming.rows.routes[7]
    assert route is not None
    rows = RowHandler(relay.context, relay._streaming.batch, lambda: relay.frames)
    relay.update(relation, [b"1"])
    # A parser of this frame finds no row.
    kept = relay.frames.pop()[:-5]
    relay.frames.append(kept)
    relay.update(relation, [b"2"])
    assert [update.new for update in rows._updates_ahead(route, {id(kept)})] == [[b"2"]]
    assert not list(rows._updates_ahead(route, set()))


def test_what_is_asked_ahead_and_fails_is_asked_again(tmp_path: Path) -> None:
    patience = ScriptedRelay(tmp_path).patience

    def refused(session: object) -> None:
        raise ServiceRefused("no right", "grant it")

    patience._queries.run = lambda query: query(None)  # type: ignore[arg-type, method-assign]
    waits = [patience.query_ahead(refused), patience.query_ahead(lambda session: "there")]
    assert [wait() for wait in waits] == [None, "there"]


def test_values_that_are_kept_share_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten tables alternate, each row with 1 MiB: none may use up the space of the others."""
    kept = most = 0
    value = b"x" * (1 << 20)

    class RowHandler:
        def read(self, session: object, relation: object, keys: list[object], *rest: Any) -> dict[int, Any]:
            nonlocal kept, most
            count = max(1, min(len(keys), rest[1] >> 20))
            kept += count
            most = max(most, kept)
            return {number: [value] for number in range(count)}

    monkeypatch.setattr(toast, "_locked", lambda session, xids: set())
    monkeypatch.setattr(toast, "PresentRows", RowHandler)
    columns = (Column("id", 20, -1, True), Column("body", 25, -1, False))
    limits = TopicLimits(1 << 20, compacted=True)
    routes = [
        TableRoute(
            Relation(oid, "public", f"t{oid}", "d", columns), "t", ("id",), TableCounters(), None, limits
        )
        for oid in range(10)
    ]
    updates = [ToastUpdate(b"%d" % n, [b"%d" % n, UNCHANGED], None, False, 7) for n in range(500)]
    fill = ToastFiller(RelaySettings(), AtOnce(), lambda seconds: None)
    for number, update in enumerate(updates):
        rest = updates[number + len(routes) :: len(routes)]
        route = routes[number % len(routes)]
        assert fill.fill(route, update, but_known(rest))[1] == value
        kept -= 1
    assert kept == 0
    assert most <= 16


@pytest.mark.parametrize("what", ["rows that are left out", "transactions without rows"])
def test_nothing_that_comes_for_ever_keeps_a_turn_from_its_end(tmp_path: Path, what: str) -> None:
    # Between two turns the relay confirms to the server, processes deliveries, and checks for a stop.
    relay = ScriptedRelay(tmp_path, record=False, exclude_tables=("t",))
    relation = table(7, "t", ["id"])
    relay.begin()
    relay.announce(relation)
    for number in range(50_000):
        if what == "rows that are left out":
            relay.insert(relation, [b"%d" % number])
        else:
            relay.commit()
            relay.begin()
    relay.connect()
    assert relay._streaming is not None
    relay._streaming._step()
    assert relay.frames
    relay.play()
    assert relay.context.run.report.messages == 0


def test_streaming_begins_without_the_words_of_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two assignments, a reader sees either the snapshot or a stream that waits for nothing."""
    relay = ScriptedRelay(tmp_path)
    seen: list[tuple[str, str]] = []

    class Watched(type(relay.report)):  # type: ignore[misc]
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name in ("state", "detail"):
                seen.append((self.state, self.detail))

    relay.report.state, relay.report.detail = "snapshot", "waiting until every row of the snapshot is durable"
    relay.report.__class__ = Watched
    monkeypatch.setattr(SessionLoop, "_follow", lambda *_: None)
    follower(relay).run((), None)
    assert seen == [("snapshot", ""), ("streaming", "")]


@pytest.mark.parametrize("is_older_copy", [True, False])
def test_a_relay_has_started_once_its_stream_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_older_copy: bool
) -> None:
    """Until then `connect --detach` and systemd wait: the initial checks may still end it."""
    relay, one, _ = opened(tmp_path, monkeypatch)
    seen: list[str] = []

    def look(*_: object) -> None:
        seen.append(relay.report.state)
        if is_older_copy:
            raise SlotLost("an older copy", "point it at the other one")

    monkeypatch.setattr(SessionLoop, "_check_history", look)
    monkeypatch.setattr(StreamSession, "run", lambda session: seen.append(relay.report.state))
    with pytest.raises(SlotLost) if is_older_copy else nullcontext():
        one.run((), None)
    assert seen == (["starting"] if is_older_copy else ["starting", "streaming"])
    assert relay.report.state == seen[-1]


def test_a_slot_that_is_read_is_waited_for_with_words_and_until_a_stop() -> None:
    told: list[str] = []
    active = SlotState("shop", "pgoutput", "shop", True, 4711, "reserved", None, 0, 0, 0, temporary=False)
    slots = iter([active, active, None])
    assert wait_for_release(lambda: next(slots), told.append) is None
    assert told == ["waiting for slot shop, which is in use by server process 4711"] * 2

    def stop(_: str) -> None:
        raise StopRequested

    with pytest.raises(StopRequested):
        wait_for_release(lambda: active, stop)


@pytest.mark.parametrize("limit", ["relay", "topic"])
def test_a_row_that_is_too_large_names_the_limit_that_refuses_it(limit: str, tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path)
    if limit == "topic":
        with closing(KafkaSink(RelaySettings(broker="127.0.0.1:1"))) as sink:
            error = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
            sink._failed("orders", error, Message(b"", b"", 0, None), DeliverySpan())
            hint = sink.take_failures()[0].hint
        assert hint.startswith("raise max.message.bytes of topic orders")
        return
    batch = OutgoingBatch(relay.context.output.sink, Acknowledgements(0, None), relay.report)
    route = SimpleNamespace(max_message_bytes=700, topic="orders")
    with pytest.raises(RowTooLarge, match=r"800 bytes; message\.max\.bytes allows 700") as raised:
        batch.add(route, None, b"x" * 800, 0, None)  # type: ignore[arg-type]
    assert raised.value.hint.startswith("raise -C message.max.bytes=")
