"""A session on the database under test, for writing and for inspecting slots."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import psycopg2

from bwtui.model.lsn import parse_lsn
from tests.waiting import eventually


class Session:
    """One autocommit session, unless a test began a transaction."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg2.connect(dsn)
        self.connection.autocommit = True

    def run(self, sql: str, *args: Any) -> None:
        """Run a statement."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, args or None)

    def rows(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, args or None)
            return cursor.fetchall()

    def value(self, sql: str, *args: Any) -> Any:
        """Return the first column of the first row, or None when there is no row."""
        rows = self.rows(sql, *args)
        return rows[0][0] if rows else None

    def wal_end(self) -> int:
        """Return the LSN after the last commit."""
        return parse_lsn(self.value("select pg_current_wal_flush_lsn()::text"))

    def wal_inserted(self) -> int:
        """Return the LSN after the last written record, committed or not."""
        return parse_lsn(self.value("select pg_current_wal_insert_lsn()::text"))

    def confirmed(self, slot: str) -> int:
        """Return the slot's confirmed LSN."""
        sql = "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s"
        return parse_lsn(self.value(sql, slot))

    def slots(self) -> list[str]:
        """Return the names of this database's slots."""
        sql = "select slot_name from pg_replication_slots where database = current_database() order by 1"
        return [row[0] for row in self.rows(sql)]

    def publications(self) -> list[str]:
        """Return the names of this database's publications."""
        return [row[0] for row in self.rows("select pubname from pg_publication order by 1")]

    def publish_all(self, slot: str) -> None:
        """Make the relay's publication FOR ALL TABLES, so that new tables are relayed too."""
        self.run(f"create publication bwtui_{slot} for all tables with (publish_via_partition_root = true)")

    def reader(self, slot: str) -> int | None:
        """Return the server process that uses the slot, either for streaming or while creating it."""
        sql = """select active_pid from pg_replication_slots join pg_stat_replication on pid = active_pid
                  where slot_name = %s and state = 'streaming'"""
        found: int | None = self.value(sql, slot)
        return found

    def wait_released(self, slot: str) -> None:
        """Wait until no session holds the slot."""
        sql = "select not active from pg_replication_slots where slot_name = %s"
        eventually(f"slot {slot} is released", lambda: self.value(sql, slot))

    def close(self) -> None:
        """End the session, and roll back what it has open."""
        self.connection.close()


@contextmanager
def session(dsn: str) -> Iterator[Session]:
    """Open a session for the length of a block."""
    opened = Session(dsn)
    try:
        yield opened
    finally:
        opened.close()


def with_options(dsn: str, **settings: str) -> str:
    """Return the connection URI ``dsn`` with server settings for its sessions."""
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return f"{dsn}{'&' if '?' in dsn else '?'}options={quote(options, safe='')}"
