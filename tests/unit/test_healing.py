"""A heal: checks before a slot is dropped, and when the new slot counts as created."""

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bwtui.blocking import BlockingCalls
from bwtui.errors import ConnectionFailed, Indeterminate, RefusedError, SlotLost
from bwtui.model.lsn import format_lsn
from bwtui.relay.engine import RelayEngine
from bwtui.relay.healing import heal
from bwtui.relay.healing.heal import HealComparison, Healing, HealStateStore
from bwtui.relay.history.backfill_store import BackfillStore
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.rows.recorder import NullRecorder
from bwtui.relay.state.run_state import RunState
from bwtui.relay.stream.context import RelayContext
from bwtui.relay.stream.session import SessionLoop
from bwtui.settings import RelaySettings
from bwtui.source import publication
from bwtui.source import slot as source_slot
from bwtui.source.connection import Connection
from bwtui.source.raw_stream import ServerIdentity
from bwtui.source.slot import SlotState
from tests.relay_context import relay_context
from tests.waiting import eventually

IDENTITY = ("7000000000000000001", "shop", "orders")
CONFIRMED, MADE = 0x1000, 0x2000
LOST = SlotLost("slot orders is gone", "heal it")


def slot(confirmed: int = CONFIRMED) -> SlotState:
    return SlotState(
        "orders", "pgoutput", "shop", False, None, "reserved", None, 0x10, confirmed, 0x9000, False
    )


def server(
    identifier: str = IDENTITY[0], timeline: int = 1, *, end: int = 0x9000, standby: bool = False
) -> ServerIdentity:
    return ServerIdentity(identifier, timeline, (), end, standby)


class World:
    """The answering server, and the relay's own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = server()
        self.slot: SlotState | None = None
        self.made = 0
        self.memory = SlotCheckpointStore(folder, *IDENTITY)
        self.memory.take_over(server(), slot(), 0)
        self.memory.remember(CONFIRMED, sent_lsn=CONFIRMED)
        self.settings = RelaySettings(name="one", slot="orders", heal=True)

    def make(self, *_: object) -> tuple[int, tuple[str, ...]]:
        self.made += 1
        self.slot = slot(MADE)
        return MADE, ("bwtui_orders",)

    def relay(self) -> Healing:
        """A heal as the relay creates it at its start."""
        return Healing(self.settings, RunState(), self.folder, lambda: False)

    def context(self, recorder: object = NullRecorder(), report: RunState | None = None) -> RelayContext:
        calls = BlockingCalls(lambda _: None)
        context = relay_context(
            checkpoint=self.memory,
            settings=self.settings,
            report=report or RunState(),
            patience=SimpleNamespace(calls=calls),
            policy=SimpleNamespace(forget=lambda: None),
            recorder=recorder,
        )
        groups = {name: getattr(context, name) for name in ("run", "output", "services", "history")}
        return cast(RelayContext, SimpleNamespace(**groups, wait=self.wait))

    def wait(self, seconds: float) -> None:
        """Wait a second, during which a different server becomes available."""
        self.server = server()

    @property
    def due(self) -> HealStateStore:
        """The heal state on disk."""
        return HealStateStore(self.folder, IDENTITY)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    session = SimpleNamespace(close=lambda: None, server_version=180000)
    monkeypatch.setattr(heal, "server_and_database", lambda connection: IDENTITY[:2])
    monkeypatch.setattr(heal, "connect", lambda dsn: session)
    monkeypatch.setattr(heal, "interruptible", lambda *_: nullcontext())
    monkeypatch.setattr(heal, "obstacle_to_make", lambda *_: None)
    monkeypatch.setattr(heal, "make", made.make)
    monkeypatch.setattr(heal, "_server", lambda *_: made.server)
    monkeypatch.setattr(source_slot, "slot_state", lambda *_: made.slot)
    monkeypatch.setattr(source_slot, "check_readable", lambda *_: None)
    monkeypatch.setattr(publication, "existing", lambda *_: ("bwtui_orders",))
    return made


CONNECTION = cast(Connection, SimpleNamespace(server_version=180000))


class Recording:
    """A recording that does or does not hold more than this history."""

    def __init__(self, *, refuses: bool) -> None:
        self.refuses = refuses

    def go_back(self, lsn: int, *, is_gap: bool) -> None:
        if self.refuses:
            raise RefusedError("the recording holds more", "record into another folder")


def test_open_transactions_are_named_while_the_slot_is_recreated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, activities = RunState(), list[str]()

    def make(*_: object) -> tuple[int, tuple[str, ...]]:
        activities.append(report.clock.turn().activity)
        return world.make()

    monkeypatch.setattr(heal, "make", make)
    world.slot = None
    before = report.clock.turn().activity
    Healing(world.settings, report, world.folder, lambda: False).prepare(CONNECTION)
    assert activities == ["slot"]
    assert report.clock.turn().activity == before
    (notice,) = report.errors()
    assert f"recreated slot orders at {format_lsn(MADE)} " in notice.message
    assert "slot orders is missing; this relay had confirmed it up to 0/1000" in notice.message


def test_what_a_recording_refused_once_is_refused_at_every_start(world: World) -> None:
    """Otherwise the second start would continue a recording of a different history."""
    for _ in range(3):
        relay = world.relay()
        relay.prepare(CONNECTION)
        with pytest.raises(RefusedError, match="holds more"):
            relay.begun(world.context(Recording(refuses=True)))
        status = world.due.status
        assert status is not None and not status.lsn
    relay = world.relay()
    relay.prepare(CONNECTION)
    relay.begun(world.context(Recording(refuses=False)))
    assert world.made == 1
    status = world.due.status
    assert status is not None and status.lsn == format_lsn(MADE)


def test_a_kill_before_the_recording_took_it_keeps_the_slot(world: World) -> None:
    world.relay().prepare(CONNECTION)
    relay = world.relay()
    relay.prepare(CONNECTION)
    relay.begun(world.context())
    assert world.due.status is not None and world.due.status.lsn == format_lsn(MADE)
    world.relay().prepare(CONNECTION)
    assert world.made == 1


def test_a_new_slot_that_is_lost_as_well_is_made_again(world: World) -> None:
    world.relay().prepare(CONNECTION)
    world.slot = None
    world.relay().prepare(CONNECTION)
    assert world.made == 2


def test_a_slot_that_is_lost_elsewhere_is_not_dropped_here(world: World) -> None:
    relay, world.slot = world.relay(), slot()
    relay._due = world.due
    assert relay.again(world.context(), LOST) == ()
    assert not world.made
    assert world.due.status is None


def test_what_the_stream_said_needs_no_second_look(world: World) -> None:
    """Changes are missing from the stream even if the publication is complete again."""
    relay, world.slot = world.relay(), slot()
    relay._due = world.due
    error = SlotLost("PostgreSQL leaves out changes", "heal it")
    error.in_stream = True
    assert relay.again(world.context(), error) == ("bwtui_orders",)
    assert world.made == 1


def test_a_heal_that_began_makes_the_slot_whatever_it_looks_like(world: World) -> None:
    world.due.begin("it was gone")
    world.slot = slot()
    world.relay().prepare(CONNECTION)
    assert world.made == 1


def test_an_older_copy_is_seen_in_its_history(world: World) -> None:
    relay, world.slot, world.server = world.relay(), slot(0x100), server(end=0x200)
    relay._due = world.due
    assert relay.again(world.context(), LOST) == ("bwtui_orders",)
    assert world.made == 1


@pytest.mark.parametrize("other", [server("1"), server(standby=True)])
def test_another_cluster_and_a_standby_are_waited_for(world: World, other: ServerIdentity) -> None:
    relay = world.relay()
    relay._due = world.due
    world.server = other
    seen: list[str] = []

    def wait(seconds: float) -> None:
        assert not world.made and world.due.status is None
        seen.append("waited")
        world.server = server()

    world.wait = wait  # type: ignore[method-assign]
    assert relay.again(world.context(), LOST) == ("bwtui_orders",)
    assert seen and world.made == 1


@pytest.mark.parametrize("other", [server("1"), server(standby=True)])
def test_a_start_makes_no_slot_there(world: World, other: ServerIdentity) -> None:
    world.server = other
    with pytest.raises(ConnectionFailed):
        world.relay().prepare(CONNECTION)
    assert not world.made
    assert world.due.status is None


def test_no_slot_is_made_on_a_former_primary(world: World) -> None:
    """With several hosts the relay waits for the primary; a single host counts as an older copy."""
    world.memory.take_over(server(timeline=2), slot(), 1 << 64)
    for hosts, made in (("one,two", 0), ("one", 1)):
        world.settings = replace(world.settings, postgres=f"host={hosts}")
        with pytest.raises(ConnectionFailed, match="a former primary") if not made else nullcontext():
            world.relay().prepare(CONNECTION)
        assert world.made == made
        assert (world.due.status is not None) == made


def test_a_slot_of_a_standby_is_made_on_a_standby(world: World) -> None:
    world.server = server(standby=True)
    world.memory.take_over(world.server, slot(), 1 << 64)
    world.relay().prepare(CONNECTION)
    assert world.made == 1
    assert SlotCheckpointStore(world.folder, *IDENTITY).on_standby


def test_another_cluster_is_refused_before_its_slots_are_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no such slot, and one must not be created there."""
    following = SessionLoop(world.context(), lambda *_: None)
    answer = SimpleNamespace(
        server=server("1"),
        slot=None,
        connection=SimpleNamespace(finish=lambda: None),
        published={},
        running=set(),
    )
    monkeypatch.setattr(following, "_prepare_session", lambda publications: answer)
    with pytest.raises(RefusedError, match="a different server answered"):
        following._open_stream(())


def test_care_ends_where_the_histories_part(world: World) -> None:
    world.settings = RelaySettings(name="one", slot="orders", accept_divergence=True)
    report = RunState()
    report.received_lsn = 0x8000
    following = SessionLoop(world.context(report=report), lambda *_: None)
    following._careful_until = 0x8001
    following._check_history(server(end=0x800), slot(0x700))
    assert report.received_lsn == following._careful_until == 0x800


@pytest.mark.parametrize("other", [server(end=0x800), ServerIdentity(IDENTITY[0], 2, None, 0x9000, False)])
def test_that_a_slot_came_along_once_does_not_have_an_older_copy_followed(
    world: World, other: ServerIdentity
) -> None:
    following = SessionLoop(world.context(), lambda *_: None)
    with pytest.raises(SlotLost, match="this server's history lacks"):
        following._check_history(other, replace(slot(0x700), synced=True))
    assert world.memory.last is not None and world.memory.last.confirmed_lsn == CONFIRMED


def test_care_ends_with_what_comes_after_the_new_slot(world: World) -> None:
    report, relay = RunState(), world.relay()
    relay._report = report
    report.received_lsn = 0x8000
    relay.prepare(CONNECTION)
    relay.begun(world.context(report=report))
    assert report.received_lsn == report.confirmed_lsn == MADE


def test_two_servers_that_answer_by_turns_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(finish=lambda: None)
    monkeypatch.setattr("bwtui.relay.healing.heal.connect_raw", lambda dsn: other)
    monkeypatch.setattr("bwtui.relay.healing.heal.identify", lambda connection: server())
    monkeypatch.setattr("bwtui.relay.healing.heal.execute_raw", lambda connection, sql: [("noon",)])
    began = [("noon",)]
    monkeypatch.setattr("bwtui.relay.healing.heal.query", lambda connection, sql: began)
    assert heal._server(CONNECTION, RelaySettings()) == server()
    began[0] = ("midnight",)
    with pytest.raises(ConnectionFailed, match="different servers"):
        heal._server(CONNECTION, RelaySettings())


# -- the comparison alongside the relay ----------------------------------------------------------------------


@pytest.mark.parametrize("broken", [OSError("fork"), {"untrusted": ["public.t"]}, {"untrusted": 7}])
def test_a_round_that_fails_is_told_and_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch, broken: Any
) -> None:
    due = world.due
    due.begin("it was gone")
    due.record_slot("0/2000")
    monkeypatch.setattr(heal, "_PAUSE_SECONDS", 0.0)
    ended = threading.Event()
    results: list[Any] = [broken, broken]

    def run(*_: object) -> tuple[int, dict[str, Any], list[str]]:
        status = due.status
        assert status is not None
        if results:
            result = results.pop()
            if isinstance(result, Exception):
                raise result
            return 1, result, []
        assert due.finish("0/2000")
        return 0, {}, []

    def on_end(untrusted: Indeterminate | None) -> None:
        assert untrusted is None
        ended.set()

    beside = HealComparison("one", "bwtui slots drop one", due, on_end)
    changes: list[dict[str, Any]] = []
    tell: Callable[..., None] = beside._report_progress

    def noting(**changed: Any) -> None:
        changes.append(changed)
        tell(**changed)

    monkeypatch.setattr(beside, "_report_progress", noting)
    monkeypatch.setattr(beside._command, "run", run)
    beside.start()
    assert ended.wait(10)
    beside.stop()
    waiting = [one for one in changes if one.get("state") == "waiting"]
    kind = {OSError: "OSError"}.get(
        type(broken), "KeyError" if broken == {"untrusted": ["public.t"]} else "TypeError"
    )
    assert [one["detail"] for one in waiting] == [f"the comparison failed: {kind}"] * 2
    assert [one["tries"] for one in waiting] == [1, 2]


def ending_engine(order: list[str]) -> RelayEngine:
    """Return an engine whose run ends immediately; ``order`` collects its calls."""

    def part(name: str, *methods: str) -> Any:
        return SimpleNamespace(
            **{method: lambda *_, method=method: order.append(f"{name} {method}") for method in methods}
        )

    engine = RelayEngine.__new__(RelayEngine)
    engine._report = RunState()
    engine._picture = part("picture")
    engine._picture.watch = part("watch", "start", "stop")
    engine._picture.recent = part("recent", "stop")
    engine._picture.recorder = part("recording", "record_last_status", "close")
    engine._lag = part("lag", "stop")
    engine._looks, engine._destination, engine._patience = (part(name, "close") for name in "abc")
    engine._healing = part("comparison", "interrupt", "close")
    engine._healing.ended = None
    engine._orphaned_keys = part("naming", "close")
    engine._late = None
    engine._topics = engine._proving = engine._ends = engine._ledger = None
    engine._resources = ExitStack()
    engine._run = lambda: None  # type: ignore[method-assign]
    engine._settings = RelaySettings()
    return engine


def test_a_recording_is_closed_before_the_comparison_is_waited_for() -> None:
    """The comparison may take longer than the grace period before a kill."""
    order: list[str] = []
    engine = ending_engine(order)
    engine.run()
    told = [one for one in order if one.startswith(("recording", "comparison"))]
    recording = ["recording record_last_status", "recording close"]
    assert told == [recording[0], "comparison interrupt", recording[1], "comparison close"]
    # A stop that the stream handled cleanly raises nothing on its own.
    engine._healing.ended = Indeterminate("not made good", "decide")
    with pytest.raises(Indeterminate, match="not made good"):
        engine.run()
    assert engine._report.state == "failed"


def test_a_relay_that_caught_up_without_requested_rows_says_so(tmp_path: Path) -> None:
    engine = ending_engine([])
    engine._backfills = BackfillStore(tmp_path / "backfills")
    engine._stop = threading.Event()
    engine._backfills.failed("public.later", "permission denied")
    engine.run()
    engine._settings = RelaySettings(until_caught_up=True)
    with pytest.raises(Indeterminate, match="later were not sent: permission denied"):
        engine.run()
    assert engine._report.state == "failed"
    # A user who stops the relay did not wait for the rows.
    engine._stop.set()
    engine.run()


def test_a_command_is_interrupted_without_a_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    due = world.due
    due.begin("it was gone")
    due.record_slot("0/2000")
    monkeypatch.setattr(heal, "_COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    beside = HealComparison("one", "bwtui slots drop one", due, lambda untrusted: None)
    beside.start()
    eventually("the child", lambda: beside._command._child is not None)
    beside.interrupt()
    beside._thread.join(20)
    assert not beside._thread.is_alive()
    child = beside._command._child
    assert child is not None and child.returncode
    assert due.status is not None
    beside.stop()
