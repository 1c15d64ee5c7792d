"""Totals of several campaigns."""

from collections import Counter
from pathlib import Path

from tests.torture.campaign import Outcome
from tests.torture.judging import Verdict
from tests.torture.sums import added_up, keep


def test_runs_add_up_by_setting_and_in_all(tmp_path: Path) -> None:
    path = tmp_path / "sums"
    bad = Verdict(30, 3, lost=["a", "b"], torn=["c"])
    for setting, seed, verdict in (("16", 1, Verdict(10, 1)), ("16", 2, Verdict(20, 2)), ("18", 3, bad)):
        faults = Counter({"killed": 2, f"of {seed}": 1})
        keep(path, setting, Outcome(seed, faults, 5, verdict, kills=2, recoveries=[0.5, float(seed)]))
    none = "confirmed repeats 0, lost 0, out of order 0, wrong 0, torn 0"
    assert added_up(path.read_text().splitlines()).splitlines() == [
        f"16: 6 faults of 3 kinds (seeds 1, 2): kills 4, rows 10, messages 30, repeats 3, {none};"
        " longest recovery 2.0 s",
        "18: 3 faults of 2 kinds (seeds 3): kills 2, rows 5, messages 30, repeats 3, confirmed repeats 0,"
        " lost 2, out of order 0, wrong 0, torn 1; longest recovery 3.0 s",
        "in all: 9 faults of 4 kinds (seeds 1, 2, 3): kills 6, rows 15, messages 60, repeats 6,"
        " confirmed repeats 0, lost 2, out of order 0, wrong 0, torn 1; longest recovery 3.0 s",
    ]
