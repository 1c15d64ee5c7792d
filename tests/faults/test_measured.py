"""Latencies that a relay measures, on real services. All share one clock, so no latency is negative."""

from collections.abc import Callable
from contextlib import suppress

from bwtui.errors import ConnectionFailed
from bwtui.model.history import RelayHistory
from bwtui.model.latency import LATENCY_STAGES
from bwtui.model.status import Status
from bwtui.relay.process.control import report_audit, request
from tests.faults.relays import Relay, execute, wait_for

ROWS = 300


def history(relay: Relay) -> RelayHistory:
    """Return the figures that the relay has kept."""
    with suppress(ConnectionFailed):
        return RelayHistory.from_json(request(relay.name, {"request": "history"}))
    return RelayHistory()


def test_latencies_tables_and_marks(database: str, new_relay: Callable[..., Relay]) -> None:
    execute(database, "create table orders (id int primary key, body text)")
    relay = new_relay()
    relay.start()
    relay.wait_streaming()
    for number in range(ROWS):
        execute(database, f"insert into orders values ({number}, 'x')")
    status = relay.wait("all measured", lambda one: _measured(one) == ROWS)
    assert set(status.latency) == set(LATENCY_STAGES)
    for one in status.latency_since_start.values():
        assert 0 <= one.min <= one.p50 <= one.p90 <= one.p99 <= one.max < 60
    orders = status.tables["public.orders"]
    assert orders.latency_p99 is not None
    assert (orders.wal_share, orders.value_schema_version) == (1.0, 1)

    execute(database, "alter table orders add column more text")
    execute(database, "insert into orders values (1000, 'x', 'y')")
    execute(database, "select pg_terminate_backend(active_pid) from pg_replication_slots where active")
    report_audit(relay.name, "clean", {}, "")
    kinds = {"start", "ddl", "error", "reconnect", "audit"}
    wait_for("all marks", lambda: {mark.kind for mark in history(relay).marks} >= kinds)
    kept = history(relay)
    assert sum(second.read_per_second > 0 for second in kept.seconds) >= 1
    assert any(second.p99 is not None for second in kept.seconds)
    assert list(kept.trends) == ["public.orders"]
    assert sum(count for _, _, count in kept.latency) > 0
    assert history(relay).seconds[0] == kept.seconds[0]
    relay.stop()
    # The session broke right after the last row, so the row may have been read again.
    assert _measured(relay.last_status()) in (ROWS + 1, ROWS + 2)


def _measured(status: Status) -> int:
    total = status.latency_since_start.get("total")
    return total.count if total else 0
