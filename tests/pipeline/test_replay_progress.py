"""The progress of a replay is stored completely, and reported in every phase."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bwtui.errors import RefusedError, StateFailed
from bwtui.replay.delivery import LaneProgress, ProgressFile, ReplayProgress
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.pipeline.replayed import Looking, Replays, expected, fresh, recorded, registered


def test_saved_by_several_threads(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, {"recording": "r"})
    progress = ReplayProgress(file.what, lanes={f"t/{number}": LaneProgress(0) for number in range(200)})
    file.save(progress)
    ended = threading.Event()

    def save(_: int) -> None:
        for _ in range(200):
            file.save(progress)

    def load() -> int:
        loaded = 0
        while not ended.is_set():
            assert file.load() == progress
            loaded += 1
        return loaded

    with ThreadPoolExecutor() as pool:
        reader = pool.submit(load)
        try:
            list(pool.map(save, range(4)))
        finally:
            ended.set()
        assert reader.result() > 0
    assert [path.name for path in tmp_path.iterdir()] == [file.path.name]


def test_one_at_a_time(tmp_path: Path) -> None:
    file, other, another = (ProgressFile(tmp_path, {"recording": name}) for name in "aab")
    refused = pytest.raises(RefusedError, match="another process is running this replay")
    with file.locked(), another.locked(), refused, other.locked():
        pass
    with other.locked():
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 2}', '{"format": 1, "lanes": {}}'])
def test_a_torn_file_is_told(tmp_path: Path, content: str) -> None:
    file = ProgressFile(tmp_path, {"recording": "r"})
    file.path.write_text(content)
    with pytest.raises(StateFailed, match="can't be read") as failed:
        file.load()
    assert "--restart" in (failed.value.hint or "")


@pytest.mark.services
def test_every_long_phase_tells_how_far_it_is(
    replays: Replays, services: ServiceAddresses, tmp_path: Path
) -> None:
    topic = fresh("told")
    folder = recorded(tmp_path / "r", topic, 2_000, registered(services, topic))
    sent = len(expected(folder)[topic])
    for phases in (
        ("sealing the recording", "selecting messages", "choosing partitions"),
        ("checking the recording", "selecting messages", "choosing partitions"),
    ):
        watch = Looking()
        replays.run(folder, watch, restart=True)
        for phase in phases:
            counts = watch.counts[phase]
            assert counts and counts == sorted(counts) and counts[-1][0] == counts[-1][1] >= sent
