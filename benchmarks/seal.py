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
import time
from pathlib import Path

from bench_table import BWTUI, add_sandbox_option, relay_changes, services_in
from processes import watched

from bwtui.errors import BwtuiError
from bwtui.recording.folder import existing_segments
from bwtui.recording.recover import foot_of


def main() -> int:
    """Seal parts of a recording and print one line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--changes", type=int, nargs="+", default=[500_000, 1_000_000], help="sizes of the parts"
    )
    parser.add_argument("--recording", type=Path, help="a recording to take the parts of")
    add_sandbox_option(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bwtui-bench-", dir=_beside(arguments.recording)) as scratch:
        try:
            recording = arguments.recording or _record(
                Path(scratch), max(arguments.changes), arguments.sandbox
            )
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


def _record(scratch: Path, changes: int, running: Path | None) -> Path:
    os.environ["BWTUI_STATE_HOME"] = str(scratch / "state")
    with services_in(scratch / "sandbox", running) as services:
        relay_changes(services, changes, ["record", "-o", str(scratch / "recording")])
    return scratch / "recording"


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
    with watched(process.pid) as used, process.stdout as output:
        begin = time.monotonic()
        told = json.loads(output.read())
        process.wait()
        whole = time.monotonic() - begin
    return {
        "changes": told["changes"],
        "seconds": round(whole, 1),
        "changes_per_second": round(told["changes"] / whole),
        "cpu_us": {kind: round(seconds / told["changes"] * 1e6, 2) for kind, seconds in used.cpu.items()},
        "parquet_bytes_per_change": round(told["bytes"] / told["changes"], 1),
        "peak_mb": used.peak_mb,
        "load": os.getloadavg()[0],
    }


if __name__ == "__main__":
    sys.exit(main())
