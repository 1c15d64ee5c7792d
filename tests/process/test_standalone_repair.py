"""A repair without a relay resends the selected keys that still differ."""

import tracemalloc
from pathlib import Path

from bwtui.relay.history.backfill_store import Key, read_keys, write_keys
from bwtui.repair.plan import TablePlan
from bwtui.repair.standalone_repair import _of_both


def plan(path: Path, *keys: Key) -> TablePlan:
    return TablePlan("public.a", "a", rows=write_keys(path, keys), keys=path)


def test_only_what_differs_still(tmp_path: Path) -> None:
    chosen = plan(tmp_path / "1", ("3", "a"), b"7", ("1", "\ud800"), ("2", "x"), b"8")
    found = plan(tmp_path / "2", b"8", ("1", "\ud800"), ("7",), ("3", "a"), ("2", "X"), b"3")
    (both,) = _of_both([found], [chosen])
    assert both.keys is not None
    assert [*read_keys(both.keys)] == [("3", "a"), ("1", "\ud800"), b"8"]
    assert both.messages == 3
    assert _of_both([plan(tmp_path / "3", b"9")], [chosen]) == []


def test_many_keys_take_no_memory(tmp_path: Path) -> None:
    keys = [(str(number),) for number in range(30_000)]
    chosen, found = plan(tmp_path / "1", *keys), plan(tmp_path / "2", *keys)
    # What the first call imports is not counted.
    _of_both([plan(tmp_path / "3", keys[0])], [plan(tmp_path / "4", keys[0])])
    tracemalloc.start()
    try:
        (both,) = _of_both([found], [chosen])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert both.messages == len(keys)
    assert most < 2 << 20
