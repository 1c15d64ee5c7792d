"""Seconds by stage, CPU a message and memory of ``bwtui verify RECORDING``.

Run ``make bench-verify``, or ``python benchmarks/verify.py`` in the checkout. It starts a sandbox of its own,
relays one 7-column table with transactions of 100 changes (70 inserts, 20 updates, 10 deletes) with ``connect
--record``, seals the recording, and verifies it ``--runs`` times. Spark, DuckDB and Kafka share the machine.

Before that the topic is read as often by kcat, by a loop over confluent-kafka's consumer and by Spark, which
count its messages and do nothing else: what reading alone costs. The best run of each counts.

``audit_seconds`` counts from the first look at the recording to the end of the process, Spark's start not.
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

from audited import in_turn, lengths, phases
from bench_table import BWTUI, add_sandbox_option, environment, make_topic, relay_changes, services_in
from processes import watched
from topic_readers import by_spark, seconds, without_spark

from bwtui.errors import BwtuiError
from bwtui.kafka.scan import pin
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.spark.session import spark_session

TOPIC = "bench"


def main() -> int:
    """Verify, and print one line of JSON a run."""
    arguments = _arguments()
    with _folder(arguments.folder) as folder:
        os.environ["BWTUI_STATE_HOME"] = f"{folder}/state"
        try:
            kept = arguments.folder is not None
            with services_in(folder / "sandbox", arguments.sandbox, keep=kept) as services:
                _run(services, folder / "recording", arguments)
        except BwtuiError as error:
            print(f"bwtui: error: {error.message}\nhint: {error.hint}", file=sys.stderr)
            return error.exit_code
    return 0


def _run(services: ServiceAddresses, recording: Path, arguments: argparse.Namespace) -> None:
    if not recording.exists():
        _record(services, recording, arguments.messages, arguments.partitions)
    alone = dict(_reading_alone(services.broker, arguments.runs))

    def run(_: str, tree: Path, __: int) -> dict[str, Any]:
        return _verify(services, recording, tree, arguments.options)

    found = in_turn(arguments.runs, arguments.against, run, "audit_seconds")
    ratios = {name: round(min(found) / best, 2) for name, best in alone.items()}
    print(json.dumps({"audit_seconds_to": ratios}))


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
    add_sandbox_option(parser)
    return parser.parse_args()


@contextlib.contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="bwtui-bench-") as folder:
        yield Path(folder)


def _record(services: ServiceAddresses, recording: Path, messages: int, partitions: int) -> None:
    make_topic(services, TOPIC, partitions)
    relay_changes(services, messages, ["connect", "--headless", "--record", str(recording)])
    subprocess.run([*BWTUI, "recording", "seal", str(recording)], check=True)


def _reading_alone(broker: str, runs: int) -> Iterator[tuple[str, float]]:
    """Yield the readers and their best seconds, Spark's start not counted."""
    count = pin({"bootstrap.servers": broker}, [TOPIC]).messages
    with spark_session("local[*]", "bench") as spark:
        for name, read in (*without_spark(broker, TOPIC, count), by_spark(spark, broker, TOPIC)):
            best = min(seconds(read, count) for _ in range(runs))
            print(json.dumps({"reader": name, "messages": count, "seconds": round(best, 2)}), flush=True)
            yield name, best


def _verify(services: ServiceAddresses, recording: Path, tree: Path, options: list[str]) -> dict[str, Any]:
    more = [f"--{name}" for name in options]
    begin = time.monotonic()
    process = subprocess.Popen(
        [*BWTUI, "verify", str(recording), "--json", "--progress-json", *more],
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
        raise BwtuiError(f"verify ended with exit code {process.returncode}", "its error is above")
    count = sum(told["balance"]["expected"].values())
    spent = lengths(begun, end)
    return {
        "verdict": told["verdict"],
        "messages": count,
        "audit_seconds": round(sum(spent.values()) - spent.get("starting Spark", 0.0), 2),
        "seconds": round(end - begin, 2),
        "phases": spent,
        "cpu_us": {kind: round(seconds / count * 1e6, 2) for kind, seconds in used.cpu.items()},
        "peak_mb": used.peak_mb,
        "load": round(os.getloadavg()[0], 2),
    }


if __name__ == "__main__":
    sys.exit(main())
