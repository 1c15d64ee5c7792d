"""The report does not depend on how tasks divide both sides, nor on the order in which they store results."""

import json
import random
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bwtui.audit import core
from bwtui.audit.report import collect
from bwtui.errors import StateFailed
from bwtui.verify.digests import SIDES, DigestFiles, Side
from tests.audit import judging, planting
from tests.audit.conftest import CASES
from tests.audit.test_planted import CHANGES, SEEDS, case
from tests.audit.world import World

#: Columns in addition to the rules' inputs.
_BESIDE = (
    """'public' as "schema", topic as "table", 'a run' as session, 1 as key_schema_id, 2 as value_schema_id"""
)


def tasks_of(
    made: duckdb.DuckDBPyConnection, side: Side, rng: random.Random
) -> Iterator[list[pa.RecordBatch]]:
    """Divide a side's rows into tasks, and those into batches, in any order."""
    beside = f", {_BESIDE}" if side == "expected" else ""
    table = made.sql(f"select *{beside} from {side}_in").to_arrow_table()
    table = table.take(pa.array(rng.sample(range(table.num_rows), table.num_rows), pa.int64()))
    cuts = sorted({0, table.num_rows, *(rng.randint(0, table.num_rows) for _ in range(rng.randint(0, 3)))})
    for low, high in pairwise(cuts):
        yield table.slice(low, high - low).to_batches(max_chunksize=rng.randint(1, 50))


def report_of(world: World, made: duckdb.DuckDBPyConnection, rng: random.Random) -> str:
    """Pass the stored results of an engine's tasks to the rules; return the report and all findings."""
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        sides = DigestFiles(Path(folder))
        for side in SIDES:
            for number, batches in enumerate(tasks_of(made, side, rng)):
                sides.add(side, number, batches)
        rows = made.execute("select (select count(*) from expected_in) + (select count(*) from actual_in)")
        assert rows.fetchall() == [(sides.rows(),)]
        connection.execute("set preserve_insertion_order = false")
        sides.show(connection)
        for name in core.INPUTS.keys() - {f"{side}_in" for side in SIDES}:
            connection.register("given", made.sql(f"select * from {name}").to_arrow_table())
            connection.execute(f"create table {name} as select * from given")
        window = judging.window_of(world)
        core.run(connection, window, judging.WorldReader(world))
        found = judging.findings(connection)
        return json.dumps([collect(connection, window).to_json(), sorted(map(repr, found.items()))])


def check(seed: int, changes: int, faults: list[str]) -> None:
    """Compare both reports of one world."""
    world, _ = case(seed, changes, faults)
    rng = random.Random(seed)
    with duckdb.connect() as made:
        judging.load(made, world)
        first, second = (report_of(world, made, rng) for _ in range(2))
    assert first == second


# Each case is judged twice, and the rules have their own tests: fewer cases are enough.
@settings(max_examples=max(1, CASES // 10))
@given(SEEDS, CHANGES, st.lists(st.sampled_from(sorted(planting.FAULTS)), max_size=8))
def test_the_report_is_the_same_byte_for_byte(seed: int, changes: int, faults: list[str]) -> None:
    check(seed, changes, faults)


@pytest.mark.long
@pytest.mark.parametrize("fault", sorted(planting.FAULTS))
def test_of_each_fault(fault: str) -> None:
    for seed in range(10):
        check(seed, 30, [fault])


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    sides = DigestFiles(tmp_path)
    (tmp_path / "actual").rmdir()
    with pytest.raises(StateFailed, match=r"digests can't be written into .*/actual: No such file"):
        sides.add("actual", 0, [pa.RecordBatch.from_pydict({"offset": [1]})])
