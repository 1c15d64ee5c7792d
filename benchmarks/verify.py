"""Seconds by stage, CPU a message and memory of ``bwtui verify RECORDING``.

Run ``python benchmarks/verify.py`` in the checkout. It starts a sandbox of its own, relays one 7-column table
with transactions of 100 changes (70 inserts, 20 updates, 10 deletes) with ``connect --record``, seals the
recording, and verifies it ``--runs`` times. Spark, DuckDB and Kafka share the machine.

``audit_seconds`` counts from the moment when Spark is up to the end of the process, as ``phases`` do.
``--folder DIR`` keeps sandbox and recording there, and takes them from there the next time. With ``--against
FOLDER``, another checkout's, every run is made with both in turn, and their ratios are told.
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
from confluent_kafka.admin import AdminClient, NewTopic
from processes import watched
from psycopg.conninfo import make_conninfo

from bwtui.errors import BwtuiError
from bwtui.sandbox.progress import Plain
from bwtui.sandbox.supervisor import Sandbox, Services

BWTUI = (sys.executable, "-m", "bwtui")
_SCHEMA = """
create table bench (id int8 primary key, a int4, b text, n numeric(10,2), t timestamptz, ok bool, note text);
create procedure fill(total int) language plpgsql as $$
begin
    for batch in 0 .. total / 100 - 1 loop
        insert into bench
        select id, id % 1000, 'name ' || id, (id % 1000000) / 100.0,
               timestamptz '2026-01-01' + id * interval '1 millisecond', id % 3 = 0,
               repeat(md5(id::text), 3) || 'note'
        from generate_series(batch * 100 + 1, batch * 100 + 70) id;
        update bench set a = a + 1, note = note || '!' where id between batch * 100 + 1 and batch * 100 + 20;
        delete from bench where id between batch * 100 + 41 and batch * 100 + 50;
        commit;
    end loop;
end $$;
"""


def main() -> int:
    """Verify, and print one line of JSON a run."""
    arguments = _arguments()
    with _folder(arguments.folder) as folder:
        os.environ["BWTUI_STATE_HOME"] = f"{folder}/state"
        sandbox = Sandbox(folder / "sandbox")
        try:
            services = sandbox.up(Plain(), attached=True)
            if not (folder / "recording").exists():
                _record(services, folder / "recording", arguments.messages, arguments.partitions)
            _measure(services, folder / "recording", arguments)
        except BwtuiError as error:
            print(f"bwtui: error: {error.message}\nhint: {error.hint}", file=sys.stderr)
            return error.exit_code
        finally:
            sandbox.down(wipe=arguments.folder is None)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000, help="default 1,000,000")
    parser.add_argument("--partitions", type=int, default=4, help="of the topic (default 4)")
    parser.add_argument("--runs", type=int, default=3, help="default 3")
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--folder", type=Path, help="keep sandbox and recording there")
    parser.add_argument("--options", nargs="*", default=[], help="more for verify, such as deep")
    return parser.parse_args()


@contextlib.contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="bwtui-bench-") as folder:
        yield Path(folder)


def _measure(services: Services, recording: Path, arguments: argparse.Namespace) -> None:
    trees = [("here", Path(__file__).parents[1])]
    if arguments.against is not None:
        trees.insert(0, ("against", arguments.against.resolve()))
    seconds: dict[str, list[float]] = {name: [] for name, _ in trees}
    for _ in range(arguments.runs):
        for name, tree in trees:
            figures = _verify(services, recording, tree, arguments.options)
            seconds[name].append(figures["audit_seconds"])
            print(json.dumps({"tree": name, **figures}), flush=True)
    if arguments.against is not None:
        pairs = zip(seconds["here"], seconds["against"], strict=True)
        ratios = [round(here / against, 3) for here, against in pairs]
        print(json.dumps({"ratios": ratios, "median": sorted(ratios)[len(ratios) // 2]}))


# -- the recording -------------------------------------------------------------------------------------------


def _record(services: Services, recording: Path, messages: int, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": services.broker})
    topic = NewTopic("bench", partitions, 1, config={"retention.ms": "-1"})
    admin.create_topics([topic])["bench"].result()
    with contextlib.closing(psycopg2.connect(services.postgres)) as connection:
        connection.autocommit = True
        connection.cursor().execute("create database bench")
    dsn = make_conninfo(services.postgres, dbname="bench")
    options = ["-d", dsn, "-s", "bench", "--headless", "--until-caught-up", "-x", "--record", str(recording)]
    command = [*BWTUI, "connect", *options]
    environment = _environment(services)
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(_SCHEMA)
        # The first run makes the slot.
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        cursor.execute("set synchronous_commit = off")
        cursor.execute("call fill(%s)", [messages])
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*BWTUI, "recording", "seal", str(recording)], check=True)


def _environment(services: Services) -> dict[str, str]:
    ends = {"BWTUI_BROKER": services.broker, "BWTUI_SCHEMA_REGISTRY": services.schema_registry}
    return {**os.environ, **ends}


# -- a run ---------------------------------------------------------------------------------------------------


def _verify(services: Services, recording: Path, tree: Path, options: list[str]) -> dict[str, Any]:
    more = [f"--{name}" for name in options]
    begin = time.monotonic()
    process = subprocess.Popen(
        [*BWTUI, "verify", str(recording), "--json", "--progress-json", *more],
        cwd=tree,
        env={**_environment(services), "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    with watched(process.pid) as used, process.stdout as output, process.stderr as progress:
        phases = dict(_phases(progress))
        told = json.loads(output.read() or "null")
        process.wait()
        end = time.monotonic()
    if told is None:
        raise BwtuiError(f"verify ended with exit code {process.returncode}", "its error is above")
    count = sum(told["balance"]["expected"].values())
    started = phases.get("sealing the recording", phases["reading the recording"])
    return {
        "verdict": told["verdict"],
        "messages": count,
        "audit_seconds": round(end - started, 2),
        "spark_seconds": round(started - begin, 2),
        "phases": _lengths(phases, end),
        "cpu_us": {kind: round(seconds / count * 1e6, 2) for kind, seconds in used.cpu.items()},
        "peak_mb": used.peak_mb,
        "load": round(os.getloadavg()[0], 2),
    }


def _phases(lines: Any) -> Iterator[tuple[str, float]]:
    """Yield when each phase began."""
    known = set()
    for line in lines:
        if not line.startswith("{"):
            print(line, end="", file=sys.stderr)
            continue
        phase = json.loads(line).get("phase")
        if phase is not None and phase not in known:
            known.add(phase)
            yield phase, time.monotonic()


def _lengths(phases: dict[str, float], end: float) -> dict[str, float]:
    times = [*phases.values(), end]
    return {name: round(times[at + 1] - times[at], 2) for at, name in enumerate(phases)}


if __name__ == "__main__":
    sys.exit(main())
