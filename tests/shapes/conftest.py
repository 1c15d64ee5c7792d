"""Fixtures of the tests of shapes: relays, and a PostgreSQL with settings of its own."""

from collections.abc import Iterator

import pytest

from tests.faults.conftest import new_relay as new_relay
from tests.fix_sandbox import MAJOR
from tests.second_postgres import SecondPostgres

#: From here on PostgreSQL can be told to.
SPILLS_AT_ONCE = 16


@pytest.fixture(scope="session")
def roomy() -> Iterator[SecondPostgres]:
    """A PostgreSQL that takes a thousand sessions and prepared transactions, and decodes with no memory.

    So every change is spilled to disk and restored, as only those of large transactions are elsewhere.
    """
    server = SecondPostgres()
    spilling = {"debug_logical_replication_streaming": "immediate"} if MAJOR >= SPILLS_AT_ONCE else {}
    try:
        server.start(
            **spilling,
            wal_level="logical",
            max_connections="1100",
            max_prepared_transactions="1100",
            logical_decoding_work_mem="64kB",
            autovacuum="off",
            max_wal_size="4GB",
        )
        yield server
    finally:
        server.remove()
