"""What bounds the relay: one very large transaction, and Kafka away while everybody writes.

Run ``make bounds``, or ``python benchmarks/bounds.py`` in the checkout, with what is wanted:

* ``--transaction ROWS``: one transaction of so many rows of 7 columns. From the COMMIT's return to the first
  message that an independent consumer reads, rows a second, and memory and lag over time;
* ``--outage SECONDS``: the broker is down so long, with transactions of 100 rows at full rate. Memory and lag
  over time, what the relay says, and its rate behind it beside that of a relay that was only stopped;
* ``--protocols ROWS``: when a transaction of so many rows could be sent on, by pgoutput's protocol.

It starts a sandbox of its own, or takes one that runs. ``--write FOLDER`` writes curves and pictures there.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
from bench_table import BWTUI, INSERTS, ROWS, add_sandbox_option, environment, services_in
from confluent_kafka import Consumer, TopicPartition
from curves import Curve, Panel, picture, status_of
from protocols import drop_slot, insert_rows, measure
from psycopg.conninfo import make_conninfo

from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses

_DATABASE = "bench_bounds"
#: What the relay must stay below, in MB.
_LIMIT_MB = 200
_PATIENCE_SECONDS = 3_600
#: A statement of the large transaction inserts so many rows.
_STATEMENT_ROWS = 1_000_000
#: Of the relay that was only stopped.
_REFERENCE_ROWS = 500_000


def main() -> int:
    """Measure what is asked for, and print one JSON line of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--transaction", type=int, default=0, metavar="ROWS", help="one so large transaction")
    parser.add_argument("--outage", type=int, default=0, metavar="SECONDS", help="Kafka is down so long")
    parser.add_argument(
        "--protocols", type=int, default=0, metavar="ROWS", help="compare pgoutput's protocols"
    )
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write curves and pictures there")
    add_sandbox_option(parser)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="bwtui-bench-") as folder:
        os.environ["BWTUI_STATE_HOME"] = f"{folder}/state"
        place = arguments.sandbox or Path(folder) / "sandbox"
        with services_in(place, arguments.sandbox) as services:
            for name, figures in _measured(arguments, services, Sandbox(place)):
                if arguments.write and "samples" in figures:
                    _write(arguments.write, name, figures)
                figures.pop("samples", None)
                print(json.dumps({"what": name, **figures}), flush=True)
    return 0


def _measured(
    arguments: argparse.Namespace, services: ServiceAddresses, sandbox: Sandbox
) -> Iterator[tuple[str, dict[str, Any]]]:
    with _database(services.postgres) as dsn:
        if arguments.protocols:
            for figures in measure(dsn, arguments.protocols, insert_rows):
                yield "protocols", {**figures, **_machine()}
        if arguments.transaction:
            yield "transaction", {**_transaction(services, dsn, arguments.transaction), **_machine()}
        if arguments.outage:
            yield "outage", {**_outage(services, sandbox, dsn, arguments.outage), **_machine()}


@contextlib.contextmanager
def _database(superuser: str) -> Iterator[str]:
    def run(*statements: str) -> None:
        with contextlib.closing(psycopg2.connect(superuser)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            for statement in statements:
                cursor.execute(statement)

    run(f"drop database if exists {_DATABASE} with (force)", f"create database {_DATABASE}")
    dsn = make_conninfo(superuser, dbname=_DATABASE)
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(f"{INSERTS} create publication bench for all tables")
    try:
        yield dsn
    finally:
        with contextlib.closing(psycopg2.connect(superuser)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute(f"select slot_name from pg_replication_slots where database = '{_DATABASE}'")
            for (slot,) in cursor.fetchall():
                drop_slot(cursor, slot)
        run(f"drop database {_DATABASE} with (force)")


# -- a relay -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _relay(services: ServiceAddresses, dsn: str, slot: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a relay that streams already when the block begins, and stop it in order behind it."""
    command = [*BWTUI, "connect", "--headless", "-x", "-s", slot, "-p", slot, "--publication", "bench"]
    process = subprocess.Popen(
        command, env={**environment(services), "BWTUI_POSTGRES": dsn}, stdout=subprocess.DEVNULL
    )
    try:
        _until(lambda: (status := status_of(slot)) is not None and status.state == "streaming")
        yield process
    finally:
        process.terminate()
        process.wait(60)
        _until(lambda: not _ask(dsn, "select active from pg_replication_slots where slot_name = %s", slot))


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the relay does not get there")
        time.sleep(0.05)


def _ask(dsn: str, sql: str, *args: Any) -> Any:
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(sql, args or None)
        return cursor.fetchall()[0][0] if cursor.description else None


def _acknowledged(slot: str) -> int:
    status = status_of(slot)
    return status.stages["acknowledge"].total if status is not None else 0


class Arrival:
    """Notes when the first message comes to the end of a topic, by a consumer of its own."""

    def __init__(self, services: ServiceAddresses, topic: str) -> None:
        settings = {"bootstrap.servers": services.broker, "group.id": uuid.uuid4().hex}
        self._consumer = Consumer(settings | {"fetch.wait.max.ms": 10, "enable.auto.commit": False})
        partitions = self._consumer.list_topics(topic, timeout=30).topics[topic].partitions
        places = [TopicPartition(topic, number) for number in partitions]
        for place in places:
            place.offset = self._consumer.get_watermark_offsets(place, 30)[1]
        self._consumer.assign(places)
        #: By the monotonic clock.
        self.at = 0.0
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def join(self) -> float:
        """Wait for the message, and return when it came."""
        self._thread.join()
        self._consumer.close()
        return self.at

    def _wait(self) -> None:
        while (message := self._consumer.poll(0.05)) is None or message.error() is not None:
            pass
        self.at = time.monotonic()


# -- one large transaction -----------------------------------------------------------------------------------


def _transaction(services: ServiceAddresses, dsn: str, rows: int) -> dict[str, Any]:
    slot = f"bounds_large_{os.getpid()}"
    with _relay(services, dsn, slot) as process:
        _ask(dsn, "truncate bench")
        # Topic and schemas are there, as with any table that is not new.
        _ask(dsn, "insert into bench (id) values (0)")
        _until(lambda: _acknowledged(slot) == 1)
        arrival = Arrival(services, f"{slot}.bench")
        curve = Curve(dsn, slot, process.pid)
        with (
            curve.going_on(),
            contextlib.closing(psycopg2.connect(dsn)) as connection,
            connection.cursor() as cursor,
        ):
            begun = time.monotonic()
            for low in range(1, rows + 1, _STATEMENT_ROWS):
                # Not by `fill`, which commits.
                cursor.execute(_rows(low, min(low + _STATEMENT_ROWS - 1, rows)))
            written = time.monotonic()
            connection.commit()
            committed = time.monotonic()
            curve.zero(committed)
            first = arrival.join()
            _until(lambda: _acknowledged(slot) > rows)
            end = time.monotonic()
            _until(lambda: curve.last("acknowledged") > rows and curve.last("lag_mb") < 1)
    return {
        "rows": rows,
        "write_seconds": round(written - begun, 2),
        "commit_seconds": round(committed - written, 2),
        "first_message_seconds": round(first - committed, 3),
        "rows_per_second": round(rows / (end - first)),
        "most_resident_mb": curve.most("resident_mb"),
        "most_walsender_mb": curve.most("walsender_mb"),
        "spilled_mb": curve.most("spilled_mb"),
        "most_lag_mb": curve.most("lag_mb"),
        "samples": curve.samples(),
    }


def _rows(low: int, high: int) -> str:
    return ROWS.format(low=str(low), high=str(high))


# -- Kafka is away -------------------------------------------------------------------------------------------


class _Writer:
    """Transactions of 100 rows, one after the other, as fast as one session can."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stop = threading.Event()
        self.rows = 0
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def end(self) -> int:
        """Stop, and return how many rows were written."""
        self._stop.set()
        self._thread.join()
        return self.rows

    def _write(self) -> None:
        with contextlib.closing(psycopg2.connect(self._dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute("set synchronous_commit = off")
            while not self._stop.is_set():
                cursor.execute("begin")
                cursor.execute(_rows(self.rows + 1, self.rows + 100))
                cursor.execute("commit")
                self.rows += 100


def _outage(services: ServiceAddresses, sandbox: Sandbox, dsn: str, seconds: int) -> dict[str, Any]:
    slot = f"bounds_outage_{os.getpid()}"
    _ask(services.postgres, "alter system set max_slot_wal_keep_size = '60GB'")
    _ask(services.postgres, "select pg_reload_conf()")
    _ask(dsn, "truncate bench")
    with _relay(services, dsn, slot) as process:
        curve = Curve(dsn, slot, process.pid)
        writer = _Writer(dsn)
        with curve.going_on():
            _until(lambda: _acknowledged(slot) > 10_000)
            sandbox.stop_service("kafka")
            down = time.monotonic()
            curve.zero(down)
            while time.monotonic() < down + seconds:
                time.sleep(0.2)
            rows = writer.end()
            before = _acknowledged(slot)
            sandbox.start_service("kafka")
            back = time.monotonic()
            _until(lambda: _acknowledged(slot) > before)
            going = time.monotonic()
            _until(lambda: _acknowledged(slot) >= rows)
            caught_up = time.monotonic()
            _until(lambda: curve.last("acknowledged") >= rows and curve.last("lag_mb") < 1)
    reference = _rate_after_a_stop(services, dsn, slot)
    return {
        "outage_seconds": round(back - down, 1),
        "rows": rows,
        "rows_written_per_second": round(rows / seconds),
        "first_acknowledged_seconds": round(going - back, 2),
        "catching_up_rows_per_second": round((rows - before) / (caught_up - going)),
        "rows_per_second_after_a_stop": reference,
        "caught_up_seconds": round(caught_up - back, 1),
        "most_resident_mb": curve.most("resident_mb"),
        "most_in_flight": curve.most("in_flight"),
        "most_lag_mb": curve.most("lag_mb"),
        "said": [(round(at - down, 1), sentence) for at, sentence in sorted(curve.said.values())],
        "samples": curve.samples(),
    }


def _rate_after_a_stop(services: ServiceAddresses, dsn: str, slot: str) -> int:
    """Return the rate at which a relay reads a backlog that nothing but its stop has left."""
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute("truncate bench")
        cursor.execute("set synchronous_commit = off")
        cursor.execute("call fill(%s)", [_REFERENCE_ROWS])
    with _relay(services, dsn, slot):
        _until(lambda: _acknowledged(slot))
        first, begun = _acknowledged(slot), time.monotonic()
        _until(lambda: _acknowledged(slot) >= _REFERENCE_ROWS)
        return round((_REFERENCE_ROWS - first) / (time.monotonic() - begun))


# -- what is written -----------------------------------------------------------------------------------------


def _write(folder: Path, name: str, figures: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
    samples = figures["samples"]
    seconds = [sample["seconds"] for sample in samples]
    panels = [
        Panel(f"relay, resident MB (limit {_LIMIT_MB})", [s["resident_mb"] for s in samples], _LIMIT_MB),
        Panel("WAL between the end and what is confirmed, MB", [s["lag_mb"] for s in samples]),
        Panel("messages acknowledged, millions", [s["acknowledged"] / 1e6 for s in samples]),
    ]
    if name == "transaction":
        panels.insert(1, Panel("walsender, own MB", [s["walsender_mb"] for s in samples]))
        title = f"One transaction of {figures['rows']:,} rows"
        marks = [(0.0, "COMMIT")]
    else:
        panels.insert(2, Panel("messages in flight", [s["in_flight"] for s in samples]))
        title = f"Kafka down for {figures['outage_seconds']:.0f} s, with writes at full rate"
        marks = [(0.0, "Kafka is down"), (figures["outage_seconds"], "Kafka is back, no more writes")]
    (folder / f"{name}.svg").write_text(picture(title, seconds, panels, marks))


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "system": platform.system(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main())
