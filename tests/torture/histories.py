"""Writers that keep a history: every transaction with its keys, their versions, and whether it committed.

Each change of a key takes the key's next version, from a separate table and under the lock on its row there.
The versions of a key are therefore its commit order, whatever clocks and LSNs say, and no version is skipped.
The table of versions is relayed as well: a version missing in its topic was lost, and a repeated one was sent
twice.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Literal

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from bwtui.demo.shop import DemoTable
from bwtui.model.lsn import parse_lsn
from tests.faults import writer
from tests.faults.writer import TABLES, TAKEN_BACK, Writer

VERSIONS = DemoTable("public", "versions", ("name", "id"))
EVERY = (*TABLES, VERSIONS)
#: Ids of rows that only one writer creates, above those that all writers change.
_OWN = 1_000_000
_LARGE = 150
_TAKE = """insert into versions as v values (%s, %s, 1, %s)
 on conflict (name, id) do update set number = v.number + 1, tx = excluded.tx returning number"""

#: Table name and id.
Key = tuple[str, int]
#: Kind of change; "touch" keeps the row's note, which the stream omits if it is large.
Kind = Literal["row", "touch", "deletion"]
Change = tuple[Key, int, Kind]


@dataclass(slots=True)
class Transaction:
    """A transaction whose COMMIT was sent."""

    number: int
    #: The new version of each changed key, and the kind of change.
    changes: list[Change]
    #: PostgreSQL reported the commit; otherwise only the tables show it.
    is_known: bool = False
    #: The commit lies before this position in the WAL; 0 if unknown.
    before: int = 0


def create_tables(database: str, rows: int) -> None:
    """Create the tables, two of which hold the ids 1 to ``rows``."""
    writer.create_tables(database, rows)
    with closing(psycopg2.connect(database)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(
            "create table versions (name text, id bigint, number bigint not null, tx bigint not null,"
            " primary key (name, id))"
        )


class Historian(Writer):
    """One of several writers, which change the same rows."""

    def __init__(self, database: str, rows: int, number: int, seed: int, pause: float) -> None:
        """``number`` identifies the writer; it waits for ``pause`` seconds after each transaction."""
        super().__init__(database, rows, seed)
        self.transactions: list[Transaction] = []
        self._own = number * _OWN
        self._next = self._own
        self._pause = pause

    def _look(self, connection: Connection) -> None:
        """Do nothing: this writer needs no knowledge of the existing rows."""

    def _transaction(self, connection: Connection) -> None:
        dice = self._random
        steps = _LARGE if self._draw(0.02) else dice.randint(1, 8)
        keys = {(dice.choice(TABLES).full_name, dice.randint(1, self._rows)) for _ in range(steps)}
        self._number += 1
        done = Transaction(self._own * 1_000 + self._number, [])
        with connection.cursor() as cursor:
            cursor.execute("select pg_current_wal_insert_lsn()::text")
            ((end,),) = cursor.fetchall()
            if self.transactions:
                self.transactions[-1].before = parse_lsn(end)
            # All writers use the same order, or they would block each other.
            for key in sorted(keys):
                done.changes += self._change(cursor, key, done.number)
            if self._draw(0.1):
                self._take_back(cursor, done.number)
            if self._draw(0.1):
                connection.rollback()
                return
            self.transactions.append(done)
            connection.commit()
        done.is_known = True
        self._stop.wait(self._pause)

    def _change(self, cursor: Cursor, key: Key, tx: int, note: str = "") -> Iterator[Change]:
        """Make a random possible change of the row, and yield the keys with the kind of their change."""
        (table, id), dice = key, self._random
        version = _next(cursor, key, tx)
        text = note or f"{table}/{id}/{version}/{dice.randbytes(dice.choice((4, 4, 4, 4, 3_000))).hex()}"
        cursor.execute(f"select 1 from {table} where id = %s", [id])
        if not cursor.fetchall():
            cursor.execute(f"insert into {table} values (%s, %s, %s)", [id, version, text])
            yield key, version, "row"
            return
        operation = dice.choice(("update", "update", "touch", "delete", "rename"))
        if operation == "update":
            cursor.execute(f"update {table} set number = %s, note = %s where id = %s", [version, text, id])
        elif operation == "touch":
            # A large note is kept, and the stream no longer contains it.
            cursor.execute(f"update {table} set number = %s where id = %s", [version, id])
        elif operation == "delete":
            cursor.execute(f"delete from {table} where id = %s", [id])
        else:
            self._next += 1
            other = (table, self._next)
            moved = _next(cursor, other, tx)
            cursor.execute(
                f"update {table} set id = %s, number = %s, note = %s where id = %s",
                [self._next, moved, note or f"{table}/{self._next}/{moved}/", id],
            )
            yield other, moved, "row"
        kinds: dict[str, Kind] = {"update": "row", "touch": "touch"}
        yield key, version, kinds.get(operation, "deletion")

    def _take_back(self, cursor: Cursor, tx: int) -> None:
        """Change rows of the writer's own, and roll back."""
        cursor.execute("savepoint s")
        for _ in range(3):
            self._next += 1
            list(self._change(cursor, (TABLES[0].full_name, self._next), tx, TAKEN_BACK))
        cursor.execute("rollback to s")


def _next(cursor: Cursor, key: Key, tx: int) -> int:
    cursor.execute(_TAKE, [*key, tx])
    ((version,),) = cursor.fetchall()
    return int(version)


@dataclass(slots=True)
class Histories:
    """All writers of a campaign."""

    writers: Sequence[Historian]

    @contextmanager
    def going_on(self) -> Iterator["Histories"]:
        """Write during the block."""
        with ExitStack() as stack:
            for one in self.writers:
                stack.enter_context(one.going_on())
            try:
                yield self
            finally:
                for one in self.writers:
                    one.stop()

    def transactions(self) -> Iterator[Transaction]:
        """Yield every transaction whose COMMIT was sent."""
        for one in self.writers:
            yield from one.transactions

    def count(self) -> int:
        """Return the number of rows known to be written."""
        return sum(len(one.changes) for one in self.transactions() if one.is_known)


def histories(database: str, rows: int, seed: int, writers: int = 3, pause: float = 0.01) -> Histories:
    """Return ``writers`` writers."""
    made = [Historian(database, rows, number, seed + number, pause) for number in range(1, writers + 1)]
    return Histories(made)
