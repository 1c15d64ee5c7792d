"""A real Prometheus scrapes a relay: the shipped alert rules fire in planted incidents and not before.

Run it with ``-s`` to see Prometheus's figures and when each alert fired.
"""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from bwtui.sandbox.ports import choose
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from bwtui.state_folder import state_folder
from tests.dashboard import queries
from tests.faults.administration import limit_topic
from tests.faults.incidents import drop_slot, frozen, trickle
from tests.faults.relays import Relay, execute, streaming, wait_for
from tests.faults.test_topics_change import delete, make
from tests.faults.writer import ACCOUNTS
from tests.prometheus import Prometheus, prometheus
from tests.unit.test_alerts import RULES, pages

NewRelay = Callable[..., Relay]
LIMIT = 20_000
INSERT = f"insert into {ACCOUNTS.full_name} select max(id) + 1, 0, '' from {ACCOUNTS.full_name}"
#: Panels of features that this relay does not use.
SILENT = {"WAL runway", "Last audit", "Backfill requests", "Recording", "Kafka transactions"}

pytestmark = [pytest.mark.services, pytest.mark.long, pytest.mark.timeout(900)]


class Incident:
    """Waits for the effects of an incident, and reports how long they took."""

    def __init__(self, prometheus: Prometheus, name: str) -> None:
        self._prometheus, self._name = prometheus, name
        self._begun = time.monotonic()

    def fires(self, alert: str, seconds: float, **labels: str) -> None:
        """Wait until an alert with these labels fires."""
        wait_for(f"{alert} to fire", lambda: alert in self._prometheus.firing(), seconds, every=0.5)
        found = self._prometheus.alerts()[alert]
        assert labels.items() <= found["labels"].items(), found
        took = time.monotonic() - self._begun
        print(
            f"{self._name}: {alert} fired after {took:.0f} s: {found['annotations']['summary']}", flush=True
        )

    def is_over(self, *but: str) -> None:
        """Wait until no alert fires, except for ``but``."""
        wait_for("all to be well", lambda: self._prometheus.firing() <= set(but), 120, every=0.5)
        print(f"{self._name}: over; what fires still: {', '.join(but) or 'nothing'}", flush=True)


@pytest.fixture
def ports() -> dict[str, int]:
    """Return free ports for the relay and for Prometheus."""
    return choose(["relay", "prometheus"], {})


@pytest.fixture
def watched(tmp_path: Path, ports: dict[str, int]) -> Iterator[Prometheus]:
    """Start a Prometheus that scrapes the relay's port."""
    with prometheus(tmp_path, ports["prometheus"], ports["relay"], RULES) as running:
        wait_for("Prometheus", running.is_ready)
        yield running


def test_alerts_fire_in_planted_incidents(
    sandbox: Sandbox,
    services: ServiceAddresses,
    database: str,
    new_relay: NewRelay,
    ports: dict[str, int],
    watched: Prometheus,
) -> None:
    args = ("--listen", str(ports["relay"]), "--on-error", "log", "--log-format", "json")
    relay = streaming(database, new_relay, *args, rows=1000)
    execute(
        database, "create table fresh (id int primary key, body text)", "insert into fresh values (0, '')"
    )
    with trickle(database, INSERT):
        healthy(watched)
        with frozen(sandbox, "kafka"):
            incident = Incident(watched, "Kafka hangs")
            incident.fires("BwtuiWaiting", 120, cause="kafka", severity="critical")
            assert watched.firing() == {"BwtuiWaiting"}
        incident.is_over()
        a_row_is_dropped(services, database, relay, watched)
        a_topic_is_made_again(services, relay, watched)
        shown(watched)
    queries_of_the_pages(database)
    the_slot_is_lost(database, relay, watched)
    logged = [json.loads(line) for line in relay.log().splitlines()]
    assert {one["relay"] for one in logged} == {relay.name}
    assert {"listening", "topic_changed", "failed"} <= {one["event"] for one in logged}


def healthy(watched: Prometheus) -> None:
    """Check that Prometheus receives figures, and that no alert fires or is pending."""
    wait_for(
        "a rate of rows", lambda: (watched.value("rate(bwtui_rows_read_total[10s])") or 0) > 1, every=0.5
    )
    before = watched.value("bwtui_rows_read_total") or 0.0
    while (watched.value("bwtui_rows_read_total") or 0.0) < before + 100:
        assert watched.alerts() == {}
        time.sleep(0.5)
    series = watched.value('count({__name__=~"bwtui_.*"})')
    lag = watched.value("bwtui_wal_lag_seconds")
    rate = watched.value("rate(bwtui_messages_acknowledged_total[10s])")
    p99 = watched.value("histogram_quantile(0.99, sum by (le) (rate(bwtui_latency_seconds_bucket[20s])))")
    print(f"\nhealthy: {series:.0f} series, lag {lag} s, {rate:.1f} messages/s, 99 % within {p99:.3f} s")
    assert watched.value("up") == 1
    assert watched.value("bwtui_ready") == 1


def a_row_is_dropped(services: ServiceAddresses, database: str, relay: Relay, watched: Prometheus) -> None:
    """Insert a row that is too large for Kafka; the series of the table begin with this row, or before it."""
    relay.wait_caught_up()
    limit_topic(services, f"{relay.name}.fresh", LIMIT)
    incident = Incident(watched, "a row is too large for its topic")
    execute(database, f"insert into fresh values (1, '{random.randbytes(2 * LIMIT).hex()}')")
    incident.fires("BwtuiRowsDropped", 60, table="public.fresh")
    assert watched.firing() == {"BwtuiRowsDropped"}


def a_topic_is_made_again(services: ServiceAddresses, relay: Relay, watched: Prometheus) -> None:
    """Delete and recreate a topic that the relay has already used."""
    kept = state_folder(relay.name) / "topics.json"
    wait_for("it knows its topics", lambda: kept.exists() and '"partitions"' in kept.read_text())
    admin = AdminClient({"bootstrap.servers": services.broker})
    incident = Incident(watched, "a topic is deleted and created again")
    delete(admin, f"{relay.name}.accounts")
    make(admin, f"{relay.name}.accounts", 3)
    incident.fires("BwtuiTopicChanged", 90, kind="topic")
    assert watched.firing() == {"BwtuiRowsDropped", "BwtuiTopicChanged"}


def shown(watched: Prometheus) -> None:
    """Check that every panel of the dashboard has figures, except those of unused features."""
    told = {query.panel for query in queries() if watched.query(query.expression)}
    silent = {query.panel for query in queries()} - told
    print(f"dashboard: {len(list(queries()))} queries, none is refused; without figures: {sorted(silent)}")
    assert silent == SILENT


def queries_of_the_pages(database: str) -> None:
    """Run the commands that the alerts' pages give for pasting."""
    found = [one for page in pages().values() for one in re.findall(r"```sql\n(.*?)```", page, re.DOTALL)]
    assert found
    execute(database, *found)


def the_slot_is_lost(database: str, relay: Relay, watched: Prometheus) -> None:
    """Drop the slot: the relay ends, and the alert for a relay that is down fires."""
    drop_slot(database, relay)
    incident = Incident(watched, "the slot is dropped")
    assert relay.join() == 5
    incident.fires("BwtuiDown", 240, severity="critical")
