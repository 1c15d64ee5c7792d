"""Changes a second, CPU a change and memory of sealing a recording.

Run ``python benchmarks/seal.py`` in the checkout. It starts a sandbox of its own, records one 7-column table
with transactions of 100 changes (70 inserts, 20 updates, 10 deletes) without Kafka, and seals growing parts
of that recording; or give it a recording: ``--recording DIR``, of which it works on a copy made of links.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg2
from psycopg.conninfo import make_conninfo

from bwtui.errors import BwtuiError
from bwtui.recording.folder import existing_segments
from bwtui.recording.recover import foot_of
from bwtui.sandbox.progress import Plain
from bwtui.sandbox.supervisor import Sandbox

BWTUI = (sys.executable, "-c", "from bwtui.cli.main import main; main()")
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
    """Seal parts of a recording and print one line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--changes", type=int, nargs="+", default=[500_000, 1_000_000], help="sizes of the parts"
    )
    parser.add_argument("--recording", type=Path, help="a recording to take the parts of")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bwtui-bench-", dir=_beside(arguments.recording)) as scratch:
        try:
            recording = arguments.recording or _record(Path(scratch), max(arguments.changes))
            for changes in arguments.changes:
                part = _part(recording, Path(scratch) / f"part-{changes}", changes)
                print(json.dumps(_seal(part)), flush=True)
        except BwtuiError as error:
            print(f"bwtui: error: {error.message}\nhint: {error.hint}", file=sys.stderr)
            return error.exit_code
    return 0


def _beside(recording: Path | None) -> Path | None:
    # A link needs the same file system.
    return recording.resolve().parent if recording else None


def _record(scratch: Path, changes: int) -> Path:
    os.environ["BWTUI_STATE_HOME"] = str(scratch / "state")
    sandbox = Sandbox(scratch / "sandbox", 18)
    try:
        services = sandbox.up(Plain(), attached=True)
        with closing(psycopg2.connect(services.postgres)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute("create database bench")
        dsn = make_conninfo(services.postgres, dbname="bench")
        command = [*BWTUI, "record", "-d", dsn, "-s", "bench", "-o", str(scratch / "recording"), "-x"]
        with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute(_SCHEMA)
            subprocess.run([*command, "--until-caught-up"], check=True)
            cursor.execute("set synchronous_commit = off")
            cursor.execute("call fill(%s)", [changes])
        subprocess.run([*command, "--until-caught-up"], check=True)
        return scratch / "recording"
    finally:
        sandbox.down(wipe=True)


def _part(recording: Path, folder: Path, changes: int) -> Path:
    """Make a recording of the first segments that hold so many changes, out of links."""
    folder.mkdir()
    held = 0
    for segment in existing_segments(recording):
        if held >= changes or not segment.is_finished:
            break
        os.link(segment.path, folder / segment.path.name)
        held += int(str(foot_of(segment)["changes"]))
    return folder


def _seal(folder: Path) -> dict[str, object]:
    process = subprocess.Popen([*BWTUI, "recording", "seal", str(folder), "--json"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with _watched(process.pid) as (peak, cpu), process.stdout as output:
        begin = time.monotonic()
        told = json.loads(output.read())
        process.wait()
        whole = time.monotonic() - begin
    return {
        "changes": told["changes"],
        "seconds": round(whole, 1),
        "changes_per_second": round(told["changes"] / whole),
        "cpu_us_per_change": round(sum(cpu.values()) / told["changes"] * 1e6, 2),
        "cpu_seconds_java": sum(seconds for (_, name), seconds in cpu.items() if name == "java"),
        "parquet_bytes_per_change": round(told["bytes"] / told["changes"], 1),
        "peak_mb": {name: round(number / 1024) for name, number in peak.items()},
        "load": os.getloadavg()[0],
    }


@contextmanager
def _watched(root: int) -> Iterator[tuple[dict[str, int], dict[tuple[int, str], int]]]:
    """Watch all processes below ``root``: peaks of resident memory in kB, and CPU seconds of each.

    Spark's Python workers are nobody's children at the end, so the kernel adds their CPU to nobody's.
    """
    peak = {"all": 0, "java": 0, "python": 0}
    cpu: dict[tuple[int, str], int] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            found = list(_below(root))
            cpu.update({(pid, name): seconds for pid, name, _, seconds in found})
            for name, number in (
                ("all", sum(size for _, _, size, _ in found)),
                ("java", max((size for _, name, size, _ in found if name == "java"), default=0)),
                ("python", max((size for _, name, size, _ in found if name != "java"), default=0)),
            ):
                peak[name] = max(peak[name], number)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak, cpu
    finally:
        ended.set()
        thread.join()


def _below(root: int) -> Iterator[tuple[int, str, int, int]]:
    """Yield number, name, resident kB and CPU seconds of each process."""
    command = ["ps", "-eo", "pid=,ppid=,rss=,cputimes=,comm="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split(None, 4) for line in listed.stdout.splitlines()]
    below = {root}
    for pid, parent, *_ in rows:
        if int(parent) in below:
            below.add(int(pid))
    for pid, _, size, seconds, name in rows:
        if int(pid) in below:
            yield int(pid), name.strip(), int(size), int(seconds)


if __name__ == "__main__":
    sys.exit(main())
