"""A former primary returns while the relay streams from the new one: nothing is read from the former.

It is the first of the hosts, accepts writes, and holds rows from before the promotion.
"""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts, Ended
from tests.decoded_topic import Decoded, decoded_avro, latest
from tests.faults.relays import Relay, new_name
from tests.server_pair import Pair

pytestmark = pytest.mark.since(17, "slots come along")


class Returned:
    """A relay that streams from the new primary, and the former primary, which runs again."""

    def __init__(self, services: ServiceAddresses, pair: Pair, folder: Path) -> None:
        """Promote the standby, and restart the former primary with one row of ``doc``."""
        self.pair = pair
        self.old, self.new = secrets.token_hex(2_000), secrets.token_hex(2_000)
        pair.primary.ask("create table doc (id int primary key, n int, big text)")
        pair.primary.ask("alter table doc alter big set storage external")
        pair.primary.ask(f"insert into doc values (1, 0, '{self.old}')")
        self.relay = Relay(services, pair.dsn, folder, new_name("former"), "-d", pair.hosts)
        self.relay.start()
        self.relay.wait_streaming()
        pair.wait_synchronized(self.relay.name)
        pair.fail(hard=False)
        pair.promote()
        self.relay.database = pair.primary.dsn
        self.relay.wait_caught_up()
        pair.standby.run()
        assert pair.standby.ask("select pg_is_in_recovery()") == [(False,)]
        self._services = services

    def write(self) -> None:
        """Update one row that the former primary has, and one that it lacks; the large values stay."""
        self.pair.primary.ask(f"insert into doc values (2, 0, '{self.new}')")
        self.pair.primary.ask(f"update doc set big = '{self.new}' where id = 1")
        self.pair.primary.ask("update doc set n = 1")

    @property
    def messages(self) -> list[Decoded]:
        return decoded_avro(self._services, f"{self.relay.name}.doc")

    def assert_equal(self) -> None:
        """Check that the topic's rows are those of the new primary."""
        assert latest(self.messages) == {
            (number,): {"id": number, "n": 1, "big": self.new} for number in (1, 2)
        }


@pytest.fixture
def returned(
    services: ServiceAddresses,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Returned]:
    """Return a former primary that runs again."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    pair = Pair()
    request.addfinalizer(pair.remove)
    pair.follow()
    made = Returned(services, pair, tmp_path)
    yield made
    made.relay.close()


def test_unchanged_values_and_chunks_come_from_the_streams_own_server(
    returned: Returned, services: ServiceAddresses, tmp_path: Path
) -> None:
    """Rows that the former primary lacks are not deleted, and its values are not the newest."""
    returned.write()
    status = returned.relay.wait_caught_up()
    assert status.tables["public.doc"].toast_superseded == 0
    returned.assert_equal()
    before = len(returned.messages)
    ended = _command(services, tmp_path, "snapshot", "public.doc", "--relay", returned.relay.name)
    assert ended.code == 0, ended.stderr
    assert len(returned.messages) == before + 2
    returned.assert_equal()


def test_a_comparison_reads_from_the_streams_own_server(
    returned: Returned, services: ServiceAddresses, tmp_path: Path
) -> None:
    """Its rows would be taken for the newest, and a repair would send them."""
    returned.write()
    returned.relay.wait_caught_up()
    before = len(returned.messages)
    name = returned.relay.name
    ended = _command(services, tmp_path, "verify", "--database", "--relay", name)
    assert ended.code == 0, ended.stderr
    ended = _command(services, tmp_path, "repair", "--relay", name, "--yes")
    assert ended.code == 0, ended.stderr
    assert len(returned.messages) == before
    returned.relay.stop()
    ends = ["-b", services.broker, "-r", services.schema_registry, "-s", name, "-p", name]
    for command in (("verify", "--database"), ("repair", "--database", "--yes")):
        ended = _command(services, tmp_path, *command, "-d", returned.pair.hosts, *ends)
        assert ended.code == 2, ended.stderr
        assert "is a former primary" in ended.stderr
    assert len(returned.messages) == before
    returned.assert_equal()


def _command(services: ServiceAddresses, folder: Path, *args: str) -> Ended:
    return Attempts(services, folder).command(*args)
