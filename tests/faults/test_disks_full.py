"""Disks of others that are full: a file that may not grow is what a full disk is to its program."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bwtui.demo.shop import Table
from bwtui.sandbox.runner import State
from bwtui.sandbox.supervisor import Sandbox, Services
from tests.database import session
from tests.faults.incidents import _family, healthy, stalled
from tests.faults.records import assert_equal, read_table
from tests.faults.relays import Relay, execute, new_name, wait_for
from tests.faults.test_outages import assert_nothing_lost
from tests.faults.writer import create_tables
from tests.second_postgres import SecondPostgres

pytestmark = [pytest.mark.services, pytest.mark.long]

NewRelay = Callable[..., Relay]
#: An index of Kafka's log is made with 10 MiB at once.
MOST_BYTES = 11 << 20
FILL = """insert into accounts select n + 1000, n, (select string_agg(md5(random()::text || n), '')
          from generate_series(1, 300)) from generate_series(1, 9000) n"""
ORDERS = Table("public", "orders", ("id",))


def test_the_brokers_disk_is_full(
    interrupted: Sandbox, services: Services, database: str, new_relay: NewRelay
) -> None:
    create_tables(database, 1)
    relay = new_relay()
    with session(database) as source:
        source.publish_all(relay.name)
    relay.start()
    relay.wait_streaming()
    status = interrupted.status()
    assert status is not None
    pid = status.pids["kafka"]
    assert pid is not None
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))
    execute(database, FILL)
    has_ended = lambda: (now := interrupted.status()) and now.services["kafka"].state is State.DIED  # noqa: E731
    wait_for("the broker gives up", has_ended)
    assert "refused" in stalled(relay, "kafka").sentence or not relay.has_ended
    interrupted.start_service("kafka")
    healthy(relay)
    assert_nothing_lost(services, database, [relay])


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[SecondPostgres]:
    """A server of the test's own."""
    second = SecondPostgres()
    request.addfinalizer(second.remove)
    second.start(wal_level="logical")
    execute(second.dsn, "create table orders (id int primary key, origin text)")
    yield second


def limit_files(server: SecondPostgres, most: int) -> None:
    """Let no file of any of the server's processes grow beyond so many bytes."""
    assert server._process is not None
    for pid in _family(server._process.pid):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def test_no_disk_is_left_for_wal(
    server: SecondPostgres, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    relay = Relay(services, server.dsn, tmp_path, new_name())
    try:
        relay.start()
        relay.wait_streaming()
        execute(server.dsn, "insert into orders select n, 'before' from generate_series(1, 100) n")
        limit_files(server, 8 << 20)
        with pytest.raises(Exception, match=r"server closed|terminating|crash|could not"):
            for _ in range(20):
                execute(
                    server.dsn,
                    "insert into orders select max(id) + 1, 'full' from orders",
                    "select pg_logical_emit_message(true, 'x', repeat('x', 10000000))",
                )
        assert not relay.has_ended
        limit_files(server, resource.RLIM_INFINITY)
        wait_for("it writes again", lambda: _writes(server))
        relay.wait_caught_up()
        healthy(relay)
        relay.stop()
        assert_equal(services, server.dsn, [ORDERS], relay.name)
        assert len({record.key for record in read_table(services, ORDERS, relay.name)}) >= 101
    finally:
        relay.close()


def _writes(server: SecondPostgres) -> bool:
    try:
        execute(server.dsn, "insert into orders values (0, 'after') on conflict do nothing")
    except Exception:
        return False
    return True
