"""In a sealed recording the last op of each key shows whether its row still exists."""

from pathlib import Path

import duckdb
import pytest

from bwtui.recording.query_language import parse, to_sql
from bwtui.seal import rows
from bwtui.verify.audit_inputs import open_recorded
from bwtui.verify.recordings import verify_recordings
from tests.pipeline.test_seal import local
from tests.recorded_stream import Stream, table

LAST = "select key_json ->> '$.id', max_by(op, (position, part)) from sealed group by all order by all"


def recorded(folder: Path) -> Path:
    """Record a row whose key changes from 1001 to 1 and is updated, and a deleted row; and seal them."""
    stream, orders = Stream(folder), table(1, "orders")
    stream.begin_pass()
    for what, key in (("insert", 1001), ("rename", 1), ("insert", 2), ("delete", 2)):
        stream.change(what, orders, key, b"x")
        stream.commit()
    stream.stop()
    local(folder)
    return folder


def older(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Record and seal the same in the older way: the tombstone of a changed key is an update."""
    with monkeypatch.context() as patched:
        patched.setattr(rows, "_KEY_CHANGE", rows._UPDATE)
        return recorded(folder)


def asked(folder: Path, query: str) -> list[tuple[object, ...]]:
    """Return the result of a query on a sealed recording, called ``sealed``."""
    with duckdb.connect(config={"threads": 1}) as duck:
        duck.execute(f"create view sealed as from read_parquet('{folder}/sealed/changes/**/*.parquet')")
        return duck.execute(query).fetchall()


def test_the_last_op_of_a_key(tmp_path: Path) -> None:
    shop = recorded(tmp_path / "shop")
    assert asked(shop, LAST) == [("1", "update"), ("1001", "key_change"), ("2", "delete")]
    parts = "select op, part, value is null from sealed where position = 1 order by part"
    assert asked(shop, parts) == [("key_change", 0, True), ("update", 1, False)]


def test_both_kinds_of_recordings_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = older(tmp_path / "old", monkeypatch), recorded(tmp_path / "new")
    assert asked(old, LAST)[1] == ("1001", "update")
    for first, second in ((old, new), (new, old)):
        report = verify_recordings(
            open_recorded(first), open_recorded(second), spark_master="local[1]", samples=5
        )
        assert report.verdict == "clean" and report.expected == 5
    for query in ("op = update", "key.id = 1001 and op = update", "op = delete"):
        found = f"select position, part from sealed where {to_sql(parse(query))} order by all"
        assert asked(old, found) == asked(new, found) != []
