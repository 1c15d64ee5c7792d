"""A writer that continues through faults, and knows afterwards what it committed and what it rolled back."""

import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from bwtui.demo.shop import DemoTable
from bwtui.model.lsn import parse_lsn

ACCOUNTS = DemoTable("public", "accounts", ("id",))
VISITS = DemoTable("public", "visits", ("id",))
TABLES = [ACCOUNTS, VISITS]
TAKEN_BACK = "taken back"

_PAUSE_SECONDS = 0.002
_ROLLED_BACK = 0.15
_LARGE = 0.03


@dataclass(frozen=True, slots=True)
class Change:
    """One committed change; the row holds its number, a tombstone does not."""

    table: str
    id: int
    number: int
    operation: str
    #: A position in the WAL before its commit.
    before: int


def create_tables(database: str, rows: int) -> None:
    """Create both tables, with ``rows`` rows in each."""
    with closing(psycopg2.connect(database)) as connection, connection, connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(
                f"create table {table.full_name} (id bigint primary key, number bigint not null, note text)"
            )
            cursor.execute(
                f"insert into {table.full_name} select n, 0, 'row ' || n from generate_series(1, %s) n",
                [rows],
            )


class Writer:
    """Random transactions of inserts, updates, deletes and key changes, some large or rolled back."""

    def __init__(
        self, database: str, rows: int, seed: int | None = None, *, pause: float = _PAUSE_SECONDS
    ) -> None:
        """Both tables hold the ids 1 to ``rows``; ``pause``: seconds between two transactions."""
        self._pause = pause
        self.changes: list[Change] = []
        self._database = database
        self._rows = rows
        self._random = random.Random(random.getrandbits(64) if seed is None else seed)
        self._live = {table.full_name: list(range(1, rows + 1)) for table in TABLES}
        self._next = rows
        self._number = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer")
        self._failure: BaseException | None = None

    @contextmanager
    def going_on(self) -> Iterator["Writer"]:
        """Write during the block; raise the writer's error, if any, at its end."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop the writer; it may write once more."""
        self._stop.set()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._session()
        except BaseException as failure:
            self._failure = failure

    def _session(self) -> None:
        """Write until the end, or until the server goes away.

        Then find out what was committed, and continue.
        """
        try:
            with closing(psycopg2.connect(self._database)) as connection:
                self._look(connection)
                while not self._stop.wait(self._pause):
                    self._transaction(connection)
        except (psycopg2.OperationalError, psycopg2.InterfaceError):
            self._stop.wait(0.1)

    def _look(self, connection: Connection) -> None:
        with connection, connection.cursor() as cursor:
            for name in self._live:
                cursor.execute(f"select id from {name}")
                self._live[name] = [row[0] for row in cursor.fetchall()]
            self._next = max(self._next, *(max(ids, default=0) for ids in self._live.values()))

    def _transaction(self, connection: Connection) -> None:
        before = {name: list(ids) for name, ids in self._live.items()} if self._draw(_ROLLED_BACK) else None
        steps = 400 if self._draw(_LARGE) else self._random.randint(1, 8)
        done: list[tuple[str, int, int, str]] = []
        with connection.cursor() as cursor:
            for _ in range(steps):
                self._step(cursor, done, TAKEN_BACK if before else "kept")
            if before is not None:
                connection.rollback()
                self._live = before
                return
            cursor.execute("select pg_current_wal_insert_lsn()::text")
            ((end,),) = cursor.fetchall()
            place = parse_lsn(end)
            connection.commit()
        self.changes += [Change(*change, place) for change in done]

    def _step(self, cursor: Cursor, done: list[tuple[str, int, int, str]], note: str) -> None:
        name = self._random.choice(TABLES).full_name
        live = self._live[name]
        self._number += 1
        operation = self._random.choice(("insert", "insert", "update", "update", "delete", "rename"))
        if operation == "insert" or not live:
            operation = "insert"
            self._next += 1
            live.append(self._next)
            key = self._next
            cursor.execute(f"insert into {name} values (%s, %s, %s)", [key, self._number, note])
        else:
            at = self._random.randrange(len(live))
            key = live[at]
            if operation == "update":
                cursor.execute(
                    f"update {name} set number = %s, note = %s where id = %s", [self._number, note, key]
                )
            elif operation == "delete":
                live[at] = live[-1]
                live.pop()
                cursor.execute(f"delete from {name} where id = %s", [key])
            else:
                self._next += 1
                live[at] = self._next
                cursor.execute(
                    f"update {name} set id = %s, number = %s, note = %s where id = %s",
                    [self._next, self._number, note, key],
                )
                key = self._next
        done.append((name, key, self._number, operation))

    def _draw(self, probability: float) -> bool:
        return self._random.random() < probability
