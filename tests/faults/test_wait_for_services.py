"""--wait-for-services: a start waits for unavailable services, names them, and ends on request."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.relays import Relay
from tests.faults.test_incidents_ends import stalled_at_last
from tests.faults.writer import create_tables
from tests.proxy import Speech, Way, address_of, way_to

pytestmark = pytest.mark.services

NewRelay = Callable[..., Relay]
QUICK_SECONDS = 20.0
#: The verdict's cause for each service, and the name in its sentence.
CAUSES = {"postgres": ("postgresql", "PostgreSQL"), "kafka": ("kafka", "Kafka")}
CAUSES["registry"] = ("registry", "the schema registry")
SPEECH: dict[str, Speech] = {"postgres": "postgres", "kafka": "kafka", "registry": "http"}


@pytest.fixture
def doors(services: ServiceAddresses, database: str) -> Iterator[dict[str, Way]]:
    """A closed proxy in front of each service."""
    at = {
        "postgres": address_of(database),
        "kafka": services.broker,
        "registry": address_of(services.schema_registry),
    }
    with ExitStack() as opened:
        yield {
            name: opened.enter_context(way_to(address, SPEECH[name], is_open=False))
            for name, address in at.items()
        }


def through(doors: dict[str, Way], services: ServiceAddresses, database: str) -> tuple[str, ...]:
    """Return the options that send a relay's connections through the proxies."""
    at = {name: door.address for name, door in doors.items()}
    user = urlsplit(database).netloc.rpartition("@")[0]
    dsn = urlsplit(database)._replace(netloc=f"{user}@{at['postgres']}").geturl()
    registry = urlsplit(services.schema_registry)._replace(netloc=at["registry"]).geturl()
    return ("-d", dsn, "-b", at["kafka"], "-r", registry)


def test_services_that_are_away_at_the_start_are_waited_for(
    services: ServiceAddresses, database: str, new_relay: NewRelay, doors: dict[str, Way]
) -> None:
    create_tables(database, 1)
    relay = new_relay(*through(doors, services, database))
    relay.start("--wait-for-services")
    for name in ("postgres", "kafka", "registry"):
        cause, called = CAUSES[name]
        status = stalled_at_last(relay, cause)
        assert status.phase == "starting"
        assert status.verdict.sentence.startswith(called), status.verdict
        # The reason for a broker that is down is reported after ten seconds.
        relay.wait("the reason", lambda status: "refused" in status.verdict.sentence)
        doors[name].open()
    status = relay.wait_streaming()
    assert status.tables["public.accounts"].snapshot_rows == 1
    outages = [entry for entry in status.errors if entry.kind == "outage"]
    assert {entry.dependency for entry in outages} == {called for _, called in CAUSES.values()}
    assert all(entry.is_over for entry in outages)
    relay.stop()


def test_a_start_that_waits_ends_when_told_to(
    services: ServiceAddresses, database: str, new_relay: NewRelay, doors: dict[str, Way]
) -> None:
    relay = new_relay(*through(doors, services, database))
    doors["postgres"].open()
    relay.start("--wait-for-services")
    stalled_at_last(relay, "kafka")
    relay.signal(signal.SIGTERM)
    assert relay.wait_ended(QUICK_SECONDS) == 0, relay.last_words()


def test_without_the_option_a_service_that_is_away_ends_it(
    services: ServiceAddresses, database: str, new_relay: NewRelay, doors: dict[str, Way]
) -> None:
    relay = new_relay(*through(doors, services, database))
    relay.start()
    assert relay.wait_ended(QUICK_SECONDS) == 4
    assert "can't connect to PostgreSQL" in relay.last_words()


def test_one_that_does_not_let_us_in_is_not_waited_for(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    parts = urlsplit(database)
    wrong = parts._replace(netloc=f"{parts.username}:wrong@{parts.hostname}:{parts.port}").geturl()
    relay = new_relay("-d", wrong)
    relay.start("--wait-for-services")
    assert relay.wait_ended(QUICK_SECONDS) == 4
    assert "password authentication failed" in relay.last_words()
