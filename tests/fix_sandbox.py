"""Fixtures: a sandbox for each process of the test run, and a fresh database for each test that requests one.

``BWTUI_TEST_POSTGRES=14`` runs the tests on that major version of PostgreSQL. Tests of features that it lacks
are marked ``since(major, reason)``: they are deselected, and the report lists each of them with its reason.
"""

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pytest
from psycopg2 import sql

from bwtui.packages.setup_progress import PlainSetupProgress
from bwtui.sandbox.sandbox import DEFAULT_MAJOR, Sandbox, ServiceAddresses
from bwtui.spark.session import environment

DROP_SECONDS = 60.0
#: The major version of PostgreSQL that the tests run on.
MAJOR = int(os.environ.get("BWTUI_TEST_POSTGRES", DEFAULT_MAJOR))
#: Number of Kafka brokers for the tests.
BROKERS = int(os.environ.get("BWTUI_TEST_BROKERS", "1"))
_LACKING = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "since(major, reason): needs this version of PostgreSQL, and why")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of features that the server's version lacks."""
    chosen, left, told = [], [], []
    for item in items:
        mark = item.get_closest_marker("since")
        if mark is None or mark.args[0] <= MAJOR:
            chosen.append(item)
        else:
            left.append(item)
            told.append(f"{item.nodeid}: since PostgreSQL {mark.args[0]}, {mark.args[1]}")
    config.stash[_LACKING] = told
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = chosen


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pass the deselected tests from a worker of pytest-xdist to the reporting process."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left out"] = session.config.stash.get(_LACKING, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Store the deselected tests of a worker."""
    node.config.stash[_LACKING] = getattr(node, "workeroutput", {}).get("left out", [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """List the deselected tests with their reasons."""
    told = config.stash.get(_LACKING, [])
    if told:
        terminalreporter.section(f"left out on PostgreSQL {MAJOR}")
        for line in told:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """The sandbox of this run, for tests that stop and start its services; they must leave all running.

    It ends with the test run, even if that is killed.
    """
    sandbox = Sandbox(tmp_path_factory.mktemp("sandbox"), MAJOR, brokers=BROKERS)
    # Kafka does so little here that its second compiler would take more CPU than everything else.
    with environment(JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1"):
        sandbox.up(PlainSetupProgress(), attached=True, disposable=True)
    with closing(_connect(sandbox.services().postgres)) as connection, connection.cursor() as cursor:
        # No test survives the machine: what a killed server has written is there without fsync, too.
        cursor.execute("alter system set fsync = off")
        cursor.execute("select pg_reload_conf()")
    yield sandbox
    sandbox.down(wipe=True)


@pytest.fixture(scope="module")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A module's own sandbox with three brokers; its tests must leave all running."""
    sandbox = Sandbox(tmp_path_factory.mktemp("three"), MAJOR, brokers=3)
    with environment(JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1"):
        sandbox.up(PlainSetupProgress(), attached=True, disposable=True)
    yield sandbox
    sandbox.down(wipe=True)


@pytest.fixture
def interrupted(sandbox: Sandbox) -> Iterator[Sandbox]:
    """The sandbox, for tests that stop its services: all are restarted afterwards, even after a failure."""
    yield sandbox
    sandbox.up()


@pytest.fixture(scope="session")
def services(sandbox: Sandbox) -> ServiceAddresses:
    """Addresses of the run's PostgreSQL, Kafka and schema registry."""
    return sandbox.services()


@pytest.fixture
def database(services: ServiceAddresses, request: pytest.FixtureRequest) -> Iterator[str]:
    """The connection URI of a fresh, empty database; it is dropped with its slots after the test."""
    with fresh_database(services, Path(request.node.path).stem) as made:
        yield made


@contextmanager
def fresh_database(services: ServiceAddresses, stem: str) -> Iterator[str]:
    """Create an empty database for the block, and yield its connection URI."""
    name = f"test_{stem}_{time.monotonic_ns():x}"[-60:]
    with closing(_connect(services.postgres)) as connection, connection.cursor() as cursor:
        cursor.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    yield urlsplit(services.postgres)._replace(path=f"/{name}").geturl()
    with closing(_connect(services.postgres)) as connection:
        drop_database(connection, name)


def _connect(conninfo: str) -> "psycopg2.extensions.connection":
    connection = psycopg2.connect(conninfo)
    connection.autocommit = True
    return connection


def drop_database(connection: "psycopg2.extensions.connection", name: str) -> None:
    """Drop a database with its slots, even while a session that has just ended is still closing."""
    # A logical slot blocks the drop of its database, and a walsender the drop of its slot.
    slots = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s"
    deadline = time.monotonic() + DROP_SECONDS
    with connection.cursor() as cursor:
        while True:
            cursor.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name]
            )
            try:
                cursor.execute(slots, [name])
                cursor.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
            except (psycopg2.errors.ObjectInUse, psycopg2.errors.UndefinedObject):
                if time.monotonic() > deadline:
                    raise
            else:
                return
