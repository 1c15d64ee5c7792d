"""A relay with --listen while services hang: its answers are true and quick, and it continues to relay."""

import http.client
import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from bwtui.relay.serving.metrics import METRICS, label
from bwtui.sandbox.ports import choose
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses, ServiceName
from tests.database import session
from tests.faults.incidents import drop_slot, frozen, suspended, trickle
from tests.faults.relays import Relay, execute, streaming, wait_for
from tests.faults.writer import TABLES
from tests.scraping import Scrape, get, probe

NewRelay = Callable[..., Relay]
#: Prometheus's timeout is ten seconds, and Kubernetes's is one; the machine may be busy with other tests.
SOON = 5.0
NAME = TABLES[0].full_name
TABLE = f"{TABLES[0].schema}.{TABLES[0].name}"
INSERT = f"insert into {NAME} select max(id) + 1, 0, '' from {NAME}"


@pytest.fixture
def port() -> int:
    """Return a free port."""
    return choose(["http"], {})["http"]


@contextmanager
def scraped(port: int) -> Iterator[list[Scrape]]:
    """Scrape repeatedly during the block."""
    scrapes: list[Scrape] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.2):
            scrapes.append(Scrape(port))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield scrapes
    finally:
        stop.set()
        thread.join()


def ready(port: int) -> None:
    """Wait until the relay is ready."""
    wait_for("that it is ready", lambda: probe(port, "/readyz")[0] == 200, every=0.1)


def why_not(port: int, words: str) -> None:
    """Wait until the relay is not ready for a reason that contains ``words``, and is alive all the same."""
    told: list[object] = []

    def is_told() -> bool:
        status, answer = probe(port, "/readyz")
        told[:] = [status, answer]
        assert (status == 200) == answer["ready"] == (not answer["reasons"])
        return any(words in reason for reason in answer["reasons"])

    try:
        wait_for(f"the reason {words!r}", is_told, every=0.1)
    except AssertionError as error:
        raise AssertionError(f"{error}; at last: {told}") from error
    assert probe(port, "/healthz")[0] == 200


def test_kafka_and_the_relay_itself_hang_while_it_is_scraped(
    sandbox: Sandbox, services: ServiceAddresses, database: str, new_relay: NewRelay, port: int
) -> None:
    hostile = 'say "hi" \\ to\nme'
    quoted = '"' + hostile.replace('"', '""') + '"'
    execute(database, f"create table {quoted} (id int primary key)", f"insert into {quoted} values (1)")
    relay = streaming(database, new_relay, "--listen", str(port), rows=10)
    ready(port)
    first = Scrape(port)
    with scraped(port) as scrapes:
        with trickle(database, INSERT):
            wait_for("rows", lambda: scrapes and scrapes[-1].total("bwtui_rows_read_total") > 30)
            hangs(sandbox, port, scrapes, "kafka", f"Kafka at {services.broker} has acknowledged nothing")
            the_relay_itself_hangs(relay, port)
        ready(port)
    last = wait_for("all rows", lambda: all_of(database, Scrape(port)), every=0.2)
    truths([first, *scrapes, last])
    assert last("bwtui_table_changes_total", table=label(f"public.{hostile}"), kind="snapshot") == 1


@pytest.mark.long
def test_postgresql_hangs_and_the_slot_is_lost_while_a_relay_is_scraped(
    sandbox: Sandbox, database: str, new_relay: NewRelay, port: int
) -> None:
    relay = streaming(database, new_relay, "--listen", str(port), rows=10)
    ready(port)
    with scraped(port) as scrapes:
        with trickle(database, INSERT):
            hangs(sandbox, port, scrapes, "postgres", "has not answered")
            late = scrapes[-1]("bwtui_slot_look_age_seconds")
            assert late is not None
        ready(port)
    last = wait_for("all rows", lambda: all_of(database, Scrape(port)), every=0.2)
    truths([*scrapes, last])
    the_slot_is_lost(relay, database, port)


def hangs(sandbox: Sandbox, port: int, scrapes: list[Scrape], service: ServiceName, words: str) -> None:
    """Suspend a service, and check that the relay reports the stall and its end."""
    with frozen(sandbox, service):
        why_not(port, words)
        begun = len(scrapes)

        def stalled() -> Scrape | None:
            # The state is "waiting" at first, and the relay is not ready even then.
            now = scrapes[-1]
            if len(scrapes) <= begun + 5:
                return None
            assert (now("bwtui_ready"), now.chosen("bwtui_condition")) in ((0, "waiting"), (0, "stalled"))
            return now if now.chosen("bwtui_condition") == "stalled" else None

        during = wait_for("a stalled relay", stalled, 30)
        cause = "kafka" if service == "kafka" else "postgresql"
        waited = during("bwtui_waiting_seconds", cause=cause)
        assert waited is not None and waited > 0
    ready(port)


def the_relay_itself_hangs(relay: Relay, port: int) -> None:
    """Suspend the relay: requests time out, and succeed after it resumes."""
    with suspended(relay.pid), pytest.raises(TimeoutError):
        get(port, "/healthz", seconds=0.5)
    wait_for("an answer", lambda: get(port, "/healthz", seconds=SOON)[0] == 200)


def all_of(database: str, now: Scrape) -> Scrape | None:
    """Return the scrape if its counters include every row of the table."""
    with session(database) as source:
        rows = source.value(f"select count(*) from {NAME}")
    counted = [now("bwtui_table_changes_total", table=TABLE, kind=kind) for kind in ("snapshot", "insert")]
    # Rows read again after an outage are counted again.
    return now if sum(number or 0 for number in counted) >= rows else None


def truths(scrapes: list[Scrape]) -> None:
    """Check that no counter falls, and that every value is a number."""
    assert {one.family for one in METRICS if one.kind != "info"} <= set(scrapes[0].families)
    for before, now in pairwise(scrapes):
        for (name, labels), value in now.values.items():
            assert math.isfinite(value), name
            if name.endswith(("_total", "_count", "_bucket", "_sum")):
                assert value >= before.values.get((name, labels), 0), (name, labels)


def the_slot_is_lost(relay: Relay, database: str, port: int) -> None:
    """Drop the slot: the relay ends, and no probe reports it as alive."""
    drop_slot(database, relay)
    while True:
        try:
            status, told = probe(port, "/readyz")
        except (ConnectionError, http.client.HTTPException):
            break
        # The relay returns its previous verdict until it has noticed the loss.
        assert status == 200 or told["reasons"]
    assert relay.join() == 5


def test_a_port_that_is_taken_ends_the_relay_before_it_begins(database: str, new_relay: NewRelay) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        relay = new_relay("--listen", str(port))
        relay.start()
        assert relay.join() == 2
    error, hint = relay.last_words().splitlines()[-2:]
    assert error.endswith(f"error: can't listen on 127.0.0.1 port {port}: Address already in use")
    assert "set --listen to a different address and port" in hint
    assert relay.slot_lsn() is None
    with session(database) as source:
        assert not source.value("select count(*) from pg_publication where pubname = %s", relay.name)
