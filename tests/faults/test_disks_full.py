"""Full disks of other programs: a limit on the file size has the same effect on a program as a full disk."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
import pytest

from bwtui.demo.shop import DemoTable
from bwtui.sandbox.runner import ServiceState
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from tests.faults.incidents import healthy, stalled
from tests.faults.records import assert_equal
from tests.faults.relays import Relay, execute, new_name, streaming, wait_for
from tests.faults.test_outages import assert_nothing_lost
from tests.second_postgres import SecondPostgres

pytestmark = [pytest.mark.services, pytest.mark.long]

NewRelay = Callable[..., Relay]
#: Kafka allocates an index of its log with 10 MiB at once.
MOST_BYTES = 11 << 20
FILL = """insert into accounts select n + 1000, n, (select string_agg(md5(random()::text || n.n || m), '')
          from generate_series(1, 300) m) from generate_series(1, 9000) n"""
ORDERS = DemoTable("public", "orders", ("id",))


def test_the_brokers_disk_is_full(
    interrupted: Sandbox, services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    relay = streaming(database, new_relay)
    status = interrupted.status()
    assert status is not None
    pid = status.pids["kafka"]
    assert pid is not None
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))
    execute(database, FILL)
    has_ended = lambda: (now := interrupted.status()) and now.services["kafka"].state is ServiceState.DIED  # noqa: E731
    wait_for("the broker gives up", has_ended)
    assert "refused" in stalled(relay, "kafka").sentence or not relay.has_ended
    interrupted.start_service("kafka")
    healthy(relay)
    assert_nothing_lost(services, database, [relay])


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limit the files of every process started during the block to ``size`` bytes."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def test_no_disk_is_left_for_wal(
    services: ServiceAddresses,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    server = SecondPostgres()
    request.addfinalizer(server.remove)
    # The limit is below the size of one WAL file, of which the first exists already.
    with files_of_at_most(15 << 20):
        server.start(wal_level="logical")
    execute(server.dsn, "create table orders (id int primary key, origin text)")
    relay = Relay(services, server.dsn, tmp_path, new_name())
    request.addfinalizer(relay.close)
    relay.start()
    relay.wait_streaming()
    execute(server.dsn, "insert into orders select n, 'before' from generate_series(1, 100) n")
    with pytest.raises(psycopg2.OperationalError):
        for number in range(100, 200):
            row = f"insert into orders values ({number + 1}, 'on a disk that fills')"
            execute(server.dsn, row, "select pg_logical_emit_message(true, 'x', repeat('x', 1000000))")
    # The server restarts repeatedly, as long as it may.
    told = relay.wait("it is waited for", lambda status: status.verdict.cause == "postgresql")
    assert told.verdict.sentence.startswith("PostgreSQL at")
    server.stop()
    server.start(wal_level="logical")
    execute(server.dsn, "insert into orders values (0, 'after')")
    relay.wait_caught_up()
    healthy(relay)
    relay.stop()
    assert_equal(services, server.dsn, [ORDERS], relay.name)
