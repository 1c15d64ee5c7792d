"""Runs of a command that reads a recording: in two checkouts in turn, and the lengths of its phases."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any


def in_turn(
    runs: int, against: Path | None, run: Callable[[str, Path, int], dict[str, Any]], figure: str
) -> list[float]:
    """Print what each run tells, and the ratios of ``figure``; return those of this checkout.

    ``run`` gets a tree's name and folder, and the number of the run.
    """
    trees = [("here", Path(__file__).parents[1])]
    if against is not None:
        trees.insert(0, ("against", against.resolve()))
    found: dict[str, list[float]] = {name: [] for name, _ in trees}
    for number in range(runs):
        for name, tree in trees:
            figures = run(name, tree, number)
            found[name].append(figures[figure])
            print(json.dumps({"tree": name, **figures}), flush=True)
    if against is not None:
        ratios = [round(here / other, 3) for here, other in zip(found["here"], found["against"], strict=True)]
        print(json.dumps({"ratios": ratios, "median": sorted(ratios)[len(ratios) // 2]}))
    return found["here"]


def phases(lines: Iterable[str]) -> Iterator[tuple[str, float]]:
    """Yield when each phase began, of ``--progress-json``; whatever else is said goes to stderr."""
    known = set()
    for line in lines:
        if not line.startswith("{"):
            print(line, end="", file=sys.stderr)
            continue
        phase = json.loads(line).get("phase")
        if phase is not None and phase not in known:
            known.add(phase)
            yield phase, time.monotonic()


def lengths(begun: dict[str, float], end: float) -> dict[str, float]:
    """Return how many seconds each phase took."""
    times = [*begun.values(), end]
    return {name: round(times[at + 1] - times[at], 2) for at, name in enumerate(begun)}
