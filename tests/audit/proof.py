"""Plant a thousand cases and write the confusion matrix into docs/audit.md: ``make audit-proof``.

python -m tests.audit.proof [--cases N] [--seed N] [--write]
"""

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter
from pathlib import Path

from bwtui.audit.classes import CLASSES
from tests.audit import judging, making, planting, truth, world

DOCUMENT = Path(__file__).parents[2] / "docs" / "audit.md"
BEGIN, END = "<!-- confusion matrix: begin -->", "<!-- confusion matrix: end -->"
_NOTHING = "(nothing)"

#: (planted, reported) → number of messages, records, keys, transactions, …
Matrix = Counter[tuple[str, str]]


def confusion(expected: Counter[truth.Finding], found: Counter[truth.Finding]) -> Matrix:
    """Return how often a fault planted as one class was reported as which class."""
    matrix: Matrix = Counter()
    left = found.copy()
    for finding, number in expected.items():
        same = min(number, left[finding])
        matrix[finding[1], finding[1]] += same
        left[finding] -= same
        for _ in range(number - same):
            kind, name, what = finding
            other = next((f for f in left if left[f] > 0 and (f[0], f[2]) == (kind, what)), None)
            if other is not None:
                left[other] -= 1
            matrix[name, other[1] if other else _NOTHING] += 1
    for finding, number in (+left).items():
        matrix[_NOTHING, finding[1]] += number
    return matrix


def case(number: int) -> tuple[world.World, list[str]]:
    """Return the world of a seed and the faults planted in it.

    Each fault is the first one of a case in turn; every tenth case is clean.
    """
    rng = random.Random(number)
    changes = rng.choice([5, 20, 60])
    if number % 10 == 9:
        return making.make(rng, changes), ["(clean)"]
    names = sorted(planting.FAULTS)
    made, planted = planting.make_with(rng, changes, names[number % len(names)])
    return made, planted + planting.plant(made, rng, rng.choices(names, k=rng.randint(0, 4)))


def _one(number: int) -> tuple[Matrix, list[str], int | None]:
    made, planted = case(number)
    found, connection = judging.audit(made)
    connection.close()
    this = confusion(truth.truth(made), found)
    is_wrong = any(planted != reported for planted, reported in this)
    return this, planted, number if is_wrong else None


def run(cases: int, seed: int) -> tuple[Matrix, Counter[str], list[int]]:
    """Return the matrix, how often each fault was planted, and the seeds of the cases that failed."""
    matrix: Matrix = Counter()
    faults: Counter[str] = Counter()
    wrong = []
    # A case is some hundred small statements, each of which is planned separately: use one process per core.
    with multiprocessing.get_context("spawn").Pool() as pool:
        for this, planted, number in pool.imap_unordered(_one, range(seed, seed + cases), chunksize=8):
            matrix += this
            faults.update(planted)
            wrong += [number] if number is not None else []
    return matrix, faults, sorted(wrong)


def table(matrix: Matrix, faults: Counter[str], cases: int, seed: int) -> str:
    """Return the matrix in Markdown: the sum of correctly reported classes, and a table of the others."""
    kinds = faults.keys() - {"(clean)"}
    lines = [
        f"{cases:,} cases, seeds {seed} to {seed + cases - 1}; "
        f"{sum(faults[kind] for kind in kinds):,} faults of {len(kinds)} kinds planted, "
        f"{faults['(clean)']} cases left clean.",
    ]
    exact, off = [], []
    for name in ("matched", *CLASSES):
        planted = sum(n for (p, _), n in matrix.items() if p == name)
        reported = sum(n for (_, r), n in matrix.items() if r == name)
        right, missed = matrix[name, name], matrix[name, _NOTHING]
        if planted == reported == right:
            exact += [planted] if planted else []
        else:
            wrong = f"{planted - right - missed:,} | {missed:,} | {reported - right:,}"
            off.append(f"| {name} | {planted:,} | {right:,} | {wrong} |")
    lines += [f"Found as planted, neither more nor fewer: {sum(exact):,} findings of {len(exact)} classes."]
    if off:
        lines += ["", "| class | planted | found as such | as another | missed | found, not planted |"]
        lines += ["|---|---:|---:|---:|---:|---:|", *off]
    return "\n".join(lines)


def main() -> int:
    """Run, print, and write the document if requested; return 1 if anything is off the diagonal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=10_000)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    begin = time.monotonic()
    matrix, faults, wrong = run(given.cases, given.seed)
    text = table(matrix, faults, given.cases, given.seed)
    print(text)
    print(f"\n{time.monotonic() - begin:.0f} s; cases with anything off the diagonal: {wrong or 'none'}")
    if given.write:
        document = DOCUMENT.read_text()
        before, after = document.split(BEGIN)[0], document.split(END)[1]
        DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
