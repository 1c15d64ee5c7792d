"""``bwtui doctor`` on whether a relay would continue after a promotion."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts
from tests.server_pair import Pair
from tests.waiting import eventually

pytestmark = [pytest.mark.services, pytest.mark.since(17, "slots come along")]
SLOT = "looked_at"


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A primary with a table, without a standby."""
    made = Pair()
    request.addfinalizer(made.remove)
    made.primary.ask("create table fine (id int primary key)")
    yield made


@pytest.fixture
def attempts(services: ServiceAddresses, tmp_path: Path) -> Attempts:
    """Runs of bwtui, with a separate state folder."""
    return Attempts(services, tmp_path)


def doctor(attempts: Attempts, dsn: str, *args: str) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """Return the message on failover, and the warnings by name; none of them changes the exit code."""
    services = attempts.services
    ends = ["-d", dsn, "-b", services.broker, "-r", services.schema_registry, "-s", SLOT]
    ended = attempts.command("doctor", *ends, "--json", *args)
    assert ended.code == 0, ended.stderr
    told = json.loads(ended.stdout)
    warnings: dict[str, list[dict[str, Any]]] = {}
    for one in told["warnings"]:
        warnings.setdefault(one["name"], []).append(one)
    (prospect,) = [check["message"] for check in told["checks"] if check["name"] == "failover"]
    return prospect, warnings


def test_what_is_missing_is_told_and_what_is_printed_mends_it(pair: Pair, attempts: Attempts) -> None:
    primary, standby = pair.primary, pair.standby
    assert doctor(attempts, primary.dsn)[0] == "no standby is connected"
    pair.follow()
    prospect, warnings = doctor(attempts, primary.dsn)
    assert prospect == "the slot will be created as a failover slot, for b"
    assert "names one host" in warnings["failover"][0]["message"]
    (waits,) = warnings["synchronized_standby_slots"]
    assert "before a standby does" in waits["message"]
    # It is printed in a form that psql accepts.
    for statement in waits["hint"].removeprefix("run: ").split(";")[:-1]:
        primary.ask(statement)
    assert primary.ask("show synchronized_standby_slots") == [("of_b",)]
    prospect, warnings = doctor(attempts, pair.hosts)
    assert not warnings.keys() & {"failover", "synchronized_standby_slots", f"standby {_place(pair)}"}
    assert "--no-failover" in doctor(attempts, pair.hosts, "--no-failover")[0]
    # First a slot by that name without failover; then one with failover that the standby does not have yet.
    primary.ask(f"select pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    primary.ask(f"create publication bwtui_{SLOT} for table fine")
    told = doctor(attempts, pair.hosts)[0]
    assert (
        "becomes a failover slot" in told and "while a standby in synchronized_standby_slots is down" in told
    )
    # For a single host nothing changes, unless failover is requested.
    assert "--failover makes it one" in doctor(attempts, primary.dsn)[0]
    assert "becomes a failover slot" in doctor(attempts, primary.dsn, "--failover")[0]
    primary.ask(f"select pg_drop_replication_slot('{SLOT}')")
    primary.ask(f"select pg_create_logical_replication_slot('{SLOT}', 'pgoutput', false, false, true)")
    pair.wait_synchronized(SLOT)
    prospect, warnings = doctor(attempts, pair.hosts)
    assert prospect == "the slot is a failover slot, for b"
    assert f"standby {_place(pair)}" not in warnings
    standby.stop()
    prospect, warnings = doctor(attempts, pair.hosts)
    assert prospect == "no standby is connected"
    assert "can't be reached" in warnings[f"host {_place(pair)}"][0]["message"]


def test_a_standby_that_takes_no_slot_along(pair: Pair, attempts: Attempts) -> None:
    pair.follow()
    standby = pair.standby
    standby.stop()
    pair.primary.ask(f"select pg_create_logical_replication_slot('{SLOT}', 'pgoutput', false, false, true)")
    pair.primary.ask(f"create publication bwtui_{SLOT} for table fine")
    standby.run(sync_replication_slots="off", hot_standby_feedback="off", primary_slot_name="")
    standby.set("primary_conninfo", f"host=127.0.0.1 port={pair.primary.port} user=postgres")
    eventually(
        "it follows without a slot",
        lambda: pair.primary.ask(
            "select 1 from pg_stat_replication r where state = 'streaming' and not exists"
            " (select from pg_replication_slots where active_pid = r.pid)"
        ),
    )
    _, warnings = doctor(attempts, pair.hosts)
    of_standby = " ".join(one["message"] for one in warnings[f"standby {_place(pair)}"])
    for setting in (
        "sync_replication_slots is off",
        "hot_standby_feedback is off",
        "primary_slot_name is empty",
    ):
        assert setting in of_standby
    assert "primary_conninfo has no dbname" in of_standby
    assert "the slot does not exist there" in of_standby
    assert "without a physical slot" in warnings["standby b"][0]["message"]


def _place(pair: Pair) -> str:
    return f"127.0.0.1:{pair.standby.port}/postgres"
