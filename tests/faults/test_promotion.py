"""A standby is promoted repeatedly under writes: nothing is lost, and nothing acknowledged is repeated.

``make promotions N=200 SEED=…`` promotes many times; the short run does each kind once.
"""

import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.state_folder import state_folder
from tests.attempts import Attempts
from tests.faults.records import Record, assert_equal, difference, read_table
from tests.faults.relays import Relay, new_name, wait_for
from tests.faults.writer import TABLES, Writer, create_tables
from tests.server_pair import Pair

pytestmark = pytest.mark.since(17, "slots come along")

ROUNDS = int(os.environ.get("BWTUI_PROMOTIONS", "0"))
SEED = int(os.environ.get("BWTUI_PROMOTIONS_SEED", "1"))
_ROWS = 50
#: The short run: killed or stopped, and whether the standby is cut off before.
_SHORT = ((True, False), (False, False), (True, True))
_STREAMING_SECONDS = 5.0
_READ_SQL = """select 1 from pg_replication_slots s join pg_stat_replication r on r.pid = s.active_pid
                where s.slot_name = '{}' and r.state = 'streaming'"""


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A primary with its standby."""
    made = Pair()
    request.addfinalizer(made.remove)
    made.follow()
    yield made


@pytest.fixture
def new_relay(
    pair: Pair, services: ServiceAddresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Relay]]:
    """Return a function that starts a relay configured with both servers and further options."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    create_tables(pair.dsn, _ROWS)
    made: list[Relay] = []

    def make(*args: str) -> Relay:
        made.append(Relay(services, pair.dsn, tmp_path, new_name("promoted"), "-d", pair.hosts, *args))
        made[-1].start()
        made[-1].wait_streaming()
        return made[-1]

    yield make
    for relay in made:
        relay.close()


@dataclass(slots=True)
class Promoted:
    """The facts of one promotion."""

    fork: int
    #: The position that the relay had confirmed before the primary failed.
    confirmed: int
    #: All records of the topics between the two servers.
    before: list[Record]
    seconds: float


@pytest.mark.timeout(300 + 60 * ROUNDS)
def test_promotions(services: ServiceAddresses, pair: Pair, new_relay: Callable[..., Relay]) -> None:
    """After each promotion the relay streams within seconds, and the topics become equal to the tables."""
    relay = new_relay("--heal")
    dice, seconds, counted = random.Random(SEED), list[float](), Counter[str]()
    for number in range(ROUNDS or len(_SHORT)):
        hard, cut = (dice.random() < 0.5, dice.random() < 0.3) if ROUNDS else _SHORT[number]
        waits = not cut and dice.random() < 0.5
        pair.wait_for_standby(waits)
        pair.wait_synchronized(relay.name)
        with Writer(pair.dsn, _ROWS).going_on() as writer:
            _wait_for_writes(writer, dice.randint(20, 200))
            if cut:
                _cut(pair, relay, writer)
            one = _promote(services, pair, relay, hard=hard)
            _wait_for_writes(writer, 20)
        relay.wait_caught_up()
        told = f"round {number}, seed {SEED}: killed {hard}, cut off {cut}, waited for {waits}"
        phantoms = {(r.topic, r.key) for r in one.before if r.lsn >= one.fork}
        assert not (waits and phantoms), told
        if phantoms:
            assert _named(relay) == phantoms, told
        _nothing_twice(services, relay, one, told)
        assert_equal(services, pair.dsn, TABLES, relay.name)
        seconds.append(one.seconds)
        counted["killed" if hard else "stopped"] += 1
        counted["with phantoms"] += bool(phantoms)
        counted["phantoms"] += len(phantoms)
        if ROUNDS:
            print(f"{told}: {len(phantoms)} phantoms, streaming again after {one.seconds:.2f} s", flush=True)
        pair.follow()
    assert relay.status() is not None
    print(f"{len(seconds)} promotions, {dict(counted)}; streaming again after {_spread(seconds)} s")
    assert max(seconds) < _STREAMING_SECONDS


@pytest.mark.long
def test_exactly_once_goes_on_behind_a_promotion_where_the_state_is_lost(
    services: ServiceAddresses,
    pair: Pair,
    new_relay: Callable[..., Relay],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka stores the timeline of the records, and the timelines before it."""
    relay = new_relay("--exactly-once")
    pair.wait_for_standby(True)
    pair.wait_synchronized(relay.name)
    with Writer(pair.dsn, _ROWS).going_on() as writer:
        _wait_for_writes(writer, 20)
        pair.fail(hard=True)
        relay.wait("noticing", lambda now: "waiting for PostgreSQL" in now.detail)
        pair.promote()
        wait_for("streaming", lambda: pair.primary.ask(_READ_SQL.format(relay.name)))
        _wait_for_writes(writer, 20)
    relay.wait_caught_up()
    relay.stop()
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "elsewhere"))
    relay.run()
    found = difference(services, pair.dsn, TABLES, relay.name)
    assert all(table.equal for table in found.tables), found.sentence


@pytest.mark.long
def test_without_heal_a_person_has_it_taken_back(
    services: ServiceAddresses, pair: Pair, new_relay: Callable[..., Relay], tmp_path: Path
) -> None:
    """The relay continues, and names the keys and their place; `bwtui repair` leaves no difference."""
    relay = new_relay("--on-gap", "report")
    pair.wait_synchronized(relay.name)
    with Writer(pair.dsn, _ROWS).going_on() as writer:
        _cut(pair, relay, writer)
        # The new primary is not written to, so the differing keys are exactly those that it lacks.
        one = _promote(services, pair, relay, hard=True, after=writer.stop)
    phantoms = {(r.topic, r.key) for r in one.before if r.lsn >= one.fork}
    status = relay.wait("naming", lambda now: any("affected keys:" in error.message for error in now.errors))
    (told,) = [error for error in status.errors if "affected keys:" in error.message]
    assert "bwtui repair" in (told.hint or "")
    assert all(
        f"{len([k for k in phantoms if k[0] == t.topic(relay.name)])} of {t.full_name}" in told.message
        for t in TABLES
    )
    assert {entry.table for entry in status.not_proven} == {table.full_name for table in TABLES}
    assert all(entry.since_lsn <= one.fork and "bwtui repair" in entry.command for entry in status.not_proven)
    relay.wait_caught_up()
    assert difference(services, pair.dsn, TABLES, relay.name).outcome != "equal"
    ended = Attempts(services, tmp_path).command("repair", "--relay", relay.name, "--yes", "--json")
    assert ended.code == 0, ended.stderr
    sent = json.loads(ended.stdout)["tables"]
    assert 0 < sum(one["rows"] + one["tombstones"] for one in sent) <= len(phantoms)
    relay.wait("it is proven", lambda now: not now.not_proven)
    assert_equal(services, pair.dsn, TABLES, relay.name)
    assert _named(relay) == phantoms


@pytest.mark.long
def test_without_headers_a_heal_compares_all_tables(
    services: ServiceAddresses, pair: Pair, new_relay: Callable[..., Relay]
) -> None:
    """No record names its commit, and the differences are found all the same."""
    relay = new_relay("--heal", "--no-headers")
    pair.wait_synchronized(relay.name)
    with Writer(pair.dsn, _ROWS).going_on() as writer:
        _cut(pair, relay, writer)
        pair.fail(hard=True)
        writer.stop()
    pair.promote()
    relay.wait("the heal", lambda now: now.heal is not None)
    relay.wait("the heal's end", lambda now: now.heal is None, 240)
    assert "have no headers" in " ".join(error.message for error in relay.wait_streaming().errors)
    assert_equal(services, pair.dsn, TABLES, relay.name)


def test_a_kill_when_a_comparison_falls_due_keeps_the_slot(
    pair: Pair, services: ServiceAddresses, new_relay: Callable[..., Relay]
) -> None:
    """The promoted standby has the slot, with all writes of the new primary."""
    relay = new_relay("--heal", "--no-headers")
    pair.wait_synchronized(relay.name)
    with Writer(pair.dsn, _ROWS).going_on() as writer:
        _cut(pair, relay, writer)
        relay.stop()
        relay.start(failpoint="after-heal:1:kill")
        relay.wait_streaming()
        pair.fail(hard=True)
        writer.stop()
    pair.promote()
    assert relay.wait_ended() == -9, relay.last_words()
    relay.start()
    relay.wait("the heal", lambda now: now.heal is not None and now.heal.state != "slot")
    status = relay.wait_streaming()
    assert not any("recreated" in error.message for error in status.errors), status.errors
    relay.wait("the heal's end", lambda now: now.heal is None, 240)
    assert_equal(services, pair.dsn, TABLES, relay.name)


@pytest.mark.long
@pytest.mark.parametrize("own", ["none", "behind", "ahead"])
def test_a_new_primary_has_none_of_the_relays_slot(
    own: str, services: ServiceAddresses, pair: Pair, new_relay: Callable[..., Relay]
) -> None:
    """The standby may have a slot of that name that someone else created."""
    relay = new_relay("--heal", "--no-failover")
    make = f"select pg_create_logical_replication_slot('{relay.name}', 'pgoutput')"
    if own == "behind":
        making = threading.Thread(target=pair.standby.ask, args=[make])
        making.start()
        while making.is_alive():
            # A slot on a standby waits for its primary's message about running transactions.
            pair.primary.ask("select pg_log_standby_snapshot()")
            making.join(0.2)
    with Writer(pair.dsn, _ROWS).going_on() as writer:
        _wait_for_writes(writer, 50)
        relay.wait_caught_up()
        wait_for("the standby", pair.caught_up)
        pair.fail(hard=True)
        writer.stop()
    pair.promote()
    with Writer(pair.dsn, _ROWS).going_on() as writer:
        _wait_for_writes(writer, 20)
        if own == "ahead":
            pair.primary.ask(make)
        if own != "behind":
            relay.wait("the heal", lambda now: now.heal is not None, 120)
        relay.wait(
            "its end", lambda now: now.heal is None and now.state == "streaming" and not now.detail, 240
        )
    relay.wait_caught_up()
    assert_equal(services, pair.dsn, TABLES, relay.name)
    made = any("the relay recreated slot" in error.message for error in relay.wait_streaming().errors)
    assert made == (own != "behind")


def test_at_a_start_a_former_primary_is_waited_out(pair: Pair, new_relay: Callable[..., Relay]) -> None:
    """Also if it has lost the slot: a heal would recreate it there, and continue from there."""
    relay = new_relay("--heal")
    pair.wait_synchronized(relay.name)
    pair.fail(hard=False)
    pair.promote()
    relay.wait_caught_up()
    relay.stop()
    # It is the first of the hosts, and accepts writes.
    former, slot = pair.standby, relay.name
    former.run()
    former.ask(f"select pg_drop_replication_slot('{slot}')")
    relay.start()
    relay.wait("the former primary", lambda now: "a former primary answered" in now.detail)
    assert former.ask(f"select from pg_replication_slots where slot_name = '{slot}'") == []
    former.stop()
    wait_for("streaming", lambda: pair.primary.ask(_READ_SQL.format(slot)))
    assert relay.status() is not None


def _wait_for_writes(writer: Writer, count: int) -> None:
    many = len(writer.changes)
    wait_for("writes", lambda: len(writer.changes) >= many + count)


def _cut(pair: Pair, relay: Relay, writer: Writer) -> None:
    """Let the relay send changes that the standby never receives."""
    pair.cut()
    _wait_for_writes(writer, 30)
    relay.wait_caught_up()


def _promote(
    services: ServiceAddresses,
    pair: Pair,
    relay: Relay,
    *,
    hard: bool,
    after: Callable[[], None] = lambda: None,
) -> Promoted:
    """Promote the standby; ``after`` is called once the primary has failed."""
    status = relay.status()
    assert status is not None
    pair.fail(hard=hard)
    after()
    relay.wait("noticing", lambda now: "waiting for PostgreSQL" in now.detail)
    before = [record for table in TABLES for record in read_table(services, table, relay.name)]
    fork = pair.promote()
    begun = time.monotonic()
    wait_for("streaming", lambda: pair.primary.ask(_READ_SQL.format(relay.name)))
    return Promoted(fork, status.confirmed_lsn, before, time.monotonic() - begun)


def _nothing_twice(services: ServiceAddresses, relay: Relay, one: Promoted, told: str) -> None:
    """Check that no confirmed change in the new primary's history was sent again."""
    old = {(r.topic, r.partition, r.offset) for r in one.before}
    new = [r for table in TABLES for r in read_table(services, table, relay.name)]
    came = [r for r in new if (r.topic, r.partition, r.offset) not in old]
    assert came, told
    # Tombstones and rows that revert a lost change carry the position of the stream at that time.
    least = min(r.lsn for r in came if r.operation != "snapshot")
    # The LSN in the header is the start of the commit record, the confirmed LSN is its end.
    assert least >= min(one.confirmed, one.fork), told
    last: dict[Any, int] = {}
    for record in came:
        if record.operation == "snapshot":
            continue
        assert record.lsn >= last.get((record.topic, record.key), 0), f"{told}: {record.key} went back"
        last[record.topic, record.key] = record.lsn


def _named(relay: Relay) -> set[tuple[str, tuple[Any, ...]]]:
    """Return the keys that the relay names after it has reverted them."""
    folder = state_folder(relay.name) / "diverged"

    def is_named() -> bool:
        named = [json.loads(path.read_text())["is_named"] for path in folder.glob("*.json")]
        return bool(named) and all(named)

    wait_for("naming", is_named)
    # The backfills have been requested at this point; an earlier status does not show them.
    since = time.time()
    relay.wait(
        "taking back",
        lambda status: status.time > since and all(one.is_over for one in status.backfills),
    )
    (path,) = folder.glob("*.jsonl")
    keys = [json.loads(line) for line in path.read_text().splitlines()]
    shutil.rmtree(folder)
    return {(one["topic"], tuple(one["key"].values())) for one in keys}


def _spread(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return f"{ordered[0]:.2f} to {ordered[-1]:.2f}, in the middle {ordered[len(ordered) // 2]:.2f}"
