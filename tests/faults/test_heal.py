"""``connect --heal``: slots are lost in every way, under writes, and the relay is killed while it heals.

After each of them topics equal tables, by a comparison that shares nothing with the relay's; where nothing
else wrote, the messages that were sent are the differing keys exactly. ``make heal SECONDS=600 SEED=1`` goes
on for so long; without, three gaps are tried.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bwtui.model.status import Status
from bwtui.sandbox.supervisor import Services
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
from tests.faults.records import Record, assert_equal, read_table
from tests.faults.relays import Relay, new_name
from tests.second_postgres import SecondPostgres

SECONDS = float(os.environ.get("BWTUI_HEAL_SECONDS", "0"))
SEED = int(os.environ.get("BWTUI_HEAL_SEED", "1"))
_HEAL_SECONDS = 180.0
#: One of each kind: the slot is gone, it is there and lost, and so is what was sent.
_SHORT = (drop_below, invalidate, promote)
_Key = tuple[str, tuple[Any, ...]]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[SecondPostgres]:
    """A server of the test's own."""
    second = created()
    request.addfinalizer(second.remove)
    yield second


@pytest.fixture
def relay(
    server: SecondPostgres, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Relay]:
    """A relay of that server that heals."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    made = Relay(services, server.dsn, tmp_path, new_name("heal"), "--heal")
    made.start()
    made.wait_streaming()
    made.wait_caught_up()
    yield made
    made.close()


@pytest.mark.timeout(900 + SECONDS)
def test_what_a_lost_slot_left_out_is_sent(services: Services, server: SecondPostgres, relay: Relay) -> None:
    """No other key is sent, in whatever way the slot is lost."""
    dice, begin, done = random.Random(SEED), time.monotonic(), Counter[str]()
    sent = differing = repeated = 0
    while sum(done.values()) < len(_SHORT) or time.monotonic() - begin < SECONDS:
        gap = dice.choice(GAPS) if SECONDS else _SHORT[sum(done.values())]
        is_busy = dice.random() < 0.4 if SECONDS else gap is invalidate
        kills = dice.choice((0, 0, 1, 2))
        write(server, dice, 5)
        relay.wait_caught_up()
        gap(server, relay, dice)
        before = _offsets(services, relay)
        if is_busy:
            with written_to(server, dice.getrandbits(32)):
                _heal(server, relay, dice, kills)
        else:
            wrong = _differing(services, server, relay)
            _heal(server, relay, dice, kills)
        relay.wait_caught_up()
        told = f"{gap.__name__}, {kills} kills, {'busy' if is_busy else 'quiet'}, seed {SEED}, {done}"
        if not is_busy:
            came = _since(services, relay, before)
            keys = Counter((one.topic, one.key) for one in came)
            told += f": {dict(Counter(one.operation for one in came))}, {len(wrong)} differed"
            told += f"\n{relay.log()[-2000:]}"
            assert keys.keys() == wrong, told
            # A chunk that was under way at a kill comes again.
            assert keys.total() == len(wrong) or kills, told
            sent, differing = sent + keys.total(), differing + len(wrong)
            repeated += keys.total() - len(wrong)
        assert_equal(services, server.dsn, TABLES, relay.name)
        done[gap.__name__] += 1
    assert differing
    counted = f"{differing} keys differed, {sent} messages, {repeated} repeated"
    print(f"{sum(done.values())} gaps {dict(done)}: {counted}")


def _heal(server: SecondPostgres, relay: Relay, dice: random.Random, kills: int) -> None:
    """Let the relay heal, and be killed ``kills`` times meanwhile; when this returns it streams."""
    if relay.has_ended:
        relay.start()
    else:
        relay.signal(signal.SIGCONT)
    for _ in range(kills):
        time.sleep(dice.uniform(0.1, 6.0))
        relay.kill()
        # Whether it is asked for again or not: a heal that is due goes on.
        relay.start()

    # In this order: a slot that is being made counts as read, and its heal is due by then.
    def is_healed(_: Status) -> bool:
        now = relay.status() if is_read(server, relay) else None
        return now is not None and now.heal is None and now.state == "streaming"

    relay.wait("the heal", is_healed, _HEAL_SECONDS)


def _records(services: Services, relay: Relay) -> list[Record]:
    return [record for table in TABLES for record in read_table(services, table, relay.name)]


def _offsets(services: Services, relay: Relay) -> set[tuple[str, int, int]]:
    return {(one.topic, one.partition, one.offset) for one in _records(services, relay)}


def _since(services: Services, relay: Relay, before: set[tuple[str, int, int]]) -> list[Record]:
    return [r for r in _records(services, relay) if (r.topic, r.partition, r.offset) not in before]


def _differing(services: Services, server: SecondPostgres, relay: Relay) -> set[_Key]:
    """Return the keys of which topic and table say something else."""
    found: set[_Key] = set()
    for table in TABLES:
        latest = {record.key: record.value for record in read_table(services, table, relay.name)}
        topics = {key: value for key, value in latest.items() if value is not None}
        rows = contents(server, table)
        found |= {
            (table.topic(relay.name), key)
            for key in topics.keys() | rows.keys()
            if not _same(topics.get(key), rows.get(key))
        }
    return found


def _same(value: dict[str, Any] | None, row: dict[str, Any] | None) -> bool:
    if value is None or row is None:
        return value is row
    return all(str(value[name]) == str(content) for name, content in row.items())
