"""One set of topics for all consumers: a small table, and one with a column of every type."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts
from tests.database import session
from tests.fix_sandbox import drop_database
from tests.integration.type_samples import SAMPLES, SETUP

_ORDERS = """
create table orders (id bigint primary key, name text, price numeric(10, 2), at timestamptz);
insert into orders
select g, 'größe ' || g, g + 0.25, timestamptz '2026-01-31 10:15:30.5+00' + g * interval '1 s'
  from generate_series(1, 20) g;
"""
_CHANGES = """
update orders set name = null, price = -0.01 where id = 3;
delete from orders where id = 4;
update orders set id = 100 where id = 5;
"""
#: The records of the orders' topic, in each key's order: key, name, price, at; or only the key.
_EXPECTED = """
select id::text, name, price::text, to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
  from orders order by id
"""


@dataclass(frozen=True)
class Topics:
    """The topics that consumers read, and their expected output."""

    services: ServiceAddresses
    #: The topics' prefix.
    prefix: str
    #: The id, name, price and time of each order, as the table has them.
    orders: list[tuple[str, str | None, str, str]]
    #: The number of records, by topic without the prefix.
    counts: dict[str, int]

    @property
    def given(self) -> dict[str, str]:
        """Return the test's replacements for texts of docs/consumers.md."""
        return {
            "kafka:9092": self.services.broker,
            "http://registry:8081": self.services.schema_registry,
            # The same registry: it has its own API in addition to Confluent's.
            "http://apicurio:8080": self.services.schema_registry.removesuffix("/apis/ccompat/v7"),
            "shop": self.prefix,
        }


@contextmanager
def _relayed(services: ServiceAddresses, folder: Path, *args: str) -> Iterator[Topics]:
    """Relay both tables with further options."""
    attempts = Attempts(services, folder)
    database = f"test_consumers_{secrets.token_hex(5)}"
    dsn = services.postgres.rpartition("/")[0] + f"/{database}"
    with session(services.postgres) as admin:
        admin.run(f"create database {database}")
        with session(dsn) as source:
            source.run(SETUP)
            source.run(_ORDERS)
            columns = [f"c{number} {name}" for number, name in enumerate(SAMPLES)]
            source.run(f"create table kinds (id int primary key, {', '.join(columns)})")
            rows = max(map(len, SAMPLES.values()))
            for row in range(rows):
                values = [samples[row % len(samples)] for samples in SAMPLES.values()]
                marks = ", ".join(["%s"] * len(values))
                source.run(f"insert into kinds values ({row}, {marks})", *values)
            source.run("insert into kinds (id) values (-1)")
            options = ("--connect-names", "--namespace", "com.acme.store", *args)
            attempts.succeed(dsn, *options)
            source.run(_CHANGES)
            attempts.succeed(dsn, *options)
            orders = source.rows(_EXPECTED)
        admin.run("select pg_drop_replication_slot(%s)", attempts.name)
        # 20 orders, an update, a tombstone, and a changed key's tombstone and row.
        yield Topics(services, attempts.name, orders, {"orders": 24, "kinds": rows + 1})
        drop_database(admin.connection, database)


@pytest.fixture(scope="session")
def topics(services: ServiceAddresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """Topics of a relay with default options, which compress with lz4."""
    with _relayed(services, tmp_path_factory.mktemp("consumers")) as found:
        yield found


@pytest.fixture
def gzip_topics(services: ServiceAddresses, tmp_path: Path) -> Iterator[Topics]:
    """The same topics, compressed with gzip."""
    with _relayed(services, tmp_path, "-C", "compression.type=gzip") as found:
        yield found
