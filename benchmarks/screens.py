"""What the screens cost, and how soon they answer: in a pseudo-terminal, on services of its own.

Run ``make bench-screens``, or ``python benchmarks/screens.py`` in the checkout. It starts a sandbox, a relay
of eight tables, and ``bwtui attach`` and ``bwtui open`` beside it, and measures

* time and CPU from exec to the first picture, and to the first one with figures in it;
* key → picture: from the byte that was written until the screen that was meant stands whole, 40 ms after
  which nothing more has come; the first visit of a screen apart from all later ones;
* CPU of the screens' process with nothing to relay, at 2,000 rows/s, and over a recording that stands still;
* its memory after --minutes at 2,000 rows/s (30 for the figure of docs/benchmarks/measurements.md).

Where a live screen's next figures come right behind a picture, they count with it: p50 says more than max.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
from bench_table import BWTUI, add_sandbox_option, database, environment, services_in
from pseudo_terminal import Screens
from rich.console import Console
from rich.table import Table

from bwtui.errors import BwtuiError
from bwtui.relay.process.control import request
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.tui.base.actions import Kind, tabs

ROOT = Path(__file__).parents[1]
RECORDING = ROOT / "recordings" / "shop"
RELAY = "screens"
TABLES, ROWS_A_SECOND, BATCH = 8, 2000, 25
SIZES = ((160, 45), (250, 70))
_TABLE = """create table t{number} (id bigint generated always as identity primary key, a int4, b text,
n numeric(10,2), t timestamptz, ok bool, note text)"""
_ROWS = """insert into t{number} (a, b, n, t, ok, note)
select i, 'name ' || i, i / 100.0, clock_timestamp(), i % 3 = 0, repeat(md5(i::text), 3)
from generate_series(1, {rows}) i"""

Results = dict[str, Any]


def main() -> int:
    """Measure everything, print a table, and one JSON line at the end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=1.0, help="at 2,000 rows/s, for the memory (default 1)"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measured rest (default 20)")
    parser.add_argument("--rounds", type=int, default=5, help="visits of each screen (default 5)")
    parser.add_argument("--starts", type=int, default=5, help="starts of each command (default 5)")
    parser.add_argument("--code", type=Path, default=ROOT, help="a checkout whose screens are measured")
    parser.add_argument("--keys", help="visit the screens of just these: an older checkout may lack some")
    add_sandbox_option(parser)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="bwtui-bench-") as folder:
            os.environ["BWTUI_STATE_HOME"] = f"{folder}/state"
            with services_in(Path(folder) / "sandbox", arguments.sandbox) as services:
                results = Measuring(services, arguments).run()
    except BwtuiError as error:
        print(f"bwtui: error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    _print(results)
    return 0


class Measuring:
    """One run, over the services of one sandbox."""

    def __init__(self, services: ServiceAddresses, arguments: argparse.Namespace) -> None:
        self._services, self._arguments = services, arguments
        # An installed program has its bytecode; it is written by the first start, which does not count.
        self._environment = environment(services)
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def run(self) -> Results:
        """Measure the screens over a relay, and over a recording."""
        results: Results = {"machine": f"{platform.machine()}, {os.cpu_count()} cores"}
        with _relay(self._services) as dsn:
            for size in SIZES:
                results[f"live {size[0]}x{size[1]}"] = self._live(size, dsn)
        results["recording 160x45"] = self._recorded(SIZES[0])
        return results

    def _live(self, size: tuple[int, int], dsn: str) -> Results:
        _say(f"attach, {size[0]}×{size[1]}")
        found, screens = self._started(["attach", RELAY], size, "public.t1")
        with contextlib.closing(screens):
            screens.rest(5)
            found["idle"] = self._rest(screens)
            found["keys"] = self._keys(screens, "live")
            with _writing(dsn) as written:
                screens.rest(5)
                found["busy"] = self._rest(screens)
                found["keys_busy"] = self._keys(screens, "live")
                begun, first = time.monotonic(), screens.resident()
                screens.rest(self._arguments.minutes * 60)
                found["memory_mb"] = [round(size / 1e6, 1) for size in (first, screens.resident())]
                found["minutes"] = round((time.monotonic() - begun) / 60, 1)
            found["rows_per_second"] = round(written())
        return found

    def _recorded(self, size: tuple[int, int]) -> Results:
        _say(f"open, {size[0]}×{size[1]}")
        found, screens = self._started(["open", str(RECORDING)], size, "public.")
        with contextlib.closing(screens):
            screens.rest(5)
            found["idle"] = self._rest(screens)
            found["keys"] = self._keys(screens, "recording")
            found["keys"]["←"] = _of([screens.press("\x1b[D") for _ in range(10)])
        return found

    def _started(self, command: list[str], size: tuple[int, int], figure: str) -> tuple[Results, Screens]:
        """Start a command some times; return what that took, and the screens of the last time."""
        pictures: list[tuple[float, float]] = []
        whole: list[tuple[float, float]] = []
        for number in range(-1, self._arguments.starts):
            screens = Screens([*BWTUI, *command], size, self._environment, self._arguments.code.resolve())
            first = screens.wait_for(lambda text: "─╮" in text)
            second = screens.wait_for(lambda text: figure in text)
            if number >= 0:
                pictures.append(first)
                whole.append(second)
            if number < self._arguments.starts - 1:
                screens.rest(1)
                screens.close()
        found = {
            f"{name}_{what}": round(statistics.median(one[place] for one in times), 3)
            for name, times in (("first", pictures), ("figures", whole))
            for place, what in enumerate(("seconds", "cpu"))
        }
        return found, screens

    def _rest(self, screens: Screens) -> float:
        """Return the per cent of a core that the screens use while nobody touches them."""
        begun, before = time.monotonic(), screens.cpu()
        screens.rest(self._arguments.seconds)
        return round(100 * (screens.cpu() - before) / (time.monotonic() - begun), 2)

    def _keys(self, screens: Screens, kind: Kind) -> Results:
        """Visit every screen, some times; milliseconds of the first visit, and of the others."""
        wanted = self._arguments.keys
        modes = [
            (action.keys[0], mode.capitalize())
            for mode, action in tabs(kind).items()
            if wanted is None or action.keys[0] in wanted
        ]
        times: dict[str, list[float]] = {}
        for _ in range(1 + self._arguments.rounds):
            # From the second one on, so that the first key goes somewhere.
            for key, name in (*modes[1:], modes[0]):
                took = screens.press(key, lambda text, name=name: f"\n {name}" in text)  # type: ignore[misc]
                times.setdefault(f"{key} {name}", []).append(took)
                screens.rest(0.3)
        found: Results = {name: {"first": _ms(one[0]), **_of(one[1:])} for name, one in times.items()}
        found["all"] = {
            "first": _ms(max(one[0] for one in times.values())),
            **_of([took for one in times.values() for took in one[1:]]),
        }
        return found


def _of(seconds: list[float]) -> dict[str, float]:
    return {"p50": _ms(statistics.median(seconds)), "max": _ms(max(seconds))}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


@contextlib.contextmanager
def _relay(services: ServiceAddresses) -> Iterator[str]:
    """Make the tables, and relay them; yields the database's connection URI."""
    dsn = database(services.postgres)
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for number in range(1, TABLES + 1):
            cursor.execute(_TABLE.format(number=number))
            cursor.execute(_ROWS.format(number=number, rows=number * 10))
    command = [*BWTUI, "connect", "--headless", "-d", dsn, "-s", RELAY]
    engine = subprocess.Popen(command, env=environment(services), stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not _streams():
            if engine.poll() is not None or time.monotonic() > deadline:
                raise BwtuiError("the relay did not start", "see what it said above")
            time.sleep(0.2)
        yield dsn
    finally:
        request(RELAY, {"request": "stop"})
        engine.wait(60)


def _streams() -> bool:
    with contextlib.suppress(BwtuiError):
        return bool(request(RELAY, {"request": "status"})["state"] == "streaming")
    return False


@contextlib.contextmanager
def _writing(dsn: str) -> Iterator[Any]:
    """Write rows into all tables in turn, at a steady rate; yields what tells the rate that was kept."""
    ended, rates = threading.Event(), [0.0]

    def write() -> None:
        with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute("set synchronous_commit = off")
            begun, count = time.monotonic(), 0
            while not ended.is_set():
                cursor.execute(_ROWS.format(number=count % TABLES + 1, rows=BATCH))
                count += 1
                ended.wait(max(0.0, begun + count * BATCH / ROWS_A_SECOND - time.monotonic()))
            rates[0] = count * BATCH / (time.monotonic() - begun)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield lambda: rates[0]
    finally:
        ended.set()
        thread.join()


def _print(results: Results) -> None:
    table = Table("", *(name for name in results if name != "machine"))
    parts = [part for name, part in results.items() if name != "machine"]
    for title, told in (
        ("first picture, s (CPU)", lambda one: f"{one['first_seconds']} ({one['first_cpu']})"),
        ("with figures, s (CPU)", lambda one: f"{one['figures_seconds']} ({one['figures_cpu']})"),
        ("at rest, % of a core", lambda one: str(one["idle"])),
        ("at 2,000 rows/s, %", lambda one: str(one.get("busy", ""))),
        ("key → picture, p50 / max, ms", lambda one: _told(one["keys"])),
        ("first visit, ms", lambda one: str(one["keys"]["all"]["first"])),
        ("at 2,000 rows/s, p50 / max, ms", lambda one: _told(one["keys_busy"]) if "keys_busy" in one else ""),
        ("memory, MB: before, after", lambda one: " → ".join(map(str, one.get("memory_mb", ())))),
        ("minutes", lambda one: str(one.get("minutes", ""))),
    ):
        table.add_row(title, *(told(part) for part in parts))
    Console(stderr=True, width=120).print(table)
    print(json.dumps(results, ensure_ascii=False))


def _told(keys: Results) -> str:
    return f"{keys['all']['p50']} / {keys['all']['max']}"


def _say(text: str) -> None:
    print(f"bwtui-bench: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
