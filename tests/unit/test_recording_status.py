"""An idle recording does not grow by repeated identical data."""

import dataclasses
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bwtui.errors import DamagedRecording
from bwtui.model.backfill import FirstSnapshot
from bwtui.model.latency import Percentiles
from bwtui.model.status import Status
from bwtui.model.verdict import RelayVerdict
from bwtui.recording.blocks import BlockKind, JournalBlock
from bwtui.recording.info import facts
from bwtui.recording.payloads import statement
from bwtui.recording.reader import open_recording
from bwtui.relay.rows.journal_recorder import StatusSchedule
from tests.recorded_stream import Stream, table

ORDERS = table(1, "orders")


def test_a_status_is_due_when_it_has_changed_or_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    status = Status("streaming", "shop", "shop")
    assert StatusSchedule(None).due() is None
    schedule = StatusSchedule(lambda: dataclasses.replace(status, time=now, cpu_seconds=now))
    written = []
    for second in range(121):
        now = 1000.0 + second
        if second == 30:
            status = dataclasses.replace(status, confirmed_lsn=5)
        if schedule.due() is not None:
            written.append(second)
    assert written == [0, 30, 90]
    schedule.forget()
    now += 1
    assert schedule.due() is not None


def test_what_has_changed_just_before_the_end_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    status = Status("streaming", "shop", "shop")
    schedule = StatusSchedule(lambda: dataclasses.replace(status, time=now))
    assert schedule.due() is not None
    now += 0.1
    assert schedule.last() is None
    status = dataclasses.replace(status, confirmed_lsn=5)
    assert schedule.due() is None
    told = schedule.last()
    assert told is not None and told["confirmed_lsn"] == "0/5"


def test_a_stall_does_not_end_because_the_relay_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status taken after the main loop has ended does not show the earlier stall."""
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    stalled = RelayVerdict("stalled", sentence="PostgreSQL has not answered on the stream for 31 s")
    status = Status("stalled", "shop", "shop", phase="streaming", verdict=stalled)
    schedule = StatusSchedule(lambda: status)
    assert schedule.due() is not None
    status = Status("streaming", "shop", "shop", confirmed_lsn=5, verdict=RelayVerdict())
    told = schedule.last()
    assert told is not None and told["confirmed_lsn"] == "0/5"
    assert told["verdict"]["condition"] == "stalled" and "31 s" in told["verdict"]["sentence"]


def test_a_recording_ends_with_what_holds_at_its_end(tmp_path: Path) -> None:
    """A first snapshot that completed half a second before the end was recorded as incomplete."""
    stream = Stream(tmp_path / "recording")
    state: list[FirstSnapshot | None] = [FirstSnapshot(2, 1)]
    stream.status = lambda: Status("streaming", "shop", "shop", first_snapshot=state[0])
    stream.begin_pass()
    stream.change("insert", ORDERS, 1, b"body")
    stream.commit()
    stream.flush()
    stream.recorder.settle()
    state[0] = None
    stream.recorder.record_last_status()
    stream.stop()
    with closing(open_recording(stream.folder)) as view:
        assert facts(view).first_snapshot == ""


def test_figures_that_slide_are_no_change_but_their_end_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    written = []

    def status() -> Status:
        figures = Percentiles(5, 0.1, 0.1, 0.2, 0.3, now)
        latency = {"total": figures} if now < 1010 else {}
        return Status("streaming", "shop", "shop", latency=latency, latency_since_start={"total": figures})

    schedule = StatusSchedule(status)
    for second in range(30):
        now = 1000.0 + second
        if (told := schedule.due()) is not None:
            written.append((second, told["latency"] != {}))
            assert "latency_since_start" not in told
    assert written == [(0, True), (10, False)]


def recorded(folder: Path, status: Status) -> dict[str, Any]:
    """Return what a reader gets of a status that a relay recorded."""
    stream = Stream(folder)
    stream.status = lambda: status
    stream.begin()
    stream.change("insert", ORDERS, 1, b"one")
    stream.commit()
    stream.flush()
    stream.deliver()
    stream.recorder.settle()
    stream.wait_durable()
    stream.stop()
    with closing(open_recording(folder)) as recording:
        return recording.status(recording.length)


def test_a_recording_knows_latencies_even_below_zero(tmp_path: Path) -> None:
    figures = Percentiles(5, -0.5, -0.25, 0.2, 0.3, 4.5)
    found = recorded(tmp_path, Status("streaming", "shop", "shop", latency={"total": figures}))
    assert Status.from_json(found).latency == {"total": figures}


def test_a_recording_without_latencies_opens(tmp_path: Path) -> None:
    old = recorded(tmp_path, Status("streaming", "shop", "shop"))
    del old["latency"]
    assert Status.from_json(old).latency == {}
    newer = {"total": {**dataclasses.asdict(Percentiles(1, 1, 1, 1, 1, 1)), "p42": 7.0}}
    assert Status.from_json({**old, "latency": newer}).latency == {"total": Percentiles(1, 1, 1, 1, 1, 1)}


@pytest.mark.parametrize("said", [5, [], {"total": 5}, {"total": {"count": "x"}}, {"total": {}}])
def test_latencies_that_make_no_sense_are_damage(tmp_path: Path, said: Any) -> None:
    good = recorded(tmp_path, Status("streaming", "shop", "shop"))
    text = json.dumps({**good, "latency": said}).encode()
    block = JournalBlock(BlockKind.STATUS, 3, 0, 0, 0, 0, 0, text)
    with pytest.raises(DamagedRecording):
        statement(block, "00000001")
