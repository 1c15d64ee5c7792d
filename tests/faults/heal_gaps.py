"""Ways to lose a slot on a dedicated server, and random writes to its tables."""

import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg2

from bwtui.demo.shop import DemoTable
from tests.faults.relays import Relay, execute, wait_for
from tests.second_postgres import SecondPostgres

LOGICAL = {"wal_level": "logical"}
TABLES = (DemoTable("public", "orders", ("id",)), DemoTable("public", "lines", ("order_id", "line")))
_IDS = 400
_CREATE = (
    "create table orders (id int primary key, v text)",
    "create table lines (order_id int, line text, v int, primary key (order_id, line))",
    "insert into orders select n, 'v' || n from generate_series(1, 300) n",
    "insert into lines select n, 'line ' || n, n from generate_series(1, 300) n",
)


def created() -> SecondPostgres:
    """Return a running server with both tables."""
    server = SecondPostgres()
    server.start(**LOGICAL)
    execute(server.dsn, *_CREATE)
    return server


def some_writes(dice: random.Random) -> list[str]:
    """Return the statements of one transaction."""
    return [_statement(dice) for _ in range(dice.randint(1, 6))]


def _statement(dice: random.Random) -> str:
    first = dice.randint(1, _IDS)
    last = first + dice.choice((0, 0, 3, 30))
    word = f"{dice.getrandbits(32):x}"
    return dice.choice(
        (
            f"insert into orders select n, '{word}' from generate_series({first}, {last}) n"
            " on conflict (id) do update set v = excluded.v",
            f"update orders set v = '{word}' where id between {first} and {last}",
            f"delete from orders where id between {first} and {last}",
            f"insert into lines select n, 'line ' || n, {first} from generate_series({first}, {last}) n"
            " on conflict do nothing",
            f"update lines set v = v + 1 where order_id between {first} and {last}",
            # A changed key produces a tombstone and a row.
            f"update lines set line = md5(line || '{word}') where order_id between {first} and {last}",
            f"delete from lines where order_id between {first} and {last}",
        )
    )


def write(server: SecondPostgres, dice: random.Random, transactions: int) -> None:
    """Run ``transactions`` random transactions."""
    for _ in range(transactions):
        execute(server.dsn, *some_writes(dice))


def _write_unseen(server: SecondPostgres, dice: random.Random) -> None:
    """Write changes that no slot retains, including a TRUNCATE, for which a stream sends no tombstones."""
    if dice.random() < 0.2:
        execute(server.dsn, "truncate lines")
    write(server, dice, 5)


@contextmanager
def written_to(server: SecondPostgres, seed: int) -> Iterator[None]:
    """Write continuously in another thread."""
    stop, dice = threading.Event(), random.Random(seed)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.wait(0.02):
                execute(server.dsn, *some_writes(dice))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failed


# -- gaps ----------------------------------------------------------------------------------------------------
# Each function takes a relay that has caught up, and invalidates or drops its slot while the relay is ended
# or suspended.


def drop(server: SecondPostgres, relay: Relay, dice: random.Random) -> None:
    """Drop the slot while the relay is stopped."""
    _end(relay, dice)
    _write_unseen(server, dice)
    execute(server.dsn, f"select pg_drop_replication_slot('{relay.name}')")
    write(server, dice, dice.randint(0, 3))


def drop_below(server: SecondPostgres, relay: Relay, dice: random.Random) -> None:
    """End the relay's session and drop the slot before the relay reconnects; leave the relay suspended."""
    relay.signal(signal.SIGSTOP)
    _ask(server, "select pg_terminate_backend(active_pid) from pg_replication_slots where active")
    wait_for(
        "the slot's release", lambda: not _ask(server, "select 1 from pg_replication_slots where active")
    )
    _write_unseen(server, dice)
    execute(server.dsn, f"select pg_drop_replication_slot('{relay.name}')")


def advance(server: SecondPostgres, relay: Relay, dice: random.Random) -> None:
    """Advance the slot past unsent changes."""
    _end(relay, dice)
    _write_unseen(server, dice)
    _ask(server, f"select pg_replication_slot_advance('{relay.name}', pg_current_wal_flush_lsn())")


def invalidate(server: SecondPostgres, relay: Relay, dice: random.Random) -> None:
    """Let the slot retain more WAL than max_slot_wal_keep_size allows."""
    _end(relay, dice)
    _write_unseen(server, dice)
    _ask(server, "alter system set max_slot_wal_keep_size = '1MB'")
    _ask(server, "select pg_reload_conf()")

    def is_lost() -> bool:
        for _ in range(3):
            execute(server.dsn, "select pg_logical_emit_message(true, 'other', 'x')")
            _ask(server, "select pg_switch_wal()")
        _ask(server, "checkpoint")
        status = _ask(server, f"select wal_status from pg_replication_slots where slot_name = '{relay.name}'")
        return bool(status == [("lost",)])

    wait_for("the slot's end", is_lost)
    _ask(server, "alter system reset max_slot_wal_keep_size")
    _ask(server, "select pg_reload_conf()")


def restore(server: SecondPostgres, relay: Relay, dice: random.Random) -> None:
    """Replace the server by a copy of itself that lacks some of the sent changes.

    On the same timeline the relay detects this only while the server's WAL ends before the sent changes, so
    nothing is written.
    """
    _replace(server, relay, dice, server.start)


def promote(server: SecondPostgres, relay: Relay, dice: random.Random) -> None:
    """Promote a standby that lacks some of the sent changes."""
    _replace(server, relay, dice, server.start_promoted)
    write(server, dice, dice.randint(0, 5))


def _replace(server: SecondPostgres, relay: Relay, dice: random.Random, start: Callable[..., None]) -> None:
    _end(relay, dice)
    server.stop()
    server.keep_copy()
    server.start(**LOGICAL)
    relay.start()
    relay.wait_streaming()
    execute(server.dsn, "select pg_logical_emit_message(true, 'other', repeat('x', 1 << 20))")
    write(server, dice, 8)
    relay.wait_caught_up()
    # Rows sent in the second before a kill may not be stored: docs/adr/0004-start-at-the-servers-position.md.
    relay.wait_told()
    _end(relay, dice)
    server.stop()
    server.put_copy_back()
    start(**LOGICAL)


GAPS: tuple[Callable[[SecondPostgres, Relay, random.Random], None], ...] = (
    drop,
    drop_below,
    advance,
    invalidate,
    restore,
    promote,
)


def _end(relay: Relay, dice: random.Random) -> None:
    dice.choice((relay.kill, relay.stop))()


def _ask(server: SecondPostgres, sql: str) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(server.dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []


def is_read(server: SecondPostgres, relay: Relay) -> bool:
    """Return whether a session reads the slot."""
    return bool(
        _ask(server, f"select 1 from pg_replication_slots where active and slot_name = '{relay.name}'")
    )


def contents(server: SecondPostgres, table: DemoTable) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return a table's rows by their keys."""
    with closing(psycopg2.connect(server.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(f"select * from {table.name}")
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {tuple(row[name] for name in table.key): row for row in rows}
