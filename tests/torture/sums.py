"""Totals of several campaigns: each appends a line to the file that BWTUI_TORTURE_SUMS names.

Run ``make torture SUMS=sums.jsonl SEED=7`` repeatedly with different seeds and versions; each run prints the
totals of all runs so far. A run that fails before its result is judged leaves no line.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.campaign import Outcome

_COUNTED = (
    "kills", "rows", "messages", "repeats", "confirmed repeats", "lost", "out of order", "wrong", "torn",
)  # fmt: skip


@dataclass(slots=True)
class _Sum:
    seeds: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0

    def add(self, line: dict[str, Any]) -> None:
        self.seeds.append(line["seed"])
        self.counts.update({name: line[name] for name in _COUNTED})
        self.kinds.update(line["faults"])
        self.longest = max(self.longest, line["longest recovery"])

    def said(self) -> str:
        counted = ", ".join(f"{name} {self.counts[name]:,}" for name in _COUNTED)
        seeds = ", ".join(str(seed) for seed in self.seeds)
        return (
            f"{self.kinds.total():,} faults of {len(self.kinds)} kinds (seeds {seeds}): {counted}; "
            f"longest recovery {self.longest:.1f} s"
        )


def keep(path: Path, setting: str, outcome: Outcome) -> None:
    """Append the line of one run; ``setting`` describes its configuration."""
    verdict = outcome.verdict
    counts = (
        outcome.kills, outcome.rows, verdict.messages, verdict.repeats, len(verdict.confirmed_repeats),
        len(verdict.lost), len(verdict.disordered), len(verdict.wrong), len(verdict.torn),
    )  # fmt: skip
    line = {
        "setting": setting,
        "seed": outcome.seed,
        "faults": outcome.faults,
        "longest recovery": max(outcome.recoveries, default=0.0),
        **dict(zip(_COUNTED, counts, strict=True)),
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def added_up(lines: Iterable[str]) -> str:
    """Return a line for each setting, and one for the total."""
    by_setting, every = defaultdict[str, _Sum](_Sum), _Sum()
    for text in lines:
        line = json.loads(text)
        by_setting[line["setting"]].add(line)
        every.add(line)
    return "\n".join(
        f"{setting}: {one.said()}" for setting, one in [*sorted(by_setting.items()), ("in all", every)]
    )
