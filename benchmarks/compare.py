"""Seconds, CPU and memory of ``bwtui verify --database`` on a large table of which some rows differ.

Run ``make bench-compare``, or ``python benchmarks/compare.py`` in the checkout. It starts a sandbox of its
own, fills one 7-column table, and has a relay snapshot it. Then the slot is dropped, and a third each of
``--differences`` rows are updated, deleted and inserted, so that the topic lacks them. A relay with a new
slot runs while the table is compared with its topic, ``--runs`` times; each must find just these rows.

``cpu_seconds`` are the command's; PostgreSQL and Kafka share the machine. ``--folder DIR`` keeps sandbox and
topic there, and takes them from there the next time. With ``--against FOLDER``, another checkout's, every run
is made with both in turn, and their ratios are told.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
from audited import in_turn
from bench_table import (
    BWTUI,
    INSERTS,
    ROWS,
    add_sandbox_option,
    database,
    environment,
    make_topic,
    services_in,
)
from processes import watched
from psycopg.conninfo import make_conninfo

from bwtui.errors import BwtuiError
from bwtui.sandbox.sandbox import ServiceAddresses

TOPIC = "bench"
_AT_ONCE = 500_000


def main() -> int:
    """Compare, and print one line of JSON a run."""
    arguments = _arguments()
    with contextlib.ExitStack() as stack:
        folder = arguments.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bwtui-bench-")))
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["BWTUI_STATE_HOME"] = f"{folder.absolute()}/state"
        try:
            kept = arguments.folder is not None
            services = stack.enter_context(services_in(folder / "sandbox", arguments.sandbox, keep=kept))
            _run(services, folder, arguments)
        except BwtuiError as error:
            print(f"bwtui: error: {error.message}\nhint: {error.hint}", file=sys.stderr)
            return error.exit_code
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="default 1,000,000")
    parser.add_argument("--differences", type=int, default=999, help="a multiple of three (default 999)")
    parser.add_argument("--partitions", type=int, default=4, help="of the topic (default 4)")
    parser.add_argument("--runs", type=int, default=3, help="default 3")
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--folder", type=Path, help="keep sandbox and topic there")
    add_sandbox_option(parser)
    return parser.parse_args()


def _run(services: ServiceAddresses, folder: Path, arguments: argparse.Namespace) -> None:
    made = folder / "made"
    if made.exists():
        dsn = make_conninfo(services.postgres, dbname="bench")
    else:
        dsn = _make(services, arguments)
        made.touch()

    def run(_: str, tree: Path, __: int) -> dict[str, Any]:
        return _compare(services, dsn, tree, arguments.differences)

    with _relaying(services, dsn):
        in_turn(arguments.runs, arguments.against, run, "seconds")


def _make(services: ServiceAddresses, arguments: argparse.Namespace) -> str:
    dsn = database(services.postgres)
    make_topic(services, TOPIC, arguments.partitions)
    third = arguments.differences // 3
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(INSERTS)
        for low in range(1, arguments.rows + 1, _AT_ONCE):
            cursor.execute(ROWS.format(low=low, high=min(low + _AT_ONCE - 1, arguments.rows)))
        cursor.execute("vacuum analyze bench")
        _connect(services, dsn, "--until-caught-up")
        subprocess.run([*BWTUI, "slots", "drop", "bench", "-d", dsn, "--yes"], check=True)
        # Spread over the whole table.
        step = max(1, arguments.rows // max(1, third))
        some = "where id in (select %s + n * %s from generate_series(0, %s) n)"
        cursor.execute(f"update bench set a = a + 1 {some}", [1, step, third - 1])
        cursor.execute(f"delete from bench {some}", [2, step, third - 1])
        above = arguments.rows
        cursor.execute(ROWS.format(low=above + 1, high=above + third))
        # The new slot is behind what is lost.
        _connect(services, dsn, "-x", "--until-caught-up")
    return dsn


def _connect(services: ServiceAddresses, dsn: str, *args: str) -> None:
    command = [*BWTUI, "connect", "--headless", "-d", dsn, "-s", "bench", *args]
    subprocess.run(command, env=environment(services), check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def _relaying(services: ServiceAddresses, dsn: str) -> Iterator[None]:
    command = [*BWTUI, "connect", "--headless", "-d", dsn, "-s", "bench"]
    with subprocess.Popen(command, env=environment(services), stdout=subprocess.DEVNULL) as relay:
        try:
            yield
        finally:
            relay.terminate()


def _compare(services: ServiceAddresses, dsn: str, tree: Path, differences: int) -> dict[str, Any]:
    begin = time.monotonic()
    process = subprocess.Popen(
        [*BWTUI, "verify", "--database", "-d", dsn, "-s", "bench", "--json"],
        cwd=tree,
        env={**environment(services), "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with watched(process.pid) as used, process.stdout as output:
        told = json.loads(output.read() or "null")
        process.wait()
        end = time.monotonic()
    if told is None:
        raise BwtuiError(f"verify ended with exit code {process.returncode}", "its error is above")
    found = {name: count for name, count in told["classes"].items() if count}
    if sum(found.values()) != differences:
        raise BwtuiError(f"verify found {found}", f"it should find {differences}")
    return {
        "rows": told["expected"],
        "found": found,
        "seconds": round(end - begin, 2),
        "cpu_seconds": round(sum(used.cpu.values()), 1),
        "peak_mb": used.peak_mb["all"],
        "load": round(os.getloadavg()[0], 2),
    }


if __name__ == "__main__":
    sys.exit(main())
