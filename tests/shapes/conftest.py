"""Fixtures of the shape tests: relays, and a PostgreSQL with its own settings."""

from collections.abc import Iterator

import pytest

from tests.faults.conftest import new_relay as new_relay
from tests.fix_sandbox import MAJOR
from tests.second_postgres import SecondPostgres

#: First version of PostgreSQL with debug_logical_replication_streaming.
SPILLS_AT_ONCE = 16


@pytest.fixture(scope="session")
def roomy() -> Iterator[SecondPostgres]:
    """A PostgreSQL with a thousand sessions and prepared transactions that decodes with minimal memory.

    It spills every change to disk and restores it, as other servers do only for large transactions.
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
