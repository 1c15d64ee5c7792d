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
from pathlib import Path
from typing import Any

from audited import in_turn, lengths, phases
from bench_table import BWTUI, add_sandbox_option, environment, make_topic, relay_changes, services_in
from processes import cpu_of, watched

from bwtui.errors import BwtuiError
from bwtui.sandbox.sandbox import ServiceAddresses


def main() -> int:
    """Replay, and print one line of JSON a run."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="bwtui-bench-") as folder:
        os.environ["BWTUI_STATE_HOME"] = f"{folder}/state"
        try:
            with services_in(Path(folder) / "sandbox", arguments.sandbox) as services:
                recording = arguments.recording or Path(folder) / "recording"
                if not recording.exists():
                    _record(services, recording, arguments.messages, arguments.headers)

                def run(name: str, tree: Path, number: int) -> dict[str, Any]:
                    # A sandbox that runs may have those of an earlier call.
                    prefix = f"{name}{number}-{time.time_ns():x}"
                    make_topic(services, f"{prefix}.bench", arguments.partitions)
                    master = ["--spark-master", "local[*]"] if arguments.spark else []
                    return _replay(services, recording, prefix, tree, master)

                in_turn(arguments.runs, arguments.against, run, "rate")
        except BwtuiError as error:
            print(f"bwtui: error: {error.message}\nhint: {error.hint}", file=sys.stderr)
            return error.exit_code
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000, help="default 1,000,000")
    parser.add_argument("--headers", action="store_true", help="record with connect --headers")
    parser.add_argument("--partitions", type=int, default=4, help="of the topics (default 4)")
    parser.add_argument("--runs", type=int, default=3, help="default 3")
    parser.add_argument("--spark", action="store_true", help="on Spark, also where it would do without")
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--recording", type=Path, help="where the recording is, or will be")
    add_sandbox_option(parser)
    return parser.parse_args()


def _record(services: ServiceAddresses, recording: Path, messages: int, headers: bool) -> None:
    more = ["--headers"] if headers else []
    command = ["connect", "-p", "recorded", "--headless", "--record", str(recording), *more]
    relay_changes(services, messages, command)
    subprocess.run([*BWTUI, "recording", "seal", str(recording)], check=True)


def _replay(
    services: ServiceAddresses, recording: Path, prefix: str, tree: Path, master: list[str]
) -> dict[str, Any]:
    options = ["--topic-prefix", prefix, "--yes", "--json", "--progress-json", *master]
    broker = _broker_pid(services)
    broker_before = cpu_of(broker)
    begin = time.monotonic()
    process = subprocess.Popen(
        [*BWTUI, "replay", str(recording), *options],
        cwd=tree,
        env={**environment(services), "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    with watched(process.pid) as used, process.stdout as output, process.stderr as progress:
        begun = dict(phases(progress))
        told = json.loads(output.read() or "null")
        process.wait()
        end = time.monotonic()
    if told is None:
        raise BwtuiError(f"the replay ended with exit code {process.returncode}", "its error is above")
    count = int(told["sent"])
    took = lengths(begun, end)
    spark = took.get("starting Spark", 0.0)
    return {
        "messages": count,
        "bytes": told["bytes"],
        "rate": round(count / (sum(took.values()) - spark)),
        "sending": round(count / told["seconds"]),
        "seconds": round(end - begin, 2),
        "phases": took,
        "cpu_us": {kind: round(seconds / count * 1e6, 2) for kind, seconds in used.cpu.items()}
        | {"kafka": round((cpu_of(broker) - broker_before) / count * 1e6, 2)},
        "peak_mb": used.peak_mb,
        "load": round(os.getloadavg()[0], 2),
    }


def _broker_pid(services: ServiceAddresses) -> int:
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
