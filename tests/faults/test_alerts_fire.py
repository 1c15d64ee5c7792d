"""A real Prometheus scrapes a relay: the alert rules, as they are, fire in planted incidents and not before.

Run it with ``-s`` to see what Prometheus had and when each alert fired.
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
#: Panels of what this relay does not do.
SILENT = {"The slot is safe for", "Last audit", "Requests for rows", "Recording", "Kafka transactions"}

pytestmark = [pytest.mark.services, pytest.mark.long, pytest.mark.timeout(900)]


class Incident:
    """Waits for what an incident brings about, and tells how long that took."""

    def __init__(self, prometheus: Prometheus, name: str) -> None:
        self._prometheus, self._name = prometheus, name
        self._begun = time.monotonic()

    def fires(self, alert: str, seconds: float, **labels: str) -> None:
        """Wait until an alert fires, with such labels."""
        wait_for(f"{alert} to fire", lambda: alert in self._prometheus.firing(), seconds, every=0.5)
        found = self._prometheus.alerts()[alert]
        assert labels.items() <= found["labels"].items(), found
        took = time.monotonic() - self._begun
        print(
            f"{self._name}: {alert} fired after {took:.0f} s: {found['annotations']['summary']}", flush=True
        )

    def is_over(self, *but: str) -> None:
        """Wait until nothing fires any more ``but`` this."""
        wait_for("all to be well", lambda: self._prometheus.firing() <= set(but), 120, every=0.5)
        print(f"{self._name}: over; what fires still: {', '.join(but) or 'nothing'}", flush=True)


@pytest.fixture
def ports() -> dict[str, int]:
    """Free ports for the relay and for Prometheus."""
    return choose(["relay", "prometheus"], {})


@pytest.fixture
def watched(tmp_path: Path, ports: dict[str, int]) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the relay's port."""
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
    """See that figures come in, and that nothing fires or is about to."""
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
    """Insert a row that is too large for Kafka; the table's series begin with it, or before."""
    relay.wait_caught_up()
    limit_topic(services, f"{relay.name}.fresh", LIMIT)
    incident = Incident(watched, "a row is too large for its topic")
    execute(database, f"insert into fresh values (1, '{random.randbytes(2 * LIMIT).hex()}')")
    incident.fires("BwtuiRowsDropped", 60, table="public.fresh")
    assert watched.firing() == {"BwtuiRowsDropped"}


def a_topic_is_made_again(services: ServiceAddresses, relay: Relay, watched: Prometheus) -> None:
    """Delete a topic and make it again, under a relay that knows it."""
    kept = state_folder(relay.name) / "topics.json"
    wait_for("it knows its topics", lambda: kept.exists() and '"partitions"' in kept.read_text())
    admin = AdminClient({"bootstrap.servers": services.broker})
    incident = Incident(watched, "a topic is deleted and created again")
    delete(admin, f"{relay.name}.accounts")
    make(admin, f"{relay.name}.accounts", 3)
    incident.fires("BwtuiTopicChanged", 90, kind="topic")
    assert watched.firing() == {"BwtuiRowsDropped", "BwtuiTopicChanged"}


def shown(watched: Prometheus) -> None:
    """See that every panel of the dashboard has figures, but those of what the relay does not do."""
    told = {query.panel for query in queries() if watched.query(query.expression)}
    silent = {query.panel for query in queries()} - told
    print(f"dashboard: {len(list(queries()))} queries, none is refused; without figures: {sorted(silent)}")
    assert silent == SILENT


def queries_of_the_pages(database: str) -> None:
    """Run what the alerts' pages have to be pasted."""
    found = [one for page in pages().values() for one in re.findall(r"```sql\n(.*?)```", page, re.DOTALL)]
    assert found
    execute(database, *found)


def the_slot_is_lost(database: str, relay: Relay, watched: Prometheus) -> None:
    """Drop the slot: the relay ends, and is told to be down."""
    drop_slot(database, relay)
    incident = Incident(watched, "the slot is dropped")
    assert relay.join() == 5
    incident.fires("BwtuiDown", 240, severity="critical")
