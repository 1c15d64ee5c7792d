"""CPU and memory of a process and all below it, for the benchmarks that start Spark; of Linux's /proc."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOOK_SECONDS = 0.1


class Seen(NamedTuple):
    """What one process has used so far: CPU in seconds, resident memory in bytes."""

    name: str
    parent: int
    cpu: float
    resident: int


@dataclass(slots=True)
class Used:
    """What was used, by kind of process: ``java``, ``python`` (Spark's workers) and ``command``, the root."""

    cpu: dict[str, float] = field(default_factory=dict)
    peak_mb: dict[str, float] = field(default_factory=dict)


@contextmanager
def watched(root: int, every: float = _LOOK_SECONDS) -> Iterator[Used]:
    """Watch all processes below ``root`` until the block ends, with so many seconds between two looks.

    Spark's Python workers are nobody's children at the end, so the kernel adds their CPU to nobody's.
    """
    used, cpu = Used(), {}  # type: Used, dict[tuple[int, str], float]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(every):
            _look(root, used, cpu)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield used
    finally:
        ended.set()
        thread.join()
        for (_, kind), seconds in cpu.items():
            used.cpu[kind] = used.cpu.get(kind, 0.0) + seconds


def cpu_of(pid: int) -> float:
    """Return the CPU seconds that one process has used so far."""
    seen = _read(Path(f"/proc/{pid}/stat"))
    return seen.cpu if seen is not None else 0.0


def _look(root: int, used: Used, cpu: dict[tuple[int, str], float]) -> None:
    resident: dict[str, int] = {}
    for pid, seen in below(root).items():
        kind = "command" if pid == root else "java" if seen.name == "java" else "python"
        cpu[pid, kind] = seen.cpu
        for name in (kind, "all"):
            resident[name] = resident.get(name, 0) + seen.resident
    for name, size in resident.items():
        used.peak_mb[name] = max(used.peak_mb.get(name, 0.0), round(size / 1e6))


def below(root: int) -> dict[int, Seen]:
    """Return a process and all below it, by id."""
    found = {int(path.name): _read(path / "stat") for path in Path("/proc").glob("[0-9]*")}
    children: dict[int, list[int]] = {}
    for pid, seen in found.items():
        if seen is not None:
            children.setdefault(seen.parent, []).append(pid)
    below, left = {}, [root]
    while left:
        pid = left.pop()
        seen = found.get(pid)
        if seen is not None:
            below[pid] = seen
            left += children.get(pid, [])
    return below


def _read(path: Path) -> Seen | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    # The name stands in brackets, and may hold any character.
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Seen(name, int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE)
