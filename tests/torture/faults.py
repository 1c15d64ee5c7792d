"""Faults of a campaign: each function injects one fault and returns when the fault is over."""

import contextlib
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bwtui.relay import failpoints
from tests.faults.writer import TABLES
from tests.proxy import Way
from tests.torture.stand import Stand, drawn
from tests.waiting import eventually

#: API key of Kafka's EndTxn request, which ends a transaction.
_END_TXN = 26
#: Effects that a streaming relay has repeatedly.
_STREAMED = ("send", "acknowledge", "state", "confirm")
_RECORDED = ("record", "sync")
_TRANSACTED = ("commit",)
_ONCE = ("fence",)

Act = Callable[[Stand, random.Random], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault, and its weight in the random choice."""

    kind: str
    act: Act
    weight: int = 4
    #: It takes seconds, because a service has to start.
    is_heavy: bool = False


# -- the relay -----------------------------------------------------------------------------------------------


def kill_relay(stand: Stand, dice: random.Random) -> None:
    """SIGKILL."""
    stand.kill_relay()
    stand.start_relay()


def kill_twice(stand: Stand, dice: random.Random) -> None:
    """SIGKILL, and again soon after the next start, at a random moment."""
    stand.kill_relay()
    stand.start_relay()
    stand.last(drawn(dice, 0.3, 2))
    kill_relay(stand, dice)


def stop_relay(stand: Stand, dice: random.Random) -> None:
    """SIGTERM: a clean stop."""
    stand.relay.signal(signal.SIGTERM)
    code = stand.relay.wait_ended()
    # The relay may have just started, or have ended on its own.
    assert code in (0, 4, -signal.SIGTERM), f"a stop ended with {code}: {stand.relay.last_words()}"
    stand.start_relay()


def suspend_relay(stand: Stand, dice: random.Random) -> None:
    """SIGSTOP for a while, sometimes for longer than the relay's stall threshold."""
    stand.suspend(stand.relay.pid, 11 if dice.random() < 0.05 else drawn(dice, 0.1, 3))


def hit_failpoint(stand: Stand, dice: random.Random) -> None:
    """Start the relay so that it is killed, stopped or made to fail at one of its effects."""
    effects = _STREAMED + ((_TRANSACTED + _ONCE) if stand.exactly_once else ())
    name = f"{dice.choice(('before', 'after'))}-{dice.choice(effects)}"
    action = dice.choices(failpoints.ACTIONS, (8, 1, 1))[0]
    nth = 1 if name.endswith(_ONCE) else dice.choice((1, 1, 2, 3, 5, 10))
    stand.kill_relay()
    stand.start_relay(f"{name}:{nth}:{action}")
    if action == "raise":
        # A fatal failure must end the relay with its regular exit code.
        stand.expected |= {2}
        stand.last(1)
        return
    # A few writes do not reach every failpoint; the relay is then killed elsewhere.
    with contextlib.suppress(AssertionError):
        eventually(name, lambda: stand.relay.has_ended or _is_stopped(stand), 5)
        if action == "stop" and not stand.relay.has_ended:
            stand.last(drawn(dice, 0.1, 1))
            stand.relay.signal(signal.SIGCONT)
            return
    kill_relay(stand, dice)


def _is_stopped(stand: Stand) -> bool:
    fields = Path(f"/proc/{stand.relay.pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0] == "T"


def fill_disk(stand: Stand, dice: random.Random) -> None:
    """Forbid the relay's files to grow: it ends before it confirms a position that it can't store."""
    stand.expected |= {2}
    resource.prlimit(stand.relay.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    with contextlib.suppress(AssertionError):
        eventually("it ends", lambda: stand.relay.has_ended, 10)
    if stand.relay.has_ended:
        stand.see_to_relay()
    else:
        kill_relay(stand, dice)


# -- PostgreSQL ----------------------------------------------------------------------------------------------


def end_walsender(stand: Stand, dice: random.Random) -> None:
    """pg_terminate_backend."""
    if (pid := stand.walsender()) is not None:
        stand.ask(f"select pg_terminate_backend({pid})")


def suspend_walsender(stand: Stand, dice: random.Random) -> None:
    """SIGSTOP for a while."""
    if (pid := stand.walsender()) is not None:
        stand.suspend(pid, drawn(dice, 0.1, 3))


def kill_walsender(stand: Stand, dice: random.Random) -> None:
    """SIGKILL of one session, after which PostgreSQL ends all sessions and recovers."""
    stand.mark_taken_back()
    if (pid := stand.walsender()) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually("PostgreSQL is back", lambda: stand.ask("select 1"))


# -- any service ---------------------------------------------------------------------------------------------


def _crash(service: str, number: signal.Signals, stand: Stand, dice: random.Random) -> None:
    stand.crash(service, number)


def _restart(service: str, stand: Stand, dice: random.Random) -> None:
    stand.restart(service)


def _suspend(service: str, stand: Stand, dice: random.Random) -> None:
    stand.suspend(stand.pid(service), drawn(dice, 0.2, 4))


def _of_a_broker(act: Callable[[str, Stand, random.Random], None]) -> Act:
    def of_one(stand: Stand, dice: random.Random) -> None:
        act(dice.choice(stand.brokers), stand, dice)

    return of_one


def _altered(act: Act) -> Act:
    """Alter a table first, so that its next row needs a request to the registry."""

    def with_another_schema(stand: Stand, dice: random.Random) -> None:
        stand.alter(dice.choice(TABLES).full_name)
        act(stand, dice)

    return with_another_schema


# -- the machine ---------------------------------------------------------------------------------------------


def set_clock(stand: Stand, dice: random.Random) -> None:
    """Set the wall clock of the whole machine, and set it back a little later."""
    by = dice.choice((-1, 1)) * drawn(dice, 0.5, 120)
    before = _clock_ahead()
    _set_ahead(before + by)
    try:
        stand.last(drawn(dice, 0.3, 3))
    finally:
        _set_ahead(before)


def _clock_ahead() -> float:
    return time.clock_gettime(time.CLOCK_REALTIME) - time.monotonic()


def _set_ahead(seconds: float) -> None:
    """Set the wall clock to the monotonic clock plus ``seconds``. Raises PermissionError."""
    time.clock_settime(time.CLOCK_REALTIME, time.monotonic() + seconds)


# -- the proxies ---------------------------------------------------------------------------------------------


def slow(way: Way, stand: Stand, dice: random.Random) -> None:
    """Delay each piece of data."""
    way.delay = drawn(dice, 0.01, 0.2)
    stand.last(drawn(dice, 0.3, 3))


def throttle(way: Way, stand: Stand, dice: random.Random) -> None:
    """Limit the number of bytes per second."""
    way.rate = dice.choice((20_000, 100_000, 500_000))
    stand.last(drawn(dice, 0.3, 3))


def cut(way: Way, stand: Stand, dice: random.Random) -> None:
    """Close the connections cleanly."""
    way.cut()


def reset(way: Way, stand: Stand, dice: random.Random) -> None:
    """Reset the connections; data in transit is lost."""
    way.reset()


def half_open(way: Way, stand: Stand, dice: random.Random) -> None:
    """Hold all data; then forward it, or reset the connections."""
    way.is_half_open = True
    stand.last(drawn(dice, 0.2, 4))
    if dice.random() < 0.5:
        way.reset()
    way.is_half_open = False


def shut(way: Way, stand: Stand, dice: random.Random) -> None:
    """Reset the connections, and accept no new ones for a while."""
    way.is_shut = True
    way.reset()
    stand.last(drawn(dice, 0.2, 3))
    way.is_shut = False


def deafen(way: Way, stand: Stand, dice: random.Random) -> None:
    """Forward requests and drop the answers; then reset the connections."""
    way.is_deaf = True
    stand.last(drawn(dice, 0.05, 1))
    way.reset()
    way.is_deaf = False


def spoil_answer(way: Way, stand: Stand, dice: random.Random) -> None:
    """Corrupt one answer, so that the client detects a protocol error."""
    way.spoil_answer = True
    stand.last(drawn(dice, 0.1, 1))
    way.spoil_answer = False


def spoil_request(way: Way, stand: Stand, dice: random.Random) -> None:
    """Flip one bit in a batch of records; its checksum detects that."""
    way.spoil_request = True
    stand.last(drawn(dice, 0.1, 1))
    way.spoil_request = False


def kill_behind(way: Way, stand: Stand, dice: random.Random) -> None:
    """Kill the relay while the other end does not answer."""
    way.is_half_open = True
    stand.last(dice.uniform(0.05, 2.5))
    stand.end_relay()
    way.reset()
    way.is_half_open = False
    stand.bury()
    stand.start_relay()


def carry_late(stand: Stand, dice: random.Random) -> None:
    """Kill the relay while the end of its Kafka transaction is in transit, after another relay has begun.

    With --exactly-once only: without transactions a broker can't tell that the late data is older.
    """
    ways = stand.broker_ways
    for way in ways:
        way.hold_from = _END_TXN
    with contextlib.suppress(AssertionError):
        eventually("a commit is held up", lambda: any(way.held for way in ways), 5)
    stand.end_relay()
    for way in ways:
        way.hold_from = None
        way.drop()
    stand.start_relay()
    with contextlib.suppress(AssertionError):
        eventually("another session", lambda: (now := stand.relay.status()) and now.state == "streaming", 10)
    stand.last(drawn(dice, 0.2, 1))
    for way in ways:
        way.release()


def take_over(stand: Stand, dice: random.Random) -> None:
    """Suspend the relay, let another one take over, and wake the first with the rows that it has read.

    The first relay does not learn that its session has ended, and it was suspended too briefly to notice:
    Kafka has to fence it. So with --exactly-once only.
    """
    first, way = stand.relay, stand.postgres_way
    first.signal(signal.SIGSTOP)
    way.hold()
    stand.last(drawn(dice, 0.2, 2))
    end_walsender(stand, dice)
    eventually("the slot's release", lambda: stand.ask("select 1") and stand.walsender() is None)
    stand.another_relay()
    eventually("the other one reads", stand.is_read)
    stand.last(drawn(dice, 0.2, 1))
    first.signal(signal.SIGCONT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        assert first.wait_ended(10) == 4, first.last_words()
        assert "another relay has taken over slot" in first.last_words()
    first.close()
    way.drop()


def _on(find: Callable[[Stand], Sequence[Way]], act: Callable[[Way, Stand, random.Random], None]) -> Act:
    def on_one(stand: Stand, dice: random.Random) -> None:
        act(dice.choice(find(stand)), stand, dice)

    return on_one


_WAYS: tuple[tuple[str, Callable[[Stand], Sequence[Way]], int], ...] = (
    ("PostgreSQL", lambda stand: [stand.postgres_way], 3),
    ("Kafka", lambda stand: stand.broker_ways, 3),
    ("the registry", lambda stand: [stand.registry_way], 1),
)
_ON_WAYS = (
    ("slow", slow),
    ("throttled", throttle),
    ("cut", cut),
    ("reset", reset),
    ("half open", half_open),
    ("shut", shut),
    ("spoiled answer", spoil_answer),
)
ON_WAYS = tuple(
    Fault(f"way to {service}: {what}", _altered(on) if service == "the registry" else on, weight)
    for service, find, weight in _WAYS
    for what, act in _ON_WAYS
    for on in [_on(find, act)]
)
DEAF = Fault("way to Kafka: deaf", _on(lambda stand: stand.broker_ways, deafen), 4)
SPOILED = Fault("way to Kafka: spoiled request", _on(lambda stand: stand.broker_ways, spoil_request), 3)
KILLED_BEHIND = Fault(
    "relay killed behind a way", _on(lambda s: [s.postgres_way, *s.broker_ways], kill_behind), 6
)
KILLED = Fault("relay killed", kill_relay, 10)
CRASHED = Fault("PostgreSQL crashes", partial(_crash, "postgres", signal.SIGQUIT), 2, is_heavy=True)
RESTARTED = Fault("PostgreSQL restarted", partial(_restart, "postgres"), 1, is_heavy=True)
ENDED_SENDER = Fault("walsender ended", end_walsender, 5)
FAILPOINT = Fault("relay at a failpoint", hit_failpoint, 16)
FULL = Fault("no room for the relay's files", fill_disk, 2)
SUSPENDED = Fault("relay suspended", suspend_relay, 4)
LATE = Fault("a commit comes late", carry_late, 6)
#: Only on request, because the new time applies to everything else on the machine.
CLOCK = Fault("the clock is set", set_clock, 8)
TAKEN_OVER = Fault("another relay takes over", take_over, 4)

FAULTS: tuple[Fault, ...] = (
    KILLED,
    Fault("relay killed twice", kill_twice, 4),
    Fault("relay stopped", stop_relay, 3),
    SUSPENDED,
    FAILPOINT,
    FULL,
    KILLED_BEHIND,
    ENDED_SENDER,
    Fault("walsender suspended", suspend_walsender, 3),
    Fault("walsender killed", kill_walsender, 2),
    Fault("PostgreSQL killed", partial(_crash, "postgres", signal.SIGKILL), 1, is_heavy=True),
    CRASHED,
    RESTARTED,
    Fault("PostgreSQL suspended", partial(_suspend, "postgres"), 2),
    Fault(
        "broker killed", _of_a_broker(lambda name, s, d: _crash(name, signal.SIGKILL, s, d)), 2, is_heavy=True
    ),
    Fault("broker restarted", _of_a_broker(_restart), 1, is_heavy=True),
    Fault("broker suspended", _of_a_broker(_suspend), 3),
    Fault("registry killed", _altered(partial(_crash, "registry", signal.SIGKILL)), 1, is_heavy=True),
    Fault("registry suspended", _altered(partial(_suspend, "registry")), 1),
    Fault("table altered", _altered(lambda stand, dice: None), 2),
    *ON_WAYS,
    DEAF,
    SPOILED,
)
EXACTLY_ONCE: tuple[Fault, ...] = (*FAULTS, LATE, TAKEN_OVER)
