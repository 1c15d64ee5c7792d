"""Rows a second, CPU and memory of the whole relay, beside what PostgreSQL itself can send.

Run ``make bench``, or ``python benchmarks/relay.py`` in the checkout. It starts a sandbox of its own, writes
a backlog of one 7-column table in transactions of 100 rows, and has everybody read the very same WAL:

* pg_recvlogical to /dev/null, where it is installed (the sandbox's PostgreSQL comes without client programs);
* a loop over libpq that reads and discards, which is always there;
* ``bwtui connect --headless --json -x --until-caught-up``, from a slot that was made before the backlog;
* with --pairs N the same N times more, without and with --record in turn, or what else --pairs-of names;
* with --with-ui the same with the screens open in a pseudo-terminal;
* and then a snapshot of the table.

With --toast the rows of the backlog are updates that leave a large value as it is, which the relay fetches.

Each reader runs alone, but PostgreSQL, Kafka and the registry share the machine with it.
"""

import argparse
import contextlib
import json
import os
import platform
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg2
import recvlogical
from bench_table import (
    BWTUI,
    INSERTS,
    ROWS_A_TRANSACTION,
    TOASTED,
    add_sandbox_option,
    database,
    environment,
    services_in,
)
from psycopg import pq
from psycopg.conninfo import make_conninfo
from rich.console import Console
from rich.table import Table

from bwtui.errors import BwtuiError
from bwtui.model.status import Status
from bwtui.relay.process import outcome
from bwtui.relay.process.control import request
from bwtui.sandbox.sandbox import ServiceAddresses

#: What a pair's second run may have that the first has not; the word is part of a slot's name.
PAIRED = {"recorded": ["--record", "{folder}/recording"], "exactly": ["--exactly-once"]}


@dataclass(frozen=True, slots=True)
class Figures:
    """What one reader needed for the backlog."""

    what: str
    rows: int
    #: From the start of the process, or of the stream, to its end.
    seconds: float
    #: Between the first and the last report while rows were moving, or None.
    steady_rows_per_second: float | None = None
    cpu_us_per_row: float | None = None
    max_resident_mb: float | None = None

    @property
    def rows_per_second(self) -> float:
        """Rows by the whole time."""
        return self.rows / self.seconds


def main() -> int:
    """Run all parts, print the table, and one JSON line at the end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the backlog (default 1,000,000)")
    parser.add_argument("--with-ui", action="store_true", help="also with the screens in a pseudo-terminal")
    parser.add_argument("--pairs", type=int, default=0, help="pairs without and with it (default 0)")
    parser.add_argument("--pairs-of", choices=PAIRED, default="recorded", help="what (default recorded)")
    parser.add_argument("--postgres", type=int, default=18, help="major version (default 18)")
    parser.add_argument("--toast", action="store_true", help="updates with unchanged TOAST values")
    parser.add_argument(
        "--transaction", type=int, default=ROWS_A_TRANSACTION, help="rows a transaction with --toast"
    )
    add_sandbox_option(parser)
    arguments = parser.parse_args()
    a_transaction = arguments.transaction if arguments.toast else ROWS_A_TRANSACTION
    rows = max(arguments.rows // a_transaction, 1) * a_transaction
    try:
        with _services(arguments.postgres, arguments.sandbox) as services:
            figures = list(_measure(services, rows, a_transaction, arguments))
    except BwtuiError as error:
        print(f"bwtui: error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    _print(figures, rows, a_transaction)
    return 0


@contextlib.contextmanager
def _services(major: int, running: Path | None) -> Iterator[ServiceAddresses]:
    """Services and a state folder; what is made for them is gone afterwards, also after Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="bwtui-bench-") as folder:
        os.environ["BWTUI_STATE_HOME"] = f"{folder}/state"
        with services_in(Path(folder) / "sandbox", running, major) as services:
            yield services


def _measure(
    services: ServiceAddresses, rows: int, a_transaction: int, arguments: argparse.Namespace
) -> Iterator[Figures]:
    dsn = database(services.postgres)
    paired = [
        f"bench_{kind}_{number}"
        for number in range(arguments.pairs)
        for kind in ("plain", arguments.pairs_of)
    ]
    streamed = ["bench_headless", *(["bench_ui"] if arguments.with_ui else []), *paired]
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        table = TOASTED.format(rows=rows, a_transaction=a_transaction) if arguments.toast else INSERTS
        cursor.execute(f"{table} create publication bench for all tables")
        # The relay makes its own slots, on the still empty table, and is caught up at once.
        for slot in streamed:
            _run_relay(services, dsn, slot, ["-x"])
        for slot in ("bench_recv", "bench_raw"):
            cursor.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        _say(f"writing {rows:,} rows")
        cursor.execute("set synchronous_commit = off")
        cursor.execute("call fill(%s)", [rows])
        cursor.execute("checkpoint")
        cursor.execute("select pg_current_wal_flush_lsn()::text")
        end = str(cursor.fetchall()[0][0])
    program = recvlogical.program()
    if program:
        yield _pg_recvlogical(program, dsn, end, rows)
    yield _raw_loop(dsn, rows, rows // a_transaction)
    yield _stream(services, dsn, "bench_headless", rows)
    yield from _pairs(services, dsn, arguments.pairs_of, paired, rows)
    if arguments.with_ui:
        yield _stream_with_ui(services, dsn, "bench_ui", rows)
    yield _snapshot(services, dsn, rows)


def _pg_recvlogical(program: str, dsn: str, end: str, rows: int) -> Figures:
    name = f"pg_recvlogical {recvlogical.version(program)}"
    _say(name)
    return Figures(name, rows, recvlogical.seconds(program, dsn, "bench_recv", "bench", end))


def _raw_loop(dsn: str, rows: int, expected: int) -> Figures:
    """Read and discard in this process, until the last transaction's COMMIT."""
    _say("a loop over libpq that reads and discards")
    connection = pq.PGconn.connect(make_conninfo(dsn, replication="database").encode())
    assert connection.status == pq.ConnStatus.OK, connection.get_error_message()
    begin, cpu = time.monotonic(), time.process_time()
    started = connection.exec_(
        b"START_REPLICATION SLOT bench_raw LOGICAL 0/0 (proto_version '1', publication_names 'bench')"
    )
    assert started.status == pq.ExecStatus.COPY_BOTH, started.error_message
    commits, read = 0, connection.get_copy_data
    while commits < expected:
        _, data = read(0)
        # A COMMIT ("C") in an XLogData frame ("w"), whose header has 25 bytes.
        commits += data[0] == 0x77 and data[25] == 0x43
    seconds, used = time.monotonic() - begin, time.process_time() - cpu
    connection.finish()
    return Figures("libpq loop, discards", rows, seconds, cpu_us_per_row=used / rows * 1e6)


def _stream(services: ServiceAddresses, dsn: str, slot: str, rows: int) -> Figures:
    _say("bwtui connect --headless --json -x --until-caught-up")
    return _run_relay(services, dsn, slot, ["-x"], "bwtui: stream", rows)


def _pairs(
    services: ServiceAddresses, dsn: str, what: str, slots: Sequence[str], rows: int
) -> Iterator[Figures]:
    """Stream into Kafka, with ``what`` at every second slot; what that costs is said at the end."""
    found: dict[str, list[Figures]] = {"plain": [], what: []}
    for slot in slots:
        kind = slot.split("_")[1]
        with tempfile.TemporaryDirectory(prefix="bwtui-bench-") as folder:
            extra = ["-x", *(option.format(folder=folder) for option in PAIRED.get(kind, []))]
            _say(f"bwtui connect {' '.join(extra)}")
            one = _run_relay(services, dsn, slot, extra, f"bwtui: stream, {kind}", rows)
        found[kind].append(one)
        yield one
    pairs = list(zip(found["plain"], found[what], strict=True))
    for name, figure in (("rows/s", _rate), ("CPU a row", _cpu)) if pairs else ():
        ratios = sorted(figure(with_it) / figure(without) for without, with_it in pairs)
        _say(f"{what} against plain, {name}, each pair: {', '.join(f'{ratio:.3f}' for ratio in ratios)}")


def _rate(one: Figures) -> float:
    return one.steady_rows_per_second or one.rows_per_second


def _cpu(one: Figures) -> float:
    assert one.cpu_us_per_row is not None
    return one.cpu_us_per_row


def _snapshot(services: ServiceAddresses, dsn: str, rows: int) -> Figures:
    _say("bwtui connect --headless --json --until-caught-up, with a snapshot")
    return _run_relay(services, dsn, "bench_snapshot", [], "bwtui: snapshot", rows)


def _command(slot: str, *extra: str) -> list[str]:
    """Return a relay's command; each slot gets topics of its own, so that no reader warms another's."""
    options = ["-s", slot, "-p", slot, "--publication", "bench", "--until-caught-up"]
    return [*BWTUI, "connect", *options, *extra]


def _run_relay(
    services: ServiceAddresses, dsn: str, slot: str, extra: Sequence[str], what: str = "", rows: int = 0
) -> Figures:
    """Run a headless relay to its end; what it used is what the kernel says of its process."""
    begin = time.monotonic()
    process = subprocess.Popen(
        _command(slot, "--headless", "--json", *extra),
        env={**environment(services), "BWTUI_POSTGRES": dsn},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        seen = [Status.from_json(json.loads(line)) for line in lines]
    _, code, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    seconds = time.monotonic() - begin
    if process.returncode:
        raise BwtuiError(f"the relay ended with exit code {process.returncode}", "its error is above")
    moved = _messages(seen[-1])
    if moved != rows:
        raise BwtuiError(f"the relay sent {moved:,} messages and not {rows:,}", "the figures would be wrong")
    cpu = usage.ru_utime + usage.ru_stime
    # Linux counts kilobytes, macOS bytes.
    resident = usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1024)
    return Figures(what, rows, seconds, _steady(seen), cpu / rows * 1e6 if rows else None, resident)


def _messages(status: Status) -> int:
    return sum(table.messages for table in status.tables.values())


def _steady(seen: Sequence[Status]) -> float | None:
    """Return the rate between the reports in the middle, where neither the start nor the end counts."""
    last = _messages(seen[-1])
    points = [(status.time, _messages(status)) for status in seen if 0 < _messages(status) < last]
    if len(points) < 2 or points[-1][0] <= points[0][0]:
        return None
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


def _stream_with_ui(services: ServiceAddresses, dsn: str, slot: str, rows: int) -> Figures:
    """Run a relay under its screens, 200 columns by 60 lines, and look at it through its control socket."""
    _say("bwtui connect -x --until-caught-up, with the screens in a pseudo-terminal")
    command = _command(slot, "-x")
    screen = {"TERM": "xterm-256color", "COLUMNS": "200", "LINES": "60"}
    here = {**environment(services), "BWTUI_POSTGRES": dsn, **screen}
    begin = time.monotonic()
    child, terminal = pty.fork()
    if child == 0:
        os.execve(command[0], command, here)
    drain = threading.Thread(target=_drain, args=[terminal], daemon=True)
    drain.start()
    try:
        seen = list(_watch(slot, begin + 60))
        seconds = time.monotonic() - begin
    finally:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        os.close(terminal)
    ended = outcome.read(slot)
    if ended is None or ended.status is None or _messages(ended.status) != rows:
        raise BwtuiError("the relay under the screens did not send every row", "the figures would be wrong")
    resident = max(status.resident_bytes for status in [*seen, ended.status]) / 1024 / 1024
    cpu = ended.status.cpu_seconds / rows * 1e6
    return Figures(
        "bwtui: stream, screens open", rows, seconds, _steady([*seen, ended.status]), cpu, resident
    )


def _drain(terminal: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(terminal, 65536):
            pass


def _watch(slot: str, start_before: float) -> Iterator[Status]:
    """Yield the relay's status every fifth of a second, until the relay is gone."""
    found = False
    while True:
        try:
            yield Status.from_json(request(slot, {"request": "status"}))
            found = True
        except BwtuiError:
            if found:
                return
            if time.monotonic() > start_before:
                raise
        time.sleep(0.2)


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _print(figures: Sequence[Figures], rows: int, a_transaction: int) -> None:
    table = Table(title=f"{rows:,} rows of 7 columns, {a_transaction} a transaction", title_justify="left")
    table.add_column("reader")
    for name in ("rows/s", "steady rows/s", "CPU µs/row", "max MB"):
        table.add_column(name, justify="right")
    for one in figures:
        table.add_row(
            one.what,
            f"{one.rows_per_second:,.0f}",
            _cell(one.steady_rows_per_second, ",.0f"),
            _cell(one.cpu_us_per_row, ".1f"),
            _cell(one.max_resident_mb, ",.0f"),
        )
    Console(highlight=False).print(table)
    print(json.dumps({"rows": rows, "machine": _machine(), "figures": [_as_json(one) for one in figures]}))


def _as_json(one: Figures) -> dict[str, Any]:
    return {**asdict(one), "rows_per_second": round(one.rows_per_second)}


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main())
