"""The two ways of a first snapshot, in turn over the same table: ``--snapshot-by export`` and ``chunks``.

Run ``make bench-snapshot``, or ``python benchmarks/first_snapshot.py`` in the checkout. It starts a sandbox
of its own, or takes one that runs, and fills one 7-column table. Each run is of a slot of its own, with
topics of its own; time, CPU and memory are those of the relay and its workers. A number among --ways is
``export`` by so many workers. A row is written once the first are sent, and how long the stream takes to
bring it is what a reader waits for the first change. With --kill-at PERCENT the relay is killed once so much
is sent, and started again: what it sends in all, beside the rows of the table, is what the kill costs.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg2
from bench_table import BWTUI, INSERTS, ROWS, add_sandbox_option, environment, services_in
from psycopg.conninfo import make_conninfo

from bwtui.errors import ConnectionFailed
from bwtui.model.status import Status
from bwtui.relay.process.control import request
from bwtui.sandbox.supervisor import Services

_DATABASE = "bench_first"
_WAYS = {
    "export": ("--snapshot-by", "export", "--snapshot-workers", "1"),
    "chunks": ("--snapshot-by", "chunks", "--snapshot-workers", "1"),
}


def main() -> int:
    """Run all pairs, and print one JSON line a run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500_000, help="rows of the table (default 500,000)")
    parser.add_argument("--pairs", type=int, default=2, help="how often each way is taken (default 2)")
    parser.add_argument("--kill-at", type=int, default=0, metavar="PERCENT", help="kill once, at so much")
    parser.add_argument("--ways", default="export,chunks", help="in which order (default export,chunks)")
    add_sandbox_option(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bwtui-bench-") as folder:
        os.environ["BWTUI_STATE_HOME"] = f"{folder}/state"
        with services_in(Path(folder) / "sandbox", arguments.sandbox) as services:
            for figures in _measure(services, arguments):
                print(json.dumps(figures), flush=True)
    return 0


def _measure(services: Services, arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    dsn = _table(services.postgres, arguments.rows)
    for number in range(arguments.pairs):
        for way in arguments.ways.split(","):
            slot = f"first_{way}_{os.getpid()}_{number}"
            with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
                connection.autocommit = True
                yield {"way": way, **_run(services, dsn, slot, way, cursor, arguments)}
                cursor.execute("select pg_drop_replication_slot(%s)", [slot])
                cursor.execute("delete from bench where id < 0")


def _table(superuser: str, rows: int) -> str:
    with contextlib.closing(psycopg2.connect(superuser)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(f"drop database if exists {_DATABASE} with (force)")
        cursor.execute(f"create database {_DATABASE}")
    dsn = make_conninfo(superuser, dbname=_DATABASE)
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(INSERTS)
        cursor.execute(ROWS.format(low="1", high=str(rows)))
        cursor.execute("vacuum analyze bench")
        cursor.execute("checkpoint")
    return dsn


def _run(
    services: Services,
    dsn: str,
    slot: str,
    way: str,
    cursor: "psycopg2.extensions.cursor",
    arguments: argparse.Namespace,
) -> dict[str, object]:
    begin = time.monotonic()
    sent = killed = cpu = 0.0
    resident = 0
    process = _start(services, dsn, slot, way)
    first_change = None
    written, wrote_at = 0, 0.0
    is_written = False
    while True:
        status = _status(slot)
        resident = max(resident, status.resident_bytes if status is not None else 0)
        if status is not None and "public.bench" in status.tables:
            table = status.tables["public.bench"]
            if not is_written and table.snapshot_rows:
                # Once the slot's place is fixed: it comes through the stream.
                written, is_written = written + 1, True
                cursor.execute("insert into bench (id) values (%s)", [-written])
                wrote_at = wrote_at or time.monotonic()
            if is_written and first_change is None and table.inserts:
                first_change = time.monotonic() - wrote_at
            share = 100 * table.snapshot_rows / arguments.rows
            if arguments.kill_at and not killed and share >= arguments.kill_at:
                sent += table.messages
                cpu += status.cpu_seconds
                process.kill()
                process.wait()
                killed = time.monotonic() - begin
                # That row was sent, or stands in the next export: another one shows that the stream goes on.
                is_written = False
                process = _start(services, dsn, slot, way)
            elif status.state == "streaming" and table.inserts and not status.first_snapshot:
                break
        assert process.poll() is None, f"the relay ended with {process.returncode}"
        time.sleep(0.02)
    seconds = time.monotonic() - begin
    request(slot, {"request": "stop"})
    _, code, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    cpu += usage.ru_utime + usage.ru_stime
    sent += status.tables["public.bench"].messages if status else 0
    return {
        "rows_per_second": round(arguments.rows / seconds),
        "seconds": round(seconds, 1),
        "cpu_us_per_row": round(cpu / arguments.rows * 1e6, 2),
        "resident_mb": round(resident / 2**20),
        "first_change_seconds": round(first_change or 0, 2),
        "killed_after": round(killed, 1),
        "sent": round(sent),
    }


def _start(services: Services, dsn: str, slot: str, way: str) -> "subprocess.Popen[bytes]":
    options: Sequence[str] = [
        "-s",
        slot,
        "-p",
        slot,
        "--headless",
        *_WAYS.get(way, ("--snapshot-workers", way)),
    ]
    return subprocess.Popen(
        [*BWTUI, "connect", *options],
        env={**environment(services), "BWTUI_POSTGRES": dsn},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _status(slot: str) -> Status | None:
    try:
        return Status.from_json(request(slot, {"request": "status"}))
    except ConnectionFailed:
        return None


if __name__ == "__main__":
    sys.exit(main())
