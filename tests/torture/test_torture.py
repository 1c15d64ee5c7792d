"""Random faults on all parts of a relay's environment: nothing is lost, and every key is in order.

``make torture SECONDS=600 SEED=7 VERSION=14 EXACTLY_ONCE=1`` runs for that many seconds; the short run has
some of the faults that end quickly.
"""

import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from tests.fix_sandbox import MAJOR
from tests.torture import faults
from tests.torture.campaign import sequence, tortured
from tests.torture.faults import Fault
from tests.torture.stand import Stand, standing
from tests.torture.sums import added_up, keep
from tests.torture.weakened import weak

SECONDS = float(os.environ.get("BWTUI_TORTURE_SECONDS", "0"))
SEED = int(os.environ.get("BWTUI_TORTURE_SEED", "1"))
SUMS = os.environ.get("BWTUI_TORTURE_SUMS", "")
CLOCK = os.environ.get("BWTUI_TORTURE_CLOCK", "") not in ("", "0")
EXACTLY_ONCE = os.environ.get("BWTUI_TORTURE_EXACTLY_ONCE", "") not in ("", "0")
#: Pause of a writer between transactions, in seconds: some hundred rows a second, so that one machine can run
#: several campaigns at once.
_PAUSE = 0.06
#: Faults of the short run.
_SHORT = (
    faults.KILLED,
    faults.FAILPOINT,
    faults.DEAF,
    faults.KILLED_BEHIND,
    faults.ENDED_SENDER,
    faults.SPOILED,
    *(fault for fault in faults.ON_WAYS if fault.kind.endswith(("SQL: spoiled answer", "registry: reset"))),
)


class _Long(random.Random):
    """Draws the longest durations."""

    def random(self) -> float:
        return 0.99


LONG = _Long()
NewStand = Callable[..., Stand]


@pytest.fixture
def new_stand(
    interrupted: Sandbox,
    services: ServiceAddresses,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[NewStand]:
    """Set up stands that are closed at the end of their test; the arguments are options of the relay."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    with ExitStack() as stack:

        def put_up(*args: str, **more: Any) -> Stand:
            made = standing(interrupted, services, database, tmp_path, *args, **more)
            return stack.enter_context(made)

        yield put_up


@pytest.mark.timeout(SECONDS * 3 + 900)
def test_no_fault_loses_a_row(new_stand: NewStand) -> None:
    """Every key stays in order; only unconfirmed changes are repeated, and none with --exactly-once."""
    stand = new_stand(*(("--exactly-once",) if EXACTLY_ONCE else ()), records=bool(SEED % 2))
    if SECONDS:
        kinds = faults.EXACTLY_ONCE if EXACTLY_ONCE else faults.FAULTS
        drawn = sequence(SEED, (*kinds, faults.CLOCK) if CLOCK else kinds)
    else:
        drawn = iter([(fault, random.Random(SEED)) for fault in _SHORT])
    pause = _PAUSE if SECONDS else 0.01
    outcome = tortured(stand, SEED, drawn, SECONDS or 60, pause=pause, told=bool(SECONDS))
    print(outcome.summary(), flush=True)
    if SUMS:
        keep(Path(SUMS), _setting(stand), outcome)
        print(added_up(Path(SUMS).read_text().splitlines()), flush=True)
    assert outcome.rows and outcome.faults.total()
    assert not outcome.verdict.problems(exactly_once=EXACTLY_ONCE)


def _setting(stand: Stand) -> str:
    """Return the configuration of the campaign; the server itself reports its version."""
    ((version,),) = stand.ask("show server_version")
    once = ", exactly once" if stand.exactly_once else ""
    return f"PostgreSQL {version.split('.')[0]}, brokers {len(stand.brokers)}{once}"


@pytest.mark.long
@pytest.mark.parametrize("fault", [faults.RESTARTED, faults.CRASHED], ids=lambda fault: fault.kind)
def test_what_comes_again_was_not_on_disk(new_stand: NewStand, fault: Fault) -> None:
    """A restarted server has its slots at the position saved to disk; see test_taken_back."""
    stand = new_stand()
    drawn = [(fault, random.Random(SEED))] * 3
    verdict = tortured(stand, SEED, drawn, 300).verdict
    assert not verdict.problems(exactly_once=False)
    assert [mark.taken_back for mark in stand.judge.marks].count(True) == (
        3 if fault is faults.CRASHED or MAJOR < 17 else 0
    )


@pytest.mark.long
def test_a_relay_that_confirms_what_it_read_is_found(new_stand: NewStand) -> None:
    stand = new_stand(make=weak("confirms what it read"))
    assert "lost: " in _found(stand, lambda: faults.kill_behind(stand.broker_ways[0], stand, LONG), 3)


@pytest.mark.long
def test_a_producer_without_order_is_found(new_stand: NewStand) -> None:
    stand = new_stand(make=weak("sends without order"))

    def spoil() -> None:
        # Small batches, so that more than one request is in flight.
        stand.broker_ways[0].delay = 0.05
        stand.last(0.5)
        faults.spoil_request(stand.broker_ways[0], stand, LONG)

    assert "out of order: " in _found(stand, spoil, 4)


@pytest.mark.long
def test_a_relay_that_fences_nobody_is_found(new_stand: NewStand) -> None:
    stand = new_stand("--exactly-once", make=weak("fences nobody"))
    # Records of both relays are duplicates, or unreadable while Kafka waits for the first relay.
    told = _found(stand, lambda: faults.take_over(stand, LONG), 2)
    assert "repeated: " in told or "lost: " in told


@pytest.mark.long
def test_a_seed_repeats_the_faults() -> None:
    first, again = (
        [(fault.kind, dice.random()) for fault, dice in itertools.islice(sequence(7, faults.FAULTS), 200)]
        for _ in range(2)
    )
    assert first == again
    assert len({kind for kind, _ in first}) > 20


def _found(stand: Stand, act: Callable[[], None], times: int) -> str:
    """Expose a weakened relay to one kind of fault, and return the violations."""

    def once_it_streams(*_: object) -> None:
        # A fault before its first row would have nothing to lose.
        stand.recover()
        act()

    drawn = [(Fault("its own", once_it_streams), random.Random(SEED))] * times
    # Few rows, so that later changes in the stream have the same keys.
    verdict = tortured(stand, SEED, drawn, 60, rows=10).verdict
    return verdict.problems(exactly_once=stand.exactly_once)
