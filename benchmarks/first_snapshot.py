"""Ways of a first snapshot, in turn over the same table: ``--snapshot-by export`` and ``chunks``, and others.

Run ``make bench-snapshot``, or ``python benchmarks/first_snapshot.py`` in the checkout. It starts a sandbox
of its own, or takes one that runs, and fills one 7-column table. Each run is of a slot of its own, with
topics of its own; time, CPU and memory are those of the relay and its workers. A number among --ways is
``export`` by so many workers, and ``spark`` by two executors of a cluster on this machine, which needs the
packages of ``make venv``: their Java is in ``cpu_us_per_row``, and in ``executors_mb``.

A row is written once the first are sent, and how long the stream takes to bring it is what a reader waits for
the first change. With --kill-at PERCENT the relay is killed once so much is sent, and started again: what it
sends in all, beside the rows of the table, is what the kill costs. With --kill-worker-at it is a worker that
is killed, or on Spark an executor with all that it runs. Memory is in millions of bytes; on Spark the
driver's Java is in no figure of it. With --compare ``bwtui verify --database`` compares the topic with the
table behind each run. --write FILE adds the runs to those of a file, of which ``benchmarks.debezium.page``
makes a table.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2
from bench_table import BWTUI, INSERTS, ROWS, add_sandbox_option, environment, services_in
from processes import Seen, below, cpu_of
from psycopg.conninfo import make_conninfo

from bwtui.errors import ConnectionFailed
from bwtui.model.status import Status
from bwtui.relay.process.control import request
from bwtui.sandbox.sandbox import ServiceAddresses

_DATABASE = "bench_first"
_WAYS = {
    "export": ("--snapshot-by", "export", "--snapshot-workers", "1"),
    "chunks": ("--snapshot-by", "chunks", "--snapshot-workers", "1"),
}


def main() -> int:
    """Run all pairs, and print one JSON line a run."""
    arguments = _arguments()
    # Some of it is what tests and other benchmarks have.
    sys.path.append(str(Path(__file__).parents[1]))
    from benchmarks.debezium import results

    kept = _kept(arguments.write, arguments.rows) if arguments.write is not None else None
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bwtui-bench-")))
        os.environ["BWTUI_STATE_HOME"] = f"{folder}/state"
        services = stack.enter_context(services_in(folder / "sandbox", arguments.sandbox))
        if "spark" in arguments.ways.split(","):
            # Out of pyspark's jars.
            from tests.pipeline.cluster import spark_cluster

            cluster = folder / "cluster"
            cluster.mkdir()
            master = stack.enter_context(spark_cluster(cluster, memory="1g"))
            _WAYS["spark"] = ("--spark-master", master, "--snapshot-workers", "2")
        for figures in _measure(services, arguments):
            print(json.dumps(figures), flush=True)
            if kept is not None:
                kept["runs"].append(figures)
                results.write_file(arguments.write, kept)
    return 0


def _kept(path: Path, rows: int) -> dict[str, Any]:
    """Return what runs are added to."""
    from benchmarks.debezium import results

    begun: dict[str, Any] = {"rows": rows, "machine": results.machine(), "runs": []}
    kept = results.read_file(path) or begun
    if any(kept[name] != begun[name] for name in ("rows", "machine")):
        raise SystemExit(f"{path} was measured on another machine, or with other rows: name another file")
    return kept


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500_000, help="rows of the table (default 500,000)")
    parser.add_argument("--pairs", type=int, default=2, help="how often each way is taken (default 2)")
    parser.add_argument(
        "--kill-at", type=int, default=0, metavar="PERCENT", help="kill the relay, at so much"
    )
    parser.add_argument("--kill-worker-at", type=int, default=0, metavar="PERCENT", help="or a worker")
    parser.add_argument("--compare", action="store_true", help="compare the topic with the table")
    parser.add_argument("--ways", default="export,chunks", help="in which order (default export,chunks)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="add the runs to those of FILE")
    add_sandbox_option(parser)
    arguments = parser.parse_args()
    if arguments.kill_at and (arguments.kill_worker_at or "spark" in arguments.ways.split(",")):
        parser.error("--kill-at goes with neither --kill-worker-at nor the way spark")
    return arguments


def _measure(services: ServiceAddresses, arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    dsn = _table(services.postgres, arguments.rows)
    for number in range(arguments.pairs):
        for way in arguments.ways.split(","):
            slot = f"first_{way}_{os.getpid()}_{number}"
            with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
                connection.autocommit = True
                run = _Run(services, dsn, slot, way, cursor, arguments)
                try:
                    figures = run.figures()
                finally:
                    run.clear_up()
                yield {"way": way, **figures}


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


@dataclass
class _Run:
    """One snapshot, from the start of the relay to its stream."""

    services: ServiceAddresses
    dsn: str
    slot: str
    way: str
    cursor: "psycopg2.extensions.cursor"
    arguments: argparse.Namespace
    #: Of relays that were killed: messages and CPU seconds.
    sent: int = 0
    cpu: float = 0.0
    killed: float = 0.0
    resident: int = 0
    #: What Spark's executors have used, by process.
    executors: dict[int, Seen] = field(default_factory=dict)
    executors_resident: int = 0
    looked_at: float = 0.0

    def figures(self) -> dict[str, object]:
        self.begin = time.monotonic()
        self.process = self._start()
        first_change = None
        written, wrote_at = 0, 0.0
        self.is_written = False
        while True:
            status = self._status()
            if status is not None and "public.bench" in status.tables:
                self.resident = max(self.resident, status.resident_bytes)
                table = status.tables["public.bench"]
                if not self.is_written and table.snapshot_rows:
                    # Once the slot's place is fixed: it comes through the stream.
                    written, self.is_written = written + 1, True
                    self.cursor.execute("insert into bench (id) values (%s)", [-written])
                    wrote_at = wrote_at or time.monotonic()
                if self.is_written and first_change is None and table.inserts:
                    first_change = time.monotonic() - wrote_at
                is_through = status.state == "streaming" and table.inserts and not status.first_snapshot
                if not self._kills(status) and is_through:
                    break
            assert self.process.poll() is None, f"the relay ended with {self.process.returncode}"
            self._look_at_executors()
            # Each look costs the relay a millisecond of its CPU.
            time.sleep(0.1)
        seconds = time.monotonic() - self.begin
        self._look_at_executors(at_once=True)
        differences = None
        if self.arguments.compare:
            before = cpu_of(self.process.pid)
            differences = self._differences()
            self.cpu -= cpu_of(self.process.pid) - before
        return {**self._end(status, seconds, first_change or 0.0), "differences": differences}

    def clear_up(self) -> None:
        """Leave nothing behind."""
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(psycopg2.Error):
            self.cursor.execute("select pg_drop_replication_slot(%s)", [self.slot])
        self.cursor.execute("delete from bench where id < 0")

    def _start(self) -> "subprocess.Popen[bytes]":
        options = _WAYS.get(self.way, ("--snapshot-workers", self.way))
        return subprocess.Popen(
            [*BWTUI, "connect", "-s", self.slot, "-p", self.slot, "--headless", *options],
            env={**environment(self.services), "BWTUI_POSTGRES": self.dsn},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _status(self) -> Status | None:
        try:
            return Status.from_json(request(self.slot, {"request": "status"}))
        except ConnectionFailed:
            return None

    def _kills(self, status: Status) -> bool:
        """Kill what is to be killed, once it is time; return whether that was the relay."""
        table, arguments = status.tables["public.bench"], self.arguments
        share = 100 * table.snapshot_rows / arguments.rows
        workers = [worker for worker in status.snapshot_workers if worker.rows]
        if self.killed:
            return False
        if arguments.kill_worker_at and share >= arguments.kill_worker_at and workers:
            self.killed = time.monotonic() - self.begin
            self._look_at_executors(at_once=True)
            java = [pid for pid in _executors() if workers[0].pid in below(pid)]
            os.kill(java[0] if java else workers[0].pid, signal.SIGKILL)
        elif arguments.kill_at and share >= arguments.kill_at:
            self.killed = time.monotonic() - self.begin
            self.sent += table.messages
            self.cpu += status.cpu_seconds
            self.process.kill()
            self.process.wait()
            # That row was sent, or stands in the next export: another one shows that the stream goes on.
            self.is_written = False
            self.process = self._start()
            return True
        return False

    def _look_at_executors(self, *, at_once: bool = False) -> None:
        if self.way != "spark" or (time.monotonic() < self.looked_at + 0.5 and not at_once):
            return
        self.looked_at = time.monotonic()
        now = {pid: seen for root in _executors() for pid, seen in below(root).items()}
        self.executors |= now
        resident = sum(seen.resident for seen in now.values())
        self.executors_resident = max(self.executors_resident, resident)

    def _differences(self) -> int:
        command = [*BWTUI, "verify", "--database", "-d", self.dsn, "-s", self.slot, "-p", self.slot, "--json"]
        done = subprocess.run(
            command, env=environment(self.services), capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        told = json.loads(done.stdout)
        assert told["expected"] >= self.arguments.rows, told
        return sum(told["classes"].values())

    def _end(self, status: Status, seconds: float, first_change: float) -> dict[str, object]:
        request(self.slot, {"request": "stop"})
        _, code, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(code)
        rows = self.arguments.rows
        cpu = self.cpu + usage.ru_utime + usage.ru_stime + sum(one.cpu for one in self.executors.values())
        return {
            "rows_per_second": round(rows / seconds),
            "seconds": round(seconds, 1),
            "cpu_us_per_row": round(cpu / rows * 1e6, 2),
            "resident_mb": round(self.resident / 1e6),
            "executors_mb": round(self.executors_resident / 1e6),
            "first_change_seconds": round(first_change, 2),
            "killed": ("worker" if self.arguments.kill_worker_at else "relay") if self.killed else None,
            "killed_after": round(self.killed, 1),
            "messages": self.sent + status.tables["public.bench"].messages,
        }


def _executors() -> list[int]:
    """Return the Java processes of a cluster's executors on this machine."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in place.read_bytes():
                found.append(int(place.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
