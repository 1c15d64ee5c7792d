"""A broker that goes away for a while in the middle of a replay costs time, and no message."""

from dataclasses import replace
from pathlib import Path

import pytest

from bwtui.sandbox.supervisor import Sandbox, Services
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.lossy import lossy_way
from tests.pipeline.replayed import (
    Looking,
    Replays,
    all_of,
    by_key,
    expected,
    fresh,
    recorded,
    registered,
    topic_content,
)
from tests.waiting import eventually

pytestmark = pytest.mark.services


def test_kafka_is_killed_and_comes_back(
    replays: Replays, interrupted: Sandbox, services: Services, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = fresh("outage")
    make_topic(3, topic)
    folder = recorded(tmp_path / "r", topic, 6_000, registered(services, topic))
    gone: list[int] = []

    def kill(done: int) -> None:
        if done > 1_000 and not gone:
            gone.append(done)
            interrupted.kill_service("kafka")
            interrupted.start_service("kafka")

    outcome = replays.run(folder, Looking(at_progress=kill), rate=2_000)
    sent = expected(folder)[topic]
    assert gone and outcome.sent == len(sent)
    assert by_key(all_of(topic_content(services, topic))) == by_key(sent)


def test_what_was_written_and_not_acknowledged_is_not_written_twice(
    replays: Replays, interrupted: Sandbox, services: Services, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """A broker that comes back has forgotten producers whose messages bear times of more than a day ago."""
    topic = fresh("forgotten")
    make_topic(3, topic)
    folder = recorded(tmp_path / "r", topic, 6_000, registered(services, topic))
    lost: list[int] = []
    with lossy_way(services.broker) as way:

        def lose_answers(done: int) -> None:
            if done > 1_000 and not lost:
                way.is_deaf = True
                lost.append(eventually("an answer is lost", lambda: way.lost))
                interrupted.kill_service("kafka")
                interrupted.start_service("kafka")
                way.is_deaf = False

        replays.services = replace(services, broker=way.address)
        watch = Looking(at_progress=lose_answers)
        outcome = replays.run(folder, watch, rate=2_000)
    sent = expected(folder)[topic]
    assert lost and "waiting for Kafka" in watch.phases
    assert (outcome.sent, outcome.found, outcome.doubled, outcome.done) == (len(sent), 0, 0, len(sent))
    assert by_key(all_of(topic_content(services, topic))) == by_key(sent)
