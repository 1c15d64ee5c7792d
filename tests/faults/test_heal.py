"""``connect --heal``: slots are lost in every way, under writes, and the relay is killed while it heals.

After each gap topics equal tables, by a comparison that shares nothing with the relay's. Where nothing else
wrote, exactly the differing keys were sent. ``make heal SECONDS=600 SEED=1`` runs for that many seconds; by
default three gaps are tried.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from bwtui.model.status import Status
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.heal_gaps import (
    GAPS,
    TABLES,
    contents,
    created,
    drop_below,
    invalidate,
    is_read,
    promote,
    write,
    written_to,
)
from tests.faults.records import Record, RecordFollower, assert_equal
from tests.faults.relays import Relay, new_name
from tests.second_postgres import SecondPostgres

SECONDS = float(os.environ.get("BWTUI_HEAL_SECONDS", "0"))
SEED = int(os.environ.get("BWTUI_HEAL_SEED", "1"))
_HEAL_SECONDS = 180.0
#: One gap of each kind: a missing slot, an invalidated slot, and a server that lacks sent changes.
_SHORT = (drop_below, invalidate, promote)
_Key = tuple[str, tuple[Any, ...]]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[SecondPostgres]:
    """A dedicated server."""
    second = created()
    request.addfinalizer(second.remove)
    yield second


@pytest.fixture
def relay(
    server: SecondPostgres, services: ServiceAddresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Relay]:
    """A relay of that server with --heal."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    made = Relay(services, server.dsn, tmp_path, new_name("heal"), "--heal")
    made.start()
    made.wait_streaming()
    made.wait_caught_up()
    yield made
    made.close()


class Topics:
    """Reads the relay's topics, each record once."""

    def __init__(self, services: ServiceAddresses, relay: Relay) -> None:
        self._follower = RecordFollower(services, TABLES, relay.name)
        self._latest: dict[_Key, dict[str, Any]] = {}
        self._prefix = relay.name

    def close(self) -> None:
        """Close the consumer."""
        self._follower.close()

    def read(self) -> list[Record]:
        """Return the records since the last call."""
        new = self._follower.records()
        for one in new:
            if one.value is None:
                self._latest.pop((one.topic, one.key), None)
            else:
                self._latest[one.topic, one.key] = one.value
        return new

    def differing(self, server: SecondPostgres) -> set[_Key]:
        """Return the keys whose last read value differs from the tables."""
        rows = {
            (table.topic(self._prefix), key): row
            for table in TABLES
            for key, row in contents(server, table).items()
        }
        return {
            key
            for key in self._latest.keys() | rows.keys()
            if not _same(self._latest.get(key), rows.get(key))
        }


@pytest.mark.timeout(900 + SECONDS)
def test_what_a_lost_slot_left_out_is_sent(
    services: ServiceAddresses, server: SecondPostgres, relay: Relay
) -> None:
    """Only the differing keys are sent, however the slot is lost."""
    dice, begin, done, counted = random.Random(SEED), time.monotonic(), Counter[str](), Counter[str]()
    with closing(Topics(services, relay)) as topics:
        while sum(done.values()) < len(_SHORT) or time.monotonic() - begin < SECONDS:
            gap = dice.choice(GAPS) if SECONDS else _SHORT[sum(done.values())]
            is_busy = dice.random() < 0.4 if SECONDS else gap is invalidate
            write(server, dice, 5)
            relay.wait_caught_up()
            gap(server, relay, dice)
            told = f"{gap.__name__}, seed {SEED}, {done}"
            counted += _healed(server, relay, topics, dice, is_busy, told)
            done[gap.__name__] += 1
            if SECONDS:
                print(f"{sum(done.values())} gaps {dict(done)}: {dict(counted)}", flush=True)
    assert_equal(services, server.dsn, TABLES, relay.name)
    assert counted["differing"]


def _healed(
    server: SecondPostgres, relay: Relay, topics: Topics, dice: random.Random, is_busy: bool, told: str
) -> Counter[str]:
    """Heal one gap, and return the numbers of keys that differed, were sent, and were sent twice."""
    kills = dice.choice((0, 0, 1, 2))
    topics.read()
    wrong = topics.differing(server)
    with written_to(server, dice.getrandbits(32)) if is_busy else nullcontext():
        _heal(server, relay, dice, kills)
    relay.wait_caught_up()
    came = topics.read()
    keys = Counter((one.topic, one.key) for one in came)
    told = f"{told}, {kills} kills, {'busy' if is_busy else 'quiet'}: {len(wrong)} differed, {len(came)} came"
    assert not topics.differing(server), told
    if is_busy:
        return Counter(busy=1)
    told += f"\n{relay.log()[-2000:]}"
    assert keys.keys() == wrong, told
    # A chunk that was in flight at a kill is sent again.
    assert keys.total() == len(wrong) or kills, told
    return Counter(differing=len(wrong), sent=keys.total(), repeated=keys.total() - len(wrong))


def _heal(server: SecondPostgres, relay: Relay, dice: random.Random, kills: int) -> None:
    """Let the relay heal while it is killed ``kills`` times; it streams when this returns."""
    if relay.has_ended:
        relay.start()
    else:
        relay.signal(signal.SIGCONT)
    for _ in range(kills):
        time.sleep(dice.uniform(0.1, 6.0))
        relay.kill()
        # A pending heal continues, with or without --heal.
        relay.start()

    # Query the slot first: a slot that is still being created is active, and the status read after that shows
    # the heal.
    def is_healed(_: Status) -> bool:
        now = relay.status() if is_read(server, relay) else None
        return now is not None and now.heal is None and now.state == "streaming"

    relay.wait("the heal", is_healed, _HEAL_SECONDS)


def _same(value: dict[str, Any] | None, row: dict[str, Any] | None) -> bool:
    if value is None or row is None:
        return value is row
    return all(str(value[name]) == str(content) for name, content in row.items())
