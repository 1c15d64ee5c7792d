"""What the relay holds does not grow with DDL, with reconnects, nor with what waits to be recorded."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bwtui.recording.check import check
from bwtui.relay.batch import BATCH_BYTES
from bwtui.relay.recorder import Recorder
from bwtui.relay.routing import Route
from tests.scripted_relay import ScriptedRelay, table

COLUMNS = ["id", *(f"c{number}" for number in range(10))]


@pytest.fixture(autouse=True)
def collector_rests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A relay's collector nearly never looks: see `bwtui.cycles`."""
    # What is kept up to a bound is so soon.
    monkeypatch.setattr("bwtui.relay.samples.KEPT", 5)
    monkeypatch.setattr("bwtui.relay.rows._ROUTES_KEPT", 16)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def growth(step: Callable[[int], None], first: int, last: int) -> int:
    """Return by how many bytes what is held grows from step ``first`` to ``last``."""
    tracemalloc.start()
    try:
        for number in range(first):
            step(number)
        before, _ = tracemalloc.get_traced_memory()
        for number in range(first, last):
            step(number)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before


@pytest.mark.parametrize(("output_format", "record"), [("avro", False), ("avro", True), ("json", True)])
def test_memory_does_not_grow_with_alter_table(tmp_path: Path, record: bool, output_format: str) -> None:
    relay = ScriptedRelay(tmp_path, record=record, output_format=output_format, segment_bytes=50_000)

    def alter(number: int) -> None:
        columns = [*COLUMNS, f"extra{number}"] if number % 2 else COLUMNS
        relation = table(7, "t", columns)
        relay.begin()
        relay.announce(relation)
        relay.insert(relation, [b"x"] * len(columns))
        relay.commit()
        relay.play()
        relay.sink.delivered.clear()

    assert growth(alter, 60, 140) < 80_000
    relay.close()


def test_memory_hardly_grows_with_tables_that_come_and_go(tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path, segment_bytes=50_000)

    def come_and_go(number: int) -> None:
        relation = table(1_000 + number, f"t{number}", COLUMNS)
        relay.begin()
        relay.announce(relation)
        relay.insert(relation, [b"x"] * len(COLUMNS))
        relay.commit()
        relay.play()
        relay.sink.delivered.clear()
        relay.catalog.keys.clear()

    # Counters, topic, schema and RELATION of a table stay; its functions do not.
    assert growth(come_and_go, 80, 160) < 80 * 6_000
    relay.close()
    assert check(relay.folder).verdict == "clean"


def test_memory_does_not_grow_with_rows_of_a_refused_table(tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path, on_error="log")
    refused = table(7, "t", ["c", "d"], identity="f")

    def row(number: int) -> None:
        relay.begin()
        if not number:
            relay.announce(refused, key="")
        for _ in range(10):
            relay.insert(refused, [b"x" * 1_000, b"y"])
        relay.commit()
        relay.play()

    assert growth(row, 10, 30) < 100_000
    assert relay.report.tables["public.t"].dead_letters == 300
    relay.close()


def test_memory_does_not_grow_with_reconnects(tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path, segment_bytes=50_000)
    relation = table(7, "t", COLUMNS)

    def reconnect(number: int) -> None:
        relay.connect()
        # As the engine does before each session.
        gc.collect()
        relay.begin()
        relay.announce(relation)
        relay.insert(relation, [b"x"] * len(COLUMNS))
        relay.commit()
        relay.play()
        relay.sink.delivered.clear()

    assert growth(reconnect, 15, 35) < 30_000
    relay.close()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What each batch held when it was recorded: bytes of frames and of messages."""
    found: list[tuple[int, int]] = []
    write = Recorder.write_batch

    def note(recorder: Recorder, routes: Sequence[Route]) -> Any:
        found.append((sum(map(len, recorder.frames)), sum(route.bytes for route in routes)))
        return write(recorder, routes)

    monkeypatch.setattr(Recorder, "write_batch", note)
    return found


@pytest.mark.parametrize("kind", ["deletes", "inserts", "unkeyed", "refused"])
def test_a_batch_holds_no_more_than_its_bound_and_a_row(
    tmp_path: Path, written: list[tuple[int, int]], kind: str
) -> None:
    size = 200_000
    relay = ScriptedRelay(tmp_path, on_error="log", allow_unkeyed=True)
    relation = table(7, "t", ["id", "body"])
    relay.begin()
    relay.announce(relation, key="" if kind == "unkeyed" else "id")
    for number in range(100):
        row = [b"%d" % number, b"x" * size]
        if kind == "inserts":
            relay.insert(relation, row)
        elif kind == "refused":
            relay.insert(relation, [*row, b"too many"])
        else:
            relay.delete(relation, row)
    relay.commit()
    relay.play()
    assert sum(frames for frames, _ in written) > 100 * size
    assert max(frames + messages for frames, messages in written) < BATCH_BYTES + 2 * size + 1_000
    relay.close()
    assert check(relay.folder).verdict == "clean"


def test_a_batch_of_nothing_but_truncates_is_bounded(tmp_path: Path, written: list[tuple[int, int]]) -> None:
    relay = ScriptedRelay(tmp_path)
    relation = table(7, "t", ["id"])
    relay.begin()
    relay.announce(relation)
    for _ in range(40_000):
        relay.truncate(relation)
    relay.commit()
    relay.play()
    assert max(frames for frames, _ in written) < BATCH_BYTES + 1_000
    relay.close()
    checked = check(relay.folder)
    assert (checked.verdict, checked.changes) == ("clean", 40_000)
