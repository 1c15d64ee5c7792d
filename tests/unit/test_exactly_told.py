"""Output of status and doctor about --exactly-once."""

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from bwtui.cli.status import _in_full
from bwtui.errors import ServiceRefused
from bwtui.model.status import ExactlyOnceStatus, Status
from bwtui.settings import RelaySettings
from bwtui.sink.transactions import CommitStatistics, judged
from bwtui.tui.screens.overview import _commits
from bwtui.tui.sources.model import ScreenSnapshot

SETTINGS = RelaySettings(slot="shop", exactly_once=True)


def test_commits_are_told_of_the_last_ten_seconds() -> None:
    commits = CommitStatistics()
    assert commits.status("id", "topic") == ExactlyOnceStatus("id", "topic")
    for seconds in (0.02, 0.01, 0.5):
        commits.note(time.monotonic() - seconds)
    told = commits.status("id", "topic")
    assert (told.commits, told.commits_per_second) == (3, 0.3)
    assert told.commit_p50 == pytest.approx(0.02, abs=0.01)
    assert told.commit_p99 == pytest.approx(0.5, abs=0.01)


def test_status_says_it_in_json_and_in_words() -> None:
    said = ExactlyOnceStatus("bwtui-7-shop-/shop", "bwtui.position.shop", 1_234, 8.5, 0.0123, 0.2)
    status = Status(state="streaming", name="shop", slot="shop", exactly_once=said)
    assert Status.from_json(status.to_json()) == status
    text = "\n".join(_in_full(status))
    assert "once: 8.5 commits/s, p50 12 ms, p99 200 ms, 1,234 in total" in text
    assert "transactional.id bwtui-7-shop-/shop, position in topic bwtui.position.shop" in text
    assert "commits" not in "\n".join(_in_full(Status(state="streaming", name="shop", slot="shop")))


@pytest.mark.parametrize(
    ("p50", "as_of", "says"),
    [
        (0.0123, None, ["exactly once 8.5 commits/s, p50 12.3ms"]),
        (None, None, ["exactly once"]),
        (0.0123, 7.0, ["exactly once"]),
    ],
)
def test_the_pipeline_says_it(p50: float | None, as_of: float | None, says: list[str]) -> None:
    said = ExactlyOnceStatus("id", "topic", 1_234, 8.5, p50, p50)
    status = Status(state="streaming", name="shop", slot="shop", exactly_once=said)
    snapshot = cast(ScreenSnapshot, SimpleNamespace(as_of=as_of))
    assert [part.plain for part in _commits(snapshot, status)] == says
    assert _commits(snapshot, replace(status, exactly_once=None)) == []


def test_doctor_says_what_the_brokers_allow() -> None:
    found = {"transaction.max.timeout.ms": 900_000, "transaction.state.log.min.isr": 2}
    assert "a snapshot may take 900 s" in judged(SETTINGS, found, 3, None)
    assert "a snapshot may take 60 s" in judged(SETTINGS, found, 3, 60_000)
    assert judged(SETTINGS, {}, 1, 60_000) == "position in topic bwtui.position.shop"
    alone = {"transaction.state.log.replication.factor": 1}
    assert "one broker is down" in judged(SETTINGS, alone, 3, None)
    assert "one broker is down" not in judged(SETTINGS, alone, 1, None)


@pytest.mark.parametrize(
    ("brokers", "wanted", "says"),
    [(3, 900_001, "the brokers allow at most 900000"), (1, None, "need 2 in-sync replicas")],
)
def test_doctor_refuses_what_they_do_not(brokers: int, wanted: int | None, says: str) -> None:
    found = {"transaction.max.timeout.ms": 900_000, "transaction.state.log.min.isr": 2}
    with pytest.raises(ServiceRefused, match=says):
        judged(SETTINGS, found, brokers, wanted)
