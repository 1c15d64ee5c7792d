"""Messages a second, CPU a message and memory of ``bwtui replay``.

Run ``make bench-replay``, or ``python benchmarks/replay.py`` in the checkout. It starts a sandbox of its
own, relays one 7-column table with ``connect --record``, seals the recording, and replays it ``--runs``
times, each time into a new topic. Spark, the replay's tasks and Kafka share the machine.

``rate`` counts all from the first look at the recording to the end of the process but the phase in which
Spark starts; ``sending`` counts the time in which messages were sent. With ``--against FOLDER``, another
checkout's, every run is made with both in turn, and their ratios are told. ``--recording FOLDER`` keeps the
recording there, and takes it from there the next time.
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
from processes import cpu_of, watched
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
        from generate_series(batch * 100 + 1, batch * 100 + 100) id;
        commit;
    end loop;
end $$;
"""


def main() -> int:
    """Replay, and print one line of JSON a run."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="bwtui-bench-") as folder:
        os.environ["BWTUI_STATE_HOME"] = f"{folder}/state"
        sandbox = Sandbox(Path(folder) / "sandbox")
        try:
            services = sandbox.up(Plain(), attached=True, disposable=True)
            recording = arguments.recording or Path(folder) / "recording"
            if not recording.exists():
                _record(services, recording, arguments.messages, arguments.headers)
            _measure(services, recording, arguments)
        except BwtuiError as error:
            print(f"bwtui: error: {error.message}\nhint: {error.hint}", file=sys.stderr)
            return error.exit_code
        finally:
            sandbox.down(wipe=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000, help="default 1,000,000")
    parser.add_argument("--headers", action="store_true", help="record with connect --headers")
    parser.add_argument("--partitions", type=int, default=4, help="of the topics (default 4)")
    parser.add_argument("--runs", type=int, default=3, help="default 3")
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--recording", type=Path, help="where the recording is, or will be")
    return parser.parse_args()


def _measure(services: Services, recording: Path, arguments: argparse.Namespace) -> None:
    trees = [("here", Path(__file__).parents[1])]
    if arguments.against is not None:
        trees.insert(0, ("against", arguments.against.resolve()))
    rates: dict[str, list[float]] = {name: [] for name, _ in trees}
    for number in range(arguments.runs):
        for name, tree in trees:
            prefix = f"{name}{number}"
            _make_topic(services, f"{prefix}.bench", arguments.partitions)
            figures = _replay(services, recording, prefix, tree)
            rates[name].append(figures["rate"])
            print(json.dumps({"tree": name, **figures}), flush=True)
    if arguments.against is not None:
        pairs = zip(rates["here"], rates["against"], strict=True)
        ratios = [round(here / against, 3) for here, against in pairs]
        print(json.dumps({"ratios": ratios, "median": sorted(ratios)[len(ratios) // 2]}))


# -- the recording ---------------------------------------------------------------------------------------


def _record(services: Services, recording: Path, messages: int, headers: bool) -> None:
    with contextlib.closing(psycopg2.connect(services.postgres)) as connection:
        connection.autocommit = True
        connection.cursor().execute("create database bench")
    dsn = make_conninfo(services.postgres, dbname="bench")
    options = ["-d", dsn, "-s", "bench", "-p", "recorded", "--headless", "--until-caught-up", "-x"]
    options += ["--record", str(recording), *(["--headers"] if headers else [])]
    command = [*BWTUI, "connect", *options]
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(_SCHEMA)
        # The first run makes the slot.
        subprocess.run(command, env=_environment(services), check=True, stdout=subprocess.DEVNULL)
        cursor.execute("set synchronous_commit = off")
        cursor.execute("call fill(%s)", [messages])
    subprocess.run(command, env=_environment(services), check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*BWTUI, "recording", "seal", str(recording)], check=True)


def _environment(services: Services) -> dict[str, str]:
    return {
        **os.environ,
        "BWTUI_BROKER": services.broker,
        "BWTUI_SCHEMA_REGISTRY": services.schema_registry,
    }


def _make_topic(services: Services, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": services.broker})
    settings = {"retention.ms": "-1"}
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result()


# -- a run -----------------------------------------------------------------------------------------------


def _replay(services: Services, recording: Path, prefix: str, tree: Path) -> dict[str, Any]:
    options = ["--topic-prefix", prefix, "--yes", "--json", "--progress-json"]
    broker = _broker_pid(services)
    broker_before = cpu_of(broker)
    begin = time.monotonic()
    process = subprocess.Popen(
        [*BWTUI, "replay", str(recording), *options],
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
        raise BwtuiError(f"the replay ended with exit code {process.returncode}", "its error is above")
    count = int(told["sent"])
    lengths = _lengths(phases, end)
    spark = lengths["starting Spark"]
    return {
        "messages": count,
        "bytes": told["bytes"],
        "rate": round(count / (sum(lengths.values()) - spark)),
        "sending": round(count / told["seconds"]),
        "seconds": round(end - begin, 2),
        "phases": lengths,
        "cpu_us": {kind: round(seconds / count * 1e6, 2) for kind, seconds in used.cpu.items()}
        | {"kafka": round((cpu_of(broker) - broker_before) / count * 1e6, 2)},
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


def _broker_pid(services: Services) -> int:
    """Return the process that listens on the broker's port; 0 where it is not found."""
    port = int(services.broker.rpartition(":")[2])
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (path / "cmdline").read_bytes()
            if b"kafka.Kafka" in line and _listens(path, port):
                return int(path.name)
    return 0


def _listens(process: Path, port: int) -> bool:
    wanted = {
        line.split()[9]
        for name in ("tcp", "tcp6")
        for line in (process / "net" / name).read_text().splitlines()[1:]
        if line.split()[3] == "0A" and int(line.split()[1].rpartition(":")[2], 16) == port
    }
    links = [str(one.readlink()) for one in (process / "fd").iterdir()]
    return any(f"socket:[{inode}]" in links for inode in wanted)


if __name__ == "__main__":
    sys.exit(main())
