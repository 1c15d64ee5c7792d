"""Evaluation of the benchmark against Debezium: checks, files, tables and charts."""

import json
import xml.etree.ElementTree as ElementTree
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.debezium import page, results
from benchmarks.debezium.__main__ import arguments_of
from benchmarks.debezium.topics import Counted, check, check_values, number_of
from benchmarks.debezium.workloads import WORKLOADS
from bwtui.errors import BwtuiError, UsageError

#: These are not measurements: round numbers, whose medians and ratios are obvious.
_RUNS = [
    (1, "bwtui", 100_000, 10.0, 90),
    (1, "debezium", 25_000, 40.0, 800),
    (2, "debezium", 20_000, 44.0, 820),
    (2, "bwtui", 120_000, 8.0, 95),
    (3, "bwtui", 90_000, 9.0, 100),
    (3, "debezium", 30_000, 42.0, 700),
]


def made_up(workload: str = "stream", **other: Any) -> dict[str, Any]:
    """Return results in the format of the benchmark."""
    runs = [
        {"pair": pair, "way": way, "rows_per_second": rows, "cpu_us_per_row": cpu, "resident_mb": resident}
        for pair, way, rows, cpu, resident in _RUNS
    ]
    head = {"workload": workload, "title": WORKLOADS[workload].title, "rows": 2_000_000, "warm_rows": 300_000}
    head |= {"uncounted_seconds": 0, "settings": {}}
    said = {"machine": dict.fromkeys(("cores", "cpu", "memory_gb", "kernel"), "some")}
    versions = ("bwtui", "compiled", "python", "librdkafka", "debezium", "java", "postgresql", "kafka")
    said["versions"] = dict.fromkeys((*versions, "registry", "pg_recvlogical"), "some")
    return {**head, "heap": "768m", **said, "runs": runs, **other}


def test_the_page_says_what_was_measured() -> None:
    root = Path(__file__).parents[2]
    found = page.everything(root / "benchmarks" / "results")
    kept = results.first_snapshots(root / "benchmarks" / "results")
    texts = [path.read_text() for path in page.PAGES]
    for text in texts:
        assert page.written(text, found, kept) == text, "run: python -m benchmarks.debezium.page"
    assert kept is not None and page.first_snapshots(kept) in texts[1]
    for name, picture in page.pictures(found).items():
        assert (root / "docs" / "benchmarks" / name).read_text() == picture
        assert f"](benchmarks/{name})" in texts[0]
    for one in found:
        assert one["title"] in texts[0]
        assert max(run["pair"] for run in one["runs"]) >= 5


def test_ratios_are_of_pairs_and_tables_of_medians() -> None:
    found = results.ratios(made_up()["runs"], "debezium", "rows_per_second")
    assert found == results.Spread(4.0, 3.0, 6.0)
    lines = page.table(made_up()).splitlines()
    assert lines[0].startswith("|  | runs | rows/s | CPU µs a row | memory, MB |")
    assert lines[2].endswith(
        "| 3 | 100,000 (90,000 to 120,000) | 9.0 (8.0 to 10.0) | 95.0 (90.0 to 100) |  |"
    )
    assert lines[3].endswith(
        "| 25,000 (20,000 to 30,000) | 42.0 (40.0 to 44.0) | 800 (700 to 820) | **4.00** (3.00 to 6.00) |"
    )
    assert "2,000,000 rows | 100,000 | 25,000 | **4.00** (3.00 to 6.00) | 9.0 | 42.0 | 95.0 | 800 |" in (
        page.overview([made_up()])
    )


def test_a_way_that_broke_off_has_no_ratio_of_the_pair_that_it_lacks() -> None:
    runs = [run for run in made_up()["runs"] if (run["pair"], run["way"]) != (3, "debezium")]
    assert results.ratios(runs, "debezium", "rows_per_second") == results.Spread(5.0, 4.0, 6.0)
    assert results.ratios(runs, "debezium-2", "rows_per_second") is None


def test_a_page_gets_the_tables_that_it_names() -> None:
    text = "# A\n<!-- measured: stream -->\nold\n<!-- end of what was measured -->\n\nB\n"
    once = page.written(text, [made_up()])
    assert page.table(made_up()) in once and "old" not in once and once.endswith("\n\nB\n")
    assert page.written(once, [made_up()]) == once
    with pytest.raises(UsageError, match=r"a table 'stream', of which there are no results"):
        page.written(text, [made_up("single")])


def test_where_it_was_measured_is_one_column_unless_it_differs() -> None:
    other = made_up("single", heap="1g")
    assert page.machine([made_up(), made_up("wide")]).splitlines()[0] == "|  | all workloads |"
    assert "| heap | -Xmx768m | -Xmx1g |" in page.machine([made_up(), other])


def test_pictures_have_a_bar_for_each_way() -> None:
    drawn = page.pictures([made_up(), made_up("single")])
    assert sorted(drawn) == ["cpu.svg", "memory.svg", "rows.svg"]
    for picture in drawn.values():
        root = ElementTree.fromstring(picture)
        bars = root.findall("{*}rect")[1:]
        assert len(bars) == 4
    bars = ElementTree.fromstring(drawn["rows.svg"]).findall("{*}rect")[1:]
    widths = [float(bar.get("width", "0")) for bar in bars]
    assert widths[0] == widths[2] == pytest.approx(4 * widths[1], rel=0.01)


def test_runs_are_added_only_to_what_is_of_the_same_kind(tmp_path: Path) -> None:
    head = made_up(runs=[])
    kept = results.begun(tmp_path, head, is_added=False)
    kept["runs"] += made_up()["runs"]
    results.write(tmp_path, kept)
    assert json.loads((tmp_path / "debezium-stream.json").read_text()) == kept
    with pytest.raises(UsageError, match=r"debezium-stream\.json is there already"):
        results.begun(tmp_path, head, is_added=False)
    assert len(results.begun(tmp_path, head, is_added=True)["runs"]) == 6
    with pytest.raises(UsageError, match="measured with another heap: 768m, and now it is 1g"):
        results.begun(tmp_path, {**head, "heap": "1g"}, is_added=True)
    assert [one["workload"] for one in page.everything(tmp_path)] == ["stream"]
    with pytest.raises(UsageError, match="has no results"):
        page.everything(tmp_path / "elsewhere")


def test_a_run_counts_only_with_every_row_once() -> None:
    check(Counted(messages=4, distinct=4, sum_of_keys=10), 4)
    for wrong in (
        Counted(messages=3, distinct=3, sum_of_keys=6),
        Counted(messages=5, distinct=4, sum_of_keys=14),
        Counted(messages=4, distinct=3, sum_of_keys=9),
        Counted(messages=4, distinct=4, sum_of_keys=11),
    ):
        with pytest.raises(BwtuiError, match="for 4 rows"):
            check(wrong, 4)


def test_values_are_compared_with_the_table() -> None:
    rows = [(1, Decimal("0.10"), "a"), (2, Decimal("0.20"), None)]
    sent = {1: {"id": 1, "n": Decimal("0.1"), "b": "a"}, 2: {"id": 2, "n": Decimal("0.2"), "b": None}}
    check_values(rows, ["id", "n", "b"], sent)
    with pytest.raises(BwtuiError, match="column b of the row 2"):
        check_values(rows, ["id", "n", "b"], sent | {2: {**sent[2], "b": ""}})
    with pytest.raises(BwtuiError, match="rows were sent that the table has not"):
        check_values(rows[:1], ["id", "n", "b"], sent)


@pytest.mark.parametrize("number", [0, 1, 63, 64, 300, 2_000_000, 2**40])
def test_a_key_is_a_number_in_both_forms(number: int) -> None:
    left, digits = number << 1, bytearray()
    while left > 0x7F:
        digits.append(left & 0x7F | 0x80)
        left >>= 7
    digits.append(left)
    assert number_of(b"\0\0\0\0\7" + bytes(digits)) == number
    # After the branch of a union, as in a nullable field.
    assert number_of(b"\0\0\0\0\7\2" + bytes(digits)) == number


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--workloads", "stream,streem"], "there is no workload 'streem'"),
        (["--ways", "debezium-3"], "there is no way 'debezium-3'"),
        (["--workloads", ","], "there is no workload in ','"),
        (["--rows", "0"], "--rows is 0"),
        (["--pairs", "-1"], "--pairs is -1"),
        (["--warm-up", "-1"], "--warm-up is -1"),
        (["--heap", "lots"], "--heap is 'lots', which is not a valid heap size"),
        (["--ways", "pg_recvlogical", "--workloads", "latency"], "pg_recvlogical has no part in latency"),
    ],
)
def test_bad_input_gets_one_sentence(given: list[str], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        arguments_of(given)
    assert raised.value.message.startswith(said)
    assert raised.value.hint


def test_every_workload_can_be_run_by_its_ways() -> None:
    for name, workload in WORKLOADS.items():
        assert arguments_of(["--workloads", name, "--ways", ",".join(workload.ways)])
        assert workload.rows(1) >= 1 and workload.rows(2_000_000) % (workload.transaction_rows or 1) == 0
