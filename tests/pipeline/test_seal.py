"""Sealing as a whole: the files that it creates, leaves alone or keeps after a kill, and damage."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from bwtui.cli.main import CONTEXT
from bwtui.cli.recording.seal import seal as seal_command
from bwtui.durable_files import locked
from bwtui.errors import DamagedRecording, RefusedError, UsageError
from bwtui.recording.folder import existing_segments
from bwtui.recording.sealed import MANIFEST, SEALED, SEALING, open_sealed
from bwtui.seal.sealing import SealOutcome, seal
from bwtui.seal.task import run
from bwtui.spark.failure import TaskFailed, plain
from tests.pipeline.test_seal_rows import expected_rows, play, read_rows
from tests.recorded_stream import Stream, table


class LocalSpark:
    """The part of Spark that sealing needs, in this process."""

    def __init__(self) -> None:
        self.tasks: list[Any] = []

    @property
    def sparkContext(self) -> "LocalSpark":
        return self

    def parallelize(self, tasks: list[Any], slices: int) -> "LocalSpark":
        assert slices == len(tasks)
        self.tasks = tasks
        return self

    def mapPartitions(self, function: Callable[[Iterator[Any]], Iterator[Any]]) -> "LocalSpark":
        self._function = function
        return self

    def collect(self) -> list[Any]:
        try:
            return [found for task in self.tasks for found in self._function(iter([task]))]
        except TaskFailed as error:
            raise plain(error) from None


def local(folder: Path, **options: Any) -> SealOutcome:
    """Seal without Java."""
    return seal(folder, lambda: contextlib.nullcontext(LocalSpark()), cores=3, **options)


def record(folder: Path, seed: int = 1, steps: int = 120) -> Stream:
    """Record several segments, and end the recording."""
    stream = Stream(folder, {"segment_bytes": 4_000})
    stream.begin_pass()
    play(stream, random.Random(seed), steps)
    return stream


def rows(folder: Path) -> list[tuple[Any, ...]]:
    """Return the rows of all sealed Parquet files, in order, as any Parquet reader finds them."""
    found = [row for path in (folder / SEALED / "changes").rglob("*.parquet") for row in read_rows(path)]
    return sorted(found, key=lambda row: (row[0], row[6]))


def test_seal_twice_and_after_more_was_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    stream = record(folder)
    before = len(existing_segments(folder))
    told: list[tuple[int, int]] = []
    outcome = local(folder, on_progress=lambda done, total: told.append((done, total)))
    assert outcome.segments == before and outcome.skipped_segments == 0 and told[-1] == (outcome.changes,) * 2
    assert rows(folder) == expected_rows(folder)
    assert local(folder).was_sealed
    first = {path: path.stat().st_mtime_ns for path in (folder / SEALED).rglob("*.parquet")}
    stream.start()
    stream.begin_pass()
    play(stream, random.Random(7), 40)
    assert open_sealed(folder).behind > 0
    outcome = local(folder)
    assert outcome.segments == len(existing_segments(folder)) - before
    assert rows(folder) == expected_rows(folder)
    assert first.items() <= {p: p.stat().st_mtime_ns for p in (folder / SEALED).rglob("*.parquet")}.items()
    sealed = open_sealed(folder)
    assert sealed.behind == 0 and sealed.manifest.changes == outcome.manifest.changes
    assert not (folder / SEALING).exists()


def test_nothing_but_a_snapshot(tmp_path: Path) -> None:
    """There is no transaction then, and the file of transactions has no rows."""
    folder = tmp_path / "r"
    stream = Stream(folder)
    relation = table(1, "a")
    for key in range(50):
        stream.row(relation, key, b"x")
    stream.stop()
    assert local(folder).changes == 50
    assert rows(folder) == expected_rows(folder)
    (transactions,) = (folder / SEALED / "transactions").glob("*.parquet")
    assert duckdb.connect().execute(f"select count(*) from '{transactions}'").fetchone() == (0,)


def test_one_at_a_time_and_only_what_is_finished(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        local(tmp_path / "none")
    folder = tmp_path / "r"
    record(folder, steps=40)
    with (
        locked(folder / "seal.lock", AssertionError()),
        pytest.raises(RefusedError, match="another process is sealing"),
    ):
        local(folder)
    last = existing_segments(folder)[-1]
    last.path.rename(folder / f"{last.number:08d}.partial")
    before = sorted(path.name for path in folder.iterdir() if path.name != "seal.lock")
    (folder / "seal.lock").unlink()
    with pytest.raises(DamagedRecording, match="is not finished") as refused:
        local(folder)
    assert refused.value.hint == f"run 'bwtui recording recover {folder.resolve()}' first"
    assert sorted(path.name for path in folder.iterdir()) == before, (
        "nothing is left of a run that was refused"
    )


def test_a_recording_that_is_being_written(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    stream = Stream(folder, {"segment_bytes": 600})
    stream.begin_pass()
    for number in range(60):
        stream.change("insert", table(1, "t"), number, b"x" * 20)
        stream.commit()
        stream.flush()
        stream.settle()
        if number == 20:
            stream.deliver()
    finished = [one for one in existing_segments(folder) if one.is_finished]
    outcome = local(folder)
    # The messages of the last segments are in flight: their outcome is not known yet.
    assert 0 < outcome.segments < len(finished) and outcome.skipped_segments > 1
    stream.deliver()
    stream.stop()
    assert local(folder).skipped_segments == 0
    assert rows(folder) == expected_rows(folder)


def test_a_recording_that_has_just_begun(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    stream = Stream(folder)
    stream.begin_pass()
    stream.change("insert", table(1, "t"), 1, b"x")
    stream.commit()
    stream.flush()
    stream.deliver()
    with pytest.raises(RefusedError, match="has no complete segment") as refused:
        local(folder)
    assert refused.value.hint is not None and "stop the relay, or wait" in refused.value.hint
    assert not (folder / SEALED).exists() and not (folder / SEALING).exists()
    stream.stop()
    assert local(folder).changes == 1


class Killed(BaseException):
    """Simulates kill -9 in this process."""


@pytest.mark.parametrize("at", range(0, 30, 2))
@pytest.mark.variants(6)
def test_a_kill_between_any_two_steps(tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "r"
    record(folder, steps=60)
    steps = 0

    def step(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > at * 3:
                raise Killed
            return function(*args, **kwargs)

        return counted

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        for name in ("rename", "replace", "unlink", "write_text"):
            patch.setattr(Path, name, step(getattr(Path, name)))
        patch.setattr("shutil.rmtree", step(lambda *args, **kwargs: None))
        local(folder)
    if (folder / SEALED / MANIFEST).exists():
        open_sealed(folder)
    elif (folder / SEALED).exists():
        with pytest.raises(UsageError):
            open_sealed(folder)
    local(folder)
    assert rows(folder) == expected_rows(folder)
    assert local(folder).was_sealed and not (folder / SEALING).exists()


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    record(folder, steps=60)
    local(folder)
    choose = random.Random(5)
    files = [path for path in (folder / SEALED).rglob("*") if path.is_file()]
    for number in range(120):
        path = choose.choice(files) if number % 4 else folder / SEALED / MANIFEST
        raw = path.read_bytes()
        at = choose.randrange(len(raw))
        damaged = (
            raw[:at] if number % 10 == 9 else raw[:at] + bytes([raw[at] ^ 1 << number % 8]) + raw[at + 1 :]
        )
        path.write_bytes(damaged)
        with pytest.raises(DamagedRecording) as found:
            open_sealed(folder)
        assert path.name in found.value.message, (path, at)
        path.write_bytes(raw)
    with pytest.raises(DamagedRecording):
        files[0].write_bytes(b"")
        local(folder)


def test_a_damaged_journal_is_not_sealed(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    record(folder, steps=60)
    choose = random.Random(6)
    for _ in range(25):
        path = choose.choice([one.path for one in existing_segments(folder)])
        raw = path.read_bytes()
        at = choose.randrange(len(raw))
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << choose.randrange(8)]) + raw[at + 1 :])
        # Segments that were sealed before a damaged one was met need not be read again.
        shutil.rmtree(folder / SEALING, ignore_errors=True)
        with pytest.raises(DamagedRecording) as found:
            local(folder)
        assert path.name in found.value.message, (path, at)
        path.write_bytes(raw)
    local(folder)


def test_with_spark_and_strangers_readers(tmp_path: Path, spark: SparkSession) -> None:
    folder = tmp_path / "shop"
    record(folder, steps=200)
    outcome = seal(folder, lambda: contextlib.nullcontext(spark), task_bytes=10_000)
    assert outcome.segments > 4
    expected = expected_rows(folder)
    assert rows(folder) == expected
    tables: dict[tuple[str, str], int] = {}
    for row in expected:
        tables[row[9], row[7]] = tables.get((row[9], row[7]), 0) + 1
    query = 'select "table", op, count(*) from read_parquet(?) group by all'
    with duckdb.connect() as database:
        found = database.execute(query, [f"{folder}/sealed/changes/**/*.parquet"]).fetchall()
        assert {(name, op): count for name, op, count in found} == tables
        total = "select sum(changes)::int from read_parquet(?)"
        [(counted,)] = database.execute(total, [f"{folder}/sealed/transactions/*.parquet"]).fetchall()
    assert counted == len({row[0] for row in expected if row[7] not in ("snapshot", "backfill", "cleanup")})
    check_examples(tmp_path, spark, tables)
    frame = spark.read.parquet(f"{folder}/sealed/changes")
    grouped = {
        (one["table"], one["op"]): one["count"] for one in frame.groupBy("table", "op").count().collect()
    }
    assert grouped == tables


def check_examples(parent: Path, spark: SparkSession, tables: dict[tuple[str, str], int]) -> None:
    """Run the examples of docs/recording-format.md, unchanged, on a recording called shop."""
    page = (Path(__file__).parents[2] / "docs" / "recording-format.md").read_text()
    blocks = dict(re.findall(r"```(sql|python)\n(.*?)```", page, re.DOTALL))
    queries = blocks["sql"].replace("'shop/", f"'{parent}/shop/").split(";\n")
    orders = [row for row in expected_rows(parent / "shop") if row[9] == "orders" and row[22]]
    queries = [one.replace("= '7'", f"= '{json.loads(orders[0][22])['id']}'") for one in queries]
    with duckdb.connect() as database:
        counts, key, last, as_of, joined = (
            database.execute(one).fetchall() for one in queries if one.strip()
        )
        assert {(name, op) for name, op, _ in counts} <= tables.keys() and key and last and as_of and joined
        assert len(as_of) == len({json.loads(row)["id"] for (row,) in as_of})
    exec(blocks["python"].replace('"shop/', f'"{parent}/shop/'), {"spark": spark})


def test_kill_9_and_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    stream = Stream(folder, {"segment_bytes": 600_000})
    stream.begin_pass()
    for number in range(3_000):
        stream.change("insert", table(1, "t"), number, b"%064d" % number * 20)
        if number % 100 == 99:
            stream.commit()
            stream.flush()
            stream.deliver()
            stream.settle()
    stream.stop()
    # It does not complete, however late the kill is.
    code = "import time, bwtui.seal.sealing as seal; seal._commit = lambda *_: time.sleep(600)\n"
    code += "from bwtui.cli.main import main; main()"
    command = [sys.executable, "-c", code, "recording", "seal", str(folder)]
    process = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + 200
    while not list((folder / SEALING).glob("*/*/part.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list((folder / SEALING).glob("*/*/part.json"))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / SEALED / MANIFEST).exists()
    outcome = local(folder)
    assert outcome.manifest.changes == 3_000
    assert rows(folder) == expected_rows(folder)


def test_tasks_of_a_killed_run_that_work_on_for_a_moment(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    record(folder)

    class Killed(LocalSpark):
        def collect(self) -> list[Any]:
            raise KeyboardInterrupt

    class WithOrphans(LocalSpark):
        def collect(self) -> list[Any]:
            ends = []
            for task in killed.tasks:
                with contextlib.suppress(FileNotFoundError):
                    ends.append(run(task))
            assert not ends
            return super().collect()

    killed = Killed()
    with pytest.raises(KeyboardInterrupt):
        seal(folder, lambda: contextlib.nullcontext(killed), cores=3)
    assert killed.tasks
    outcome = seal(folder, lambda: contextlib.nullcontext(WithOrphans()), cores=3)
    assert not outcome.resumed and not (folder / SEALING).exists()
    assert rows(folder) == expected_rows(folder)


def test_the_command_says_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "r"
    record(folder, steps=40)
    monkeypatch.setattr(
        "bwtui.spark.session.spark_session", lambda *args, **kwargs: contextlib.nullcontext(LocalSpark())
    )
    first = CliRunner().invoke(seal_command, [str(folder)], catch_exceptions=False, **CONTEXT)
    assert first.output.startswith("sealed ") and first.output.count("\n") == 1
    again = CliRunner().invoke(seal_command, [str(folder)], catch_exceptions=False, **CONTEXT)
    assert again.output.startswith("nothing to do: ")
    told = json.loads(
        CliRunner().invoke(seal_command, [str(folder), "--json"], catch_exceptions=False, **CONTEXT).output
    )
    assert told["sealed_now"] == 0 and told["changes"] > 0
