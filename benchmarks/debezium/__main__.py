"""bwtui beside Debezium 3.7 in Kafka Connect: the same PostgreSQL, broker, registry and rows, in turn.

Run ``make bench-debezium``, or ``python -m benchmarks.debezium`` in the checkout. It starts a sandbox of its
own, or takes one that runs, and fetches Debezium as the sandbox's software is fetched. Of each workload the
rows are written once, and every way reads them all, one after the other: in every pair all ways take their
turn, and every second pair they do so in the opposite order.

Rows a second count from the first message to the last, by the broker's clock. Behind each run its topics
are read to the end: a run whose messages, keys or values are not exactly the rows fails the benchmark.

Before it is measured Debezium relays --warm-up rows of the same shape in the same JVM, and neither that nor
the JVM's start is in its figures, but for memory. Of bwtui CPU and memory are of all its processes, start and
end included. One JSON line is printed a run. With ``--write FOLDER`` the runs are kept there, a file a
workload, written after each pair; ``--add`` adds further pairs to such a file. ``python -m
benchmarks.debezium.page`` makes tables and pictures of the files.
"""

import argparse
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg2
from confluent_kafka import KafkaException

from benchmarks import recvlogical
from benchmarks.bench_table import add_sandbox_option, services_in
from benchmarks.debezium import results
from benchmarks.debezium.connect import CONNECTOR, JVM, fetch, producer
from benchmarks.debezium.latency import UNCOUNTED_SECONDS, transactions
from benchmarks.debezium.measuring import measured
from benchmarks.debezium.runs import Run
from benchmarks.debezium.source import Source
from benchmarks.debezium.workloads import RECVLOGICAL, WAYS, WORKLOADS, Kind, Workload, takes_part
from bwtui.errors import BwtuiError, ConnectionFailed, Interrupted, UsageError
from bwtui.sandbox.sandbox import DEFAULT_MAJOR, ServiceAddresses


def main() -> int:
    """Measure what is asked for, and print one JSON line a run."""
    # Also where a shell has started it in the background, with SIGINT ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    try:
        arguments = arguments_of()
        with tempfile.TemporaryDirectory(prefix="bwtui-bench-") as folder:
            os.environ["BWTUI_STATE_HOME"] = f"{folder}/state"
            chosen = [WORKLOADS[name] for name in arguments.workloads]
            # Before anything is started.
            kept = {one.name: _begun(one, arguments) for one in chosen}
            if any(way.startswith("debezium") for one in chosen for way in arguments.ways or one.ways):
                fetch()
            with services_in(Path(folder) / "sandbox", arguments.sandbox, arguments.postgres) as services:
                for workload in chosen:
                    _measure(workload, services, arguments, kept[workload.name], Path(folder))
    except BwtuiError as error:
        print(f"bwtui: error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except (psycopg2.OperationalError, KafkaException) as error:
        reason = str(error).strip().splitlines()[0]
        print(f"bwtui: error: a service is lost: {reason}\nhint: its log may say why", file=sys.stderr)
        return ConnectionFailed.exit_code
    except KeyboardInterrupt:
        return Interrupted.exit_code
    return 0


def arguments_of(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line, or ``given``. Raises UsageError."""
    parser = argparse.ArgumentParser(
        prog="bench-debezium", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workloads", default=",".join(WORKLOADS), help=f"which, of {', '.join(WORKLOADS)} (default all)"
    )
    parser.add_argument("--pairs", type=int, default=5, help="how often each way takes its turn (default 5)")
    parser.add_argument(
        "--rows",
        type=int,
        default=2_000_000,
        help="rows; some workloads have a part of them (default 2,000,000)",
    )
    parser.add_argument(
        "--warm-up", type=int, default=300_000, metavar="ROWS", help="rows before (default 300,000)"
    )
    parser.add_argument(
        "--seconds", type=int, default=60, help="of latency, in which rows count (default 60)"
    )
    parser.add_argument("--ways", help=f"in place of each workload's own, of {', '.join(WAYS)}")
    parser.add_argument("--heap", default="768m", help="of Debezium's JVM (default 768m)")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="keep the runs there, a file a workload")
    parser.add_argument("--add", action="store_true", help="add to the files that are there")
    parser.add_argument("--postgres", type=int, default=DEFAULT_MAJOR, help="major version (default 18)")
    add_sandbox_option(parser)
    arguments = parser.parse_args(given)
    arguments.workloads = _named(arguments.workloads, WORKLOADS, "workload")
    arguments.ways = _named(arguments.ways, WAYS, "way") if arguments.ways else None
    for name, least in (("pairs", 1), ("rows", 1), ("seconds", 1), ("warm_up", 0)):
        if getattr(arguments, name) < least:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is {getattr(arguments, name)}", f"it has to be at least {least}")
    for name in arguments.workloads:
        for way in arguments.ways or ():
            if not takes_part(way, WORKLOADS[name]):
                raise UsageError(f"{way} has no part in {name}", f"name other --ways, or leave {name} out")
    if re.fullmatch(r"[1-9]\d*[mg]", arguments.heap) is None:
        raise UsageError(f"--heap is {arguments.heap!r}, which is not a valid heap size", "use 768m or 1g")
    return arguments


def _named(given: str, known: Sequence[str] | dict[str, Any], what: str) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"there is no {what} {name!r}", f"choose of {', '.join(known)}")
    if not names:
        raise UsageError(f"there is no {what} in {given!r}", f"choose of {', '.join(known)}")
    return names


def _begun(workload: Workload, arguments: argparse.Namespace) -> dict[str, Any]:
    is_latency = workload.kind is Kind.LATENCY
    return results.begun(
        arguments.write,
        {
            "workload": workload.name,
            "title": workload.title,
            "rows": transactions(arguments.seconds) if is_latency else workload.rows(arguments.rows),
            "warm_rows": workload.rows(arguments.warm_up) if arguments.warm_up else 0,
            "uncounted_seconds": UNCOUNTED_SECONDS if is_latency else 0,
            "heap": arguments.heap,
            "machine": results.machine(),
            "versions": results.versions(arguments.postgres),
            "settings": {"jvm": list(JVM), "producer": producer(workload.kind), "connector": CONNECTOR},
        },
        is_added=arguments.add,
    )


def _measure(
    workload: Workload,
    services: ServiceAddresses,
    arguments: argparse.Namespace,
    kept: dict[str, Any],
    folder: Path,
) -> None:
    """Add runs to what is ``kept``, pair by pair."""
    ways = arguments.ways or workload.ways
    if recvlogical.program() is None and RECVLOGICAL in ways:
        print("bench: pg_recvlogical is not installed, so nothing is measured by it", file=sys.stderr)
        ways = [way for way in ways if way != RECVLOGICAL]
    before = max((run["pair"] for run in kept["runs"]), default=0)
    rows, warm_rows = kept["rows"], kept["warm_rows"]
    _say(f"{workload.title}: {rows:,} rows")
    with Source(services.postgres, workload, rows, warm_rows).filled() as source:
        for pair in range(before + 1, before + arguments.pairs + 1):
            turns = list(ways if pair % 2 else reversed(ways))
            for turn, way in enumerate(turns, 1):
                _say(f"{workload.name}, pair {pair}: {way}")
                name = f"b{os.getpid()}_{workload.name}_{pair}_{turn}"
                with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as own:
                    place = Path(own)
                    run = Run(services, workload, source, way, name, rows, warm_rows, place, arguments.heap)
                    figures = {"pair": pair, "turn": turn, "way": way, **measured(run)}
                kept["runs"].append(figures)
                print(json.dumps({"workload": workload.name, **figures}), flush=True)
            if arguments.write is not None:
                results.write(arguments.write, kept)


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
