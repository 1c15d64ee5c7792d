"""Kills of a relay with --exactly-once, at random moments and at each of its effects, and the invariants."""

import random
from collections import Counter
from contextlib import closing, suppress
from itertools import product
from subprocess import TimeoutExpired

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.outside import Outside
from tests.faults.records import OUTSIDE, Record, RecordFollower, assert_keys_in_order, repeated
from tests.faults.relays import Relay
from tests.faults.test_kill import assert_committed, copied
from tests.faults.writer import TABLES, Writer

#: One in this number of kills hits the first snapshot.
SNAPSHOTS = 10
#: Side effects of a streaming relay under writes, each with the maximum number of times that it happens
#: before the relay is killed there: see `bwtui.relay.failpoints`.
EFFECTS = {"fence": 1, "send": 20, "commit": 8, "acknowledge": 6, "state": 3, "confirm": 4}
_POINT_SECONDS = 3.0
_POLL_SECONDS = 0.03


def kill_on(
    relay: Relay, outside: Outside, kills: int, chance: random.Random, killed: Counter[str] | None = None
) -> None:
    """Kill the relay ``kills`` times, check the committed records each time, and leave it running, caught up.

    Half of the kills outside of the snapshot happen at a failpoint, before or after an effect; ``killed``
    counts them by place.
    """
    counted = Counter[str]() if killed is None else killed
    for number in range(kills):
        if relay.slot_lsn() is None and number <= kills // SNAPSHOTS:
            counted[_in_snapshot(relay, chance)] += 1
        elif chance.random() < 0.5:
            counted[_at_effect(relay, chance)] += 1
        else:
            counted[_while_streaming(relay, chance)] += 1
        relay.kill()
        outside.settle()
    relay.start()
    relay.wait_caught_up()
    # No other producer writes into the relay's topics.
    assert "records in topic" not in relay.log()


def _in_snapshot(relay: Relay, chance: random.Random) -> str:
    relay.start()
    # Both tables have the same number of rows.
    rows = chance.randrange(10_000)
    relay.wait(f"{rows} rows of the snapshot", lambda status: copied(status) >= rows)
    return "in the snapshot"


def _while_streaming(relay: Relay, chance: random.Random) -> str:
    relay.start()
    wanted = chance.randrange(chance.choice((10, 40, 150)))
    relay.wait(
        f"{wanted} transactions",
        lambda status: status.state == "streaming" and status.transactions >= wanted,
        every=_POLL_SECONDS,
    )
    return "at any time"


def _at_effect(relay: Relay, chance: random.Random) -> str:
    side, effect = chance.choice(list(product(("before", "after"), EFFECTS)))
    relay.start(failpoint=f"{side}-{effect}:{chance.randint(1, EFFECTS[effect])}:kill")
    with suppress(TimeoutExpired):
        relay.wait_ended(_POINT_SECONDS)
        return f"{side} {effect}"
    # The writes did not bring the relay to the failpoint within the time.
    return "at any time"


def assert_once(services: ServiceAddresses, database: str, relay: Relay, writer: Writer) -> list[Record]:
    """Check that no change is missing or repeated, and that every key is in order."""
    with closing(RecordFollower(services, TABLES, relay.name)) as reader:
        found = reader.difference(database)
        records = reader.everything()
    # Other tests count the holes; the audit accounts for every offset.
    assert all(table.equal for table in found.tables), found.sentence
    changes = [record for record in records if record.operation not in OUTSIDE]
    assert repeated(changes) == {}
    copies = [(record.topic, record.key) for record in records if record.operation in OUTSIDE]
    assert 0 < len(set(copies)) == len(copies)
    snapshot = max(record.lsn for record in records if record.operation == "snapshot")
    assert_committed(writer, records, snapshot)
    assert_keys_in_order(changes)
    return records
