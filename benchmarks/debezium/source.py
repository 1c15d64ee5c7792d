"""The database of one workload: its tables, the rows in them, and a slot for each that reads them."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import psycopg2
from psycopg.conninfo import make_conninfo

from benchmarks.debezium.workloads import Kind, Workload

DATABASE = "bench_debezium"
#: The table that is read before anything is measured, its publication and its slot.
WARM = "warm"
#: The publication of the tables that are measured.
PUBLICATION = "bench"
#: Slots as they were before rows were written; each run reads from a copy.
_BEFORE = {PUBLICATION: "bench_before", WARM: "warm_before"}
_LET_GO_SECONDS = 60.0
#: The rows from 1 to ``total``, of one table or in turn of several, ``statement_rows`` at a time.
_FILL = """
create procedure fill(name text, tables int, total int8, statement_rows int8, transaction_rows int8)
language plpgsql as $$
declare
    low int8 := 1;
    high int8;
    into_table text;
begin
    while low <= total loop
        high := least(low + statement_rows - 1, total);
        into_table := name || case when tables > 1 then '_' || (low / statement_rows) % tables else '' end;
        execute 'insert into ' || into_table || $values$
            select {values} from generate_series($1, $2) id $values$ using low, high;
        if high % transaction_rows = 0 then
            commit;
        end if;
        low := high + 1;
    end loop;
end $$"""


class Source:
    """One workload's database."""

    def __init__(self, superuser: str, workload: Workload, rows: int, warm_rows: int) -> None:
        self._superuser = superuser
        self._workload = workload
        self._rows = rows
        self._warm_rows = warm_rows
        self.dsn = make_conninfo(superuser, dbname=DATABASE)

    @contextlib.contextmanager
    def filled(self) -> Iterator["Source"]:
        """Make the database, and write what is there before a reader begins; it is gone behind the block."""
        self._drop()
        self._on(self._superuser, f"create database {DATABASE}")
        try:
            self._make_tables()
            is_written_later = self._workload.kind is Kind.LATENCY
            self._fill(WARM, WARM, 1, self._warm_rows)
            self._fill(PUBLICATION, "bench", self._workload.tables, 0 if is_written_later else self._rows)
            # So that neither autovacuum nor a checkpoint falls into one reader's time.
            self.run("vacuum (analyze)")
            self.run("checkpoint")
            yield self
        finally:
            self._drop()

    @contextlib.contextmanager
    def slot(self, name: str, publication: str = PUBLICATION) -> Iterator[str]:
        """A slot as it was before the rows of a publication were written, or before those that will be."""
        if publication == PUBLICATION and self._workload.kind is Kind.LATENCY:
            # What the run before this one has written is no part of it.
            self.run("truncate bench")
            self.run("select pg_create_logical_replication_slot(%s, 'pgoutput')", name)
        else:
            self.run("select pg_copy_logical_replication_slot(%s, %s)", _BEFORE[publication], name)
        with self.slot_gone_after(name):
            yield name

    @contextlib.contextmanager
    def slot_gone_after(self, name: str) -> Iterator[str]:
        """Take away a slot that a reader has made, or has read from."""
        try:
            yield name
        finally:
            self._drop_slots("slot_name = %s", name)

    def run(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        """Run a statement, and return what it finds."""
        return self._on(self.dsn, statement, *args)

    def end_of_wal(self) -> str:
        """Return the place up to which all is written by now."""
        return str(self.run("select pg_current_wal_flush_lsn()::text")[0][0])

    def _make_tables(self) -> None:
        workload = self._workload
        for name in (WARM, *workload.table_names):
            self.run(f"create table {name} ({workload.columns}) with (autovacuum_enabled = off)")
        for publication, tables in ((WARM, (WARM,)), (PUBLICATION, workload.table_names)):
            self.run(f"create publication {publication} for table {', '.join(tables)}")
        self.run(_FILL.replace("{values}", workload.values))

    def _fill(self, publication: str, name: str, tables: int, rows: int) -> None:
        """Write rows, behind the slots that are to read them."""
        self.run("select pg_create_logical_replication_slot(%s, 'pgoutput')", _BEFORE[publication])
        workload = self._workload
        with contextlib.closing(psycopg2.connect(self.dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute("set synchronous_commit = off")
            at_once = workload.transaction_rows or rows
            cursor.execute(
                "call fill(%s, %s, %s, %s, %s)", [name, tables, rows, workload.statement_rows, at_once]
            )

    def _drop(self) -> None:
        self._drop_slots("database = %s", DATABASE)
        self._on(self._superuser, f"drop database if exists {DATABASE} with (force)")

    def _drop_slots(self, which: str, value: str) -> None:
        """Drop slots; a walsender whose reader has just ended keeps its own a little longer."""
        deadline = time.monotonic() + _LET_GO_SECONDS
        found = f"select slot_name, active_pid from pg_replication_slots where {which}"
        while slots := self._on(self._superuser, found, value):
            for slot, reader in slots:
                try:
                    if reader is not None:
                        self._on(self._superuser, "select pg_terminate_backend(%s, 1000)", reader)
                    self._on(self._superuser, "select pg_drop_replication_slot(%s)", slot)
                except (psycopg2.errors.ObjectInUse, psycopg2.errors.UndefinedObject):
                    if time.monotonic() > deadline:
                        raise

    @staticmethod
    def _on(dsn: str, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute(statement, args or None)
            return cursor.fetchall() if cursor.description else []
