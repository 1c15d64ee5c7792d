"""The engines of an audit, and how their threads end when one of them fails."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bwtui.errors import ConnectionFailed
from bwtui.kafka.client import Config
from bwtui.kafka.columns import SplitReadOptions
from bwtui.kafka.scan import Split
from bwtui.spark.lazy_session import SMALL_JOURNAL, SMALL_ROWS
from bwtui.verify.digests import DecodeCheck, DecodeResult, Digest, DigestFiles, DigestJob
from bwtui.verify.engines import DigestEngines, ThreadDigestEngine

Phases = list[str]


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> Phases:
    """Collect the phases and the state of a fake Spark session."""
    told: Phases = []

    @contextlib.contextmanager
    def session(master: str, *_: Any, **__: Any) -> Iterator[Any]:
        told.append(f"{master} is there")
        yield SimpleNamespace(sparkContext=SimpleNamespace(master=master, defaultParallelism=8))
        told.append("it is closed")

    monkeypatch.setattr("bwtui.spark.session.spark_session", session)
    return told


def test_a_small_audit_runs_in_threads(phases: Phases) -> None:
    engines = DigestEngines(None, phases.append)
    with engines.closing():
        assert isinstance(engines.of(SMALL_ROWS), ThreadDigestEngine)
        with engines.for_sealing(SMALL_JOURNAL) as session:
            assert session is None
    assert (phases, engines.name, engines.start_seconds) == ([], "threads", 0.0)


@pytest.mark.parametrize(
    ("master", "use"),
    [
        (None, lambda engines: engines.of(SMALL_ROWS + 1)),
        (None, lambda engines: engines.for_sealing(SMALL_JOURNAL + 1)),
        ("local[3]", lambda engines: engines.of(1)),
        ("local[3]", lambda engines: engines.for_sealing(1)),
    ],
    ids=["large", "a large journal", "asked for", "asked for to seal"],
)
def test_spark_starts_once_where_it_is_worth_it(
    master: str | None, use: Callable[[DigestEngines], object], phases: Phases
) -> None:
    engines = DigestEngines(master, phases.append)
    with engines.closing():
        use(engines)
        # Once started, Spark is used for everything.
        assert not isinstance(engines.of(1), ThreadDigestEngine)
        with engines.for_sealing(1) as session:
            assert session is not None
        with engines.ended_beside():
            pass
        assert phases[-1] == "it is closed"
    name = master or "local[*]"
    assert phases == ["starting Spark", f"{name} is there", "it is closed"]
    assert engines.name == f"Spark, {name}"


class _Job(DigestJob):
    """The first task fails while the second runs until it is cancelled; the third never begins."""

    def run(
        self, number: int, config: Config, check: Callable[[], None] = lambda: None
    ) -> Iterator[DecodeResult]:
        assert number < 2, "begun after one has failed"
        begun.wait(10)
        if number == 0:
            raise ConnectionFailed("Kafka is gone", "look")
        ended.append(number)
        for _ in range(10_000):
            check()
            threading.Event().wait(0.001)
        yield DecodeResult(0, [])


begun, ended = threading.Barrier(2), list[int]()


def test_when_a_thread_fails_the_others_end(tmp_path: Path) -> None:
    tasks = [Split("t", number, 0, 1) for number in range(3)]
    job = _Job(
        tmp_path, tasks, DigestFiles(tmp_path), DecodeCheck({}, False, {}), SplitReadOptions(()), Digest()
    )
    engine = ThreadDigestEngine()
    engine.cores = 2
    with pytest.raises(ConnectionFailed, match="Kafka is gone"):
        engine.run(job, {})
    assert ended == [1]


def test_what_the_tasks_find_is_in_their_order(tmp_path: Path) -> None:
    class Slow(DigestJob):
        def run(
            self, number: int, config: Config, check: Callable[[], None] = lambda: None
        ) -> Iterator[DecodeResult]:
            threading.Event().wait(0.01 * (4 - number))
            yield DecodeResult(1, [number])

    tasks = [Split("t", number, 0, 1) for number in range(4)]
    job = Slow(
        tmp_path, tasks, DigestFiles(tmp_path), DecodeCheck({}, False, {}), SplitReadOptions(()), Digest()
    )
    engine = ThreadDigestEngine()
    engine.cores = 4
    assert [one.miscoded for one in engine.run(job, {})] == [[0], [1], [2], [3]]
