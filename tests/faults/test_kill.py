"""kill -9 at random moments under writes: nothing is lost, and only the unconfirmed tail is repeated.

``BWTUI_KILLS=10`` kills ten times during the snapshot and ten times while streaming.
"""

import os
import random
from bisect import bisect_right
from collections.abc import Callable

from bwtui.model.status import Status
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.records import (
    OUTSIDE,
    Record,
    assert_equal,
    assert_keys_in_order,
    ends,
    read_table,
    repeated,
)
from tests.faults.relays import Relay, execute, wait_for
from tests.faults.writer import ACCOUNTS, TABLES, TAKEN_BACK, Writer, create_tables

KILLS = int(os.environ.get("BWTUI_KILLS", "2"))
ROWS = 10_000
#: With this setting a snapshot takes half a minute, so any kill hits it: the last request of each partition
#: waits.
LONG = ("-C", "batch.num.messages=500", "-C", "linger.ms=30000")

NewRelay = Callable[..., Relay]


class Runs:
    """The positions of topics and slot at the start of each run."""

    def __init__(self, services: ServiceAddresses, relay: Relay) -> None:
        self._services = services
        self._relay = relay
        self.confirmed: list[int] = []
        self._ends: list[dict[tuple[str, int], int]] = []

    def begin(self, *args: str) -> None:
        """Record the state between two runs, and start the relay with ``args``."""
        self.confirmed.append(self._relay.slot_lsn() or 0)
        self._ends.append(
            {
                (table.topic(self._relay.name), partition): end
                for table in TABLES
                for partition, end in ends(self._services, table, self._relay.name).items()
            }
        )
        self._relay.start(*args)

    def of_sessions(self, records: list[Record]) -> dict[bytes, int]:
        """Map each session to its run: the run in which its first records were written.

        A broker may write what a killed relay sent just before, so single records prove nothing.
        """
        found: dict[bytes, int] = {}
        for record in records:
            place = record.topic, record.partition
            starts = [end.get(place, 0) for end in self._ends]
            run = bisect_right(starts, record.offset) - 1
            found[record.session] = min(run, found.get(record.session, run))
        return found


def test_no_kill_loses_a_row(services: ServiceAddresses, database: str, new_relay: NewRelay) -> None:
    create_tables(database, ROWS)
    relay = new_relay()
    runs = Runs(services, relay)
    writer = Writer(database, ROWS)
    with writer.going_on():
        for _ in range(KILLS):
            kill_in_snapshot(runs, relay)
        for _ in range(KILLS):
            kill_while_streaming(runs, relay)
        runs.begin()
        relay.wait_caught_up()
    relay.wait_caught_up()
    relay.stop()
    assert_equal(services, database, TABLES, relay.name)
    records = [record for table in TABLES for record in read_table(services, table, relay.name)]
    snapshot = max(record.lsn for record in records if record.operation == "snapshot")
    assert_committed(writer, records, snapshot)
    assert_keys_in_order([record for record in records if record.operation not in OUTSIDE])
    assert_tail_only(runs, records)


def kill_in_snapshot(runs: Runs, relay: Relay) -> None:
    runs.begin(*LONG)
    rows = random.randrange(2 * ROWS * 2 // 3)
    relay.wait(f"{rows} rows of the snapshot", lambda status: copied(status) >= rows)
    relay.kill()
    assert relay.slot_lsn() is None


def kill_while_streaming(runs: Runs, relay: Relay) -> None:
    runs.begin()
    wanted = random.randrange(150)
    relay.wait(
        f"{wanted} transactions", lambda status: status.state == "streaming" and status.transactions >= wanted
    )
    relay.kill()
    assert relay.slot_lsn() is not None


def copied(status: Status) -> int:
    """Return the number of snapshot rows read."""
    return sum(table.snapshot_rows for table in status.tables.values())


def assert_committed(writer: Writer, records: list[Record], since: int) -> None:
    """Check that the topics have every change committed after the LSN, and none that was rolled back."""
    values = [record for record in records if record.value is not None]
    assert not any(record.value["note"] == TAKEN_BACK for record in values if record.value)
    found = {(record.key[0], record.value["number"]) for record in values if record.value}
    tombstones = {record.key[0] for record in records if record.value is None}
    for change in writer.changes:
        if change.before < since:
            continue
        if change.operation == "delete":
            assert change.id in tombstones, change
        else:
            assert (change.id, change.number) in found, change


def assert_tail_only(runs: Runs, records: list[Record]) -> None:
    """Check that no run sent again what was confirmed before it began."""
    run_of = runs.of_sessions(records)
    again = repeated([record for record in records if record.operation != "leftover"])
    for record in records:
        if record.operation not in OUTSIDE:
            assert record.lsn >= runs.confirmed[run_of[record.session]]
    # Without a kill, a session repeats nothing.
    for same in again.values():
        assert len({record.session for record in same}) == len(same)


def test_rows_deleted_between_two_snapshots_leave_the_topic(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    create_tables(database, ROWS)
    relay = new_relay()
    relay.start(*LONG)
    relay.wait("half of the first table", lambda status: copied(status) > ROWS // 2)
    wait_for("enough in Kafka", lambda: sum(ends(services, ACCOUNTS, relay.name).values()) > 100)
    relay.kill()
    assert relay.slot_lsn() is None
    sent = sorted(record.key[0] for record in read_table(services, ACCOUNTS, relay.name))
    execute(database, f"delete from accounts where id in ({', '.join(map(str, sent[:100]))})")
    relay.run()
    assert_equal(services, database, TABLES, relay.name)
