"""The relay is killed right before and right after each of its effects: nothing is lost."""

import contextlib
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bwtui.relay.failpoints import EFFECTS
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.backfills import ask
from tests.faults.relays import Relay
from tests.torture.histories import Histories, create_tables, histories
from tests.torture.judging import Judge
from tests.torture.topics import Topics

ROWS = 20
#: Effects at a start, repeated effects, effects at a stop, and effects of a backfill request.
FIRST = ("publication", "topic", "schema", "copy", "slot")
AGAIN = ("send", "acknowledge", "state", "confirm", "record", "sync")
LAST, ASKED = ("finish",), ("progress",)
ONCE = ("fence", "commit")
#: Tested elsewhere in tests/faults: `test_heal_cases` and `test_promotion`.
HEALING = ("heal",)

NewRelay = Callable[..., Relay]
SIDES = ("before", "after")


def test_there_is_none_that_nothing_hits() -> None:
    assert sorted(EFFECTS) == sorted((*FIRST, *AGAIN, *LAST, *ASKED, *ONCE, *HEALING))


def kill_at(relay: Relay, side: str, effect: str, provoke: Callable[[], object] | None = None) -> None:
    """Start the relay, and check that it is killed at the failpoint."""
    relay.start(failpoint=f"{side}-{effect}:kill")
    if provoke is not None:
        # It may pass the failpoint before it streams: a torn recording is finished at the start.
        with contextlib.suppress(AssertionError):
            relay.wait_streaming()
            provoke()
    assert relay.wait_ended() == -9, f"{side}-{effect}: {relay.last_words()}"
    relay._wait_released()


def test_a_kill_at_some_effects(services: ServiceAddresses, database: str, new_relay: NewRelay) -> None:
    relay = new_relay()
    create_tables(database, ROWS)
    kill_at(relay, "after", "slot")
    relay.start()
    relay.wait_streaming()
    written = histories(database, ROWS, 1, writers=1)
    with written.going_on():
        relay.kill()
        kill_at(relay, "after", "acknowledge")
        kill_at(relay, "before", "confirm")
        relay.start()
        relay.wait_caught_up()
    end(services, database, relay, Judge(relay.name), written)


@pytest.mark.long
@pytest.mark.parametrize("side", SIDES)
def test_a_kill_at_each_effect(
    side: str, services: ServiceAddresses, database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    relay = new_relay("--record", str(tmp_path / "recording"))
    create_tables(database, ROWS)
    for effect in FIRST:
        kill_at(relay, side, effect)
    relay.start()
    relay.wait_streaming()
    written = histories(database, ROWS, 1, writers=1)
    with written.going_on():
        relay.kill()
        for effect in AGAIN:
            kill_at(relay, side, effect)
        for effect in ASKED:
            kill_at(relay, side, effect, partial(ask, relay, table="public.accounts"))
        for effect in LAST:
            kill_at(relay, side, effect, partial(relay.signal, signal.SIGTERM))
        relay.start()
        relay.wait_caught_up()
    end(services, database, relay, Judge(relay.name), written)


@pytest.mark.long
@pytest.mark.parametrize("side", SIDES)
def test_a_kill_at_each_effect_exactly_once(
    side: str, services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    relay = new_relay("--exactly-once")
    create_tables(database, ROWS)
    # Effects of the snapshot.
    for effect in ONCE:
        kill_at(relay, side, effect)
    relay.start()
    relay.wait_streaming()
    judge, written = Judge(relay.name), histories(database, ROWS, 1, writers=1)
    with written.going_on():
        relay.kill()
        for effect in (*ONCE, *ONCE):
            kill_at(relay, side, effect)
        relay.start()
        relay.wait_caught_up()
    end(services, database, relay, judge, written, exactly_once=True)


@pytest.mark.long
def test_what_fails_at_an_effect_goes_on_by_itself(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    relay = new_relay()
    create_tables(database, ROWS)
    relay.run()
    written = histories(database, ROWS, 1, writers=1)
    with written.going_on():
        for name in ("before-send", "after-send", "before-state", "after-state", "before-confirm"):
            relay.start(failpoint=f"{name}:2:raise")
            relay.wait("failing", lambda status: any(name in error.message for error in status.errors))  # noqa: B023
            relay.wait_caught_up()
            relay.stop()
        relay.start()
        relay.wait_caught_up()
    end(services, database, relay, Judge(relay.name), written)


def end(
    services: ServiceAddresses,
    database: str,
    relay: Relay,
    judge: Judge,
    written: Histories,
    *,
    exactly_once: bool = False,
) -> None:
    """Let the relay catch up, and judge all writes."""
    relay.wait_caught_up()
    relay.stop()
    judge.take(Topics(services, judge.topics).read())
    verdict = judge.end(database, written.transactions())
    assert written.count() and verdict.messages
    assert not verdict.problems(exactly_once=exactly_once)
