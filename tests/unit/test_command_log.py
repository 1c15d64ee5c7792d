"""The log of commands counts each command, keeps few, and contains no private data."""

import threading
import time
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions

from bwtui.command_log import KAFKA, POSTGRES, UNDER_WAY, CommandLog
from bwtui.kafka.commands import LoggedAdmin
from bwtui.model.service_views import LOOKS, Consumers, GroupEntry, PartitionLag, look_from_json
from bwtui.relay.serving import service_views
from bwtui.relay.serving.service_views import OnDemandPoller
from bwtui.source.raw_session import exec_logged
from tests.waiting import eventually


def texts(log: CommandLog) -> list[str]:
    return [entry.text for entry in log.snapshot().commands]


def test_the_same_command_is_one_entry_and_the_newest_comes_last() -> None:
    log = CommandLog()
    for text in ("select 1", "select 2", "select\n  1"):
        with log.issued(POSTGRES, text):
            pass
    second, first = log.snapshot().commands
    assert (second.text, second.count) == ("select 2", 1)
    assert (first.text, first.count, first.result) == ("select 1", 2, "")
    assert first.total >= first.slowest >= first.seconds > 0
    assert first.time >= first.first > 0


def test_what_failed_is_apart_from_what_went_well() -> None:
    log = CommandLog()
    with log.issued(POSTGRES, "select 1"):
        pass
    with pytest.raises(ValueError, match="hunter2"), log.issued(POSTGRES, "select 1"):
        raise ValueError("a row's value: hunter2")
    assert [entry.result for entry in log.snapshot().commands] == ["", "ValueError"]


def test_what_has_no_answer_yet_is_seen() -> None:
    log = CommandLog()
    end = log.begin(KAFKA, "list_topics")
    waiting = log.snapshot().commands[0]
    assert (waiting.result, waiting.text) == (UNDER_WAY, "list_topics")
    end("_TIMED_OUT")
    assert [entry.result for entry in log.snapshot().commands] == ["_TIMED_OUT"]


def test_few_are_kept_and_the_rest_is_counted() -> None:
    log = CommandLog(maximum=3)
    for number in range(10):
        log.begin(POSTGRES, f"select {number}")("")
    assert texts(log) == ["select 7", "select 8", "select 9"]
    assert log.snapshot().forgotten == 7


def test_secrets_are_masked_and_long_texts_cut() -> None:
    log = CommandLog()
    log.begin(POSTGRES, "create subscription s connection 'host=x password=hunter2'")("")
    log.begin(POSTGRES, "select " + "x" * 10_000)("")
    assert "hunter2" not in "".join(texts(log))
    assert max(map(len, texts(log))) < 2_100


def test_a_look_survives_json_and_an_older_version() -> None:
    import dataclasses

    lag = PartitionLag("t", 1, 5, 9, 4, 12.5)
    look = Consumers(1.0, "", ("a note",), 0.1, (GroupEntry("g", partitions=(lag,)),))
    data = dataclasses.asdict(look) | {"from a newer version": 1}
    assert look_from_json("consumers", data) == look
    assert all(look_from_json(name, {}) == kind() for name, kind in LOOKS.items())  # type: ignore[arg-type]


def test_nobody_is_waited_for_and_nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_views, "ATTENTION_SECONDS", 0.2)
    monkeypatch.setattr(service_views, "_PAUSE_SECONDS", 0.01)
    answered, closed = threading.Event(), threading.Event()

    def look() -> Consumers:
        assert answered.wait(60)
        return Consumers(7.0)

    watch = OnDemandPoller(look, closed.set, Consumers, "consumers")
    # The poll hangs, but an answer is available.
    assert watch.latest() == Consumers()
    answered.set()
    eventually("the look is there", lambda: watch.latest().time == 7.0)
    assert closed.wait(60)
    # A later request starts the poller again.
    closed.clear()
    watch.latest()
    assert closed.wait(60)


def test_glances_have_kafka_asked_every_few_seconds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_views, "_PAUSE_SECONDS", 0.005)
    taken: list[float] = []

    def look() -> Consumers:
        taken.append(time.monotonic())
        return Consumers(1.0 + len(taken))

    watch = OnDemandPoller(look, lambda: None, Consumers, "consumers")
    begun = time.monotonic()
    watch.latest(glance=True)
    eventually("the first look is taken at once", lambda: taken)
    while time.monotonic() < begun + 0.3:
        watch.latest(glance=True)
        time.sleep(0.005)
    assert len(taken) == 1
    # A detailed view polls more often than a summary.
    watch.latest()
    eventually("it looks again", lambda: len(taken) > 2)
    watch.stop()


def test_a_thread_that_has_ended_does_not_look_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_views, "_PAUSE_SECONDS", 0.005)
    monkeypatch.setattr(service_views, "GLANCE_SECONDS", 0.05)
    closed, taken = threading.Event(), 0

    def look() -> Consumers:
        nonlocal taken
        taken += 1
        return Consumers(1.0)

    watch = OnDemandPoller(look, closed.set, Consumers, "consumers")
    for _ in range(3):
        watch.latest(glance=True)
        assert closed.wait(60)
        closed.clear()
    assert taken == 1
    watch.stop()


def test_a_look_that_breaks_says_so() -> None:
    def look() -> Consumers:
        raise ZeroDivisionError

    watch = OnDemandPoller(look, lambda: None, Consumers, "consumers")
    eventually("it says so", lambda: "ZeroDivisionError" in watch.latest().failure)
    watch.stop()


def test_a_thread_that_can_not_hang_up_does_not_freeze_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_views, "ATTENTION_SECONDS", 0.1)
    monkeypatch.setattr(service_views, "_PAUSE_SECONDS", 0.01)
    closed, taken = threading.Event(), 0

    def look() -> Consumers:
        nonlocal taken
        taken += 1
        return Consumers(1.0)

    def close() -> None:
        closed.set()
        raise ZeroDivisionError

    watch = OnDemandPoller(look, close, Consumers, "consumers")
    watch.latest()
    assert closed.wait(60)
    eventually("it says so", lambda: "ZeroDivisionError" in watch.shown.failure)
    eventually("its thread has ended", lambda: not watch._runs)
    before = taken
    eventually("it looks again", lambda: watch.latest().time and taken > before)
    watch.stop()


class Refusing:
    """An admin client that rejects all requests immediately."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*given: Any, **more: Any) -> Any:
            raise ValueError("no such thing")

        return refuse


def test_what_is_refused_at_once_is_not_under_way_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    log = CommandLog()
    monkeypatch.setattr("bwtui.kafka.commands.COMMANDS", log)
    admin: Any = LoggedAdmin({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(ValueError, match="empty"):
        admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("")])
    for call in (admin.describe_consumer_groups, admin.create_topics, admin.list_offsets):
        with pytest.raises((ValueError, TypeError)):
            call(None)
    assert UNDER_WAY not in [entry.result for entry in log.snapshot().commands]
    assert "ValueError" in [entry.result for entry in log.snapshot().commands]


def test_a_statement_that_raises_is_not_under_way_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    log = CommandLog()
    monkeypatch.setattr("bwtui.source.raw_session.COMMANDS", log)
    session: Any = Refusing()
    with pytest.raises(ValueError, match="no such thing"):
        exec_logged(session, "select 1", b"select 1")
    assert [entry.result for entry in log.snapshot().commands] == ["ValueError"]
