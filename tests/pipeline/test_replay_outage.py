"""An outage of a broker in the middle of a replay costs time, but no message."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from bwtui.cli.output.replay_console import summary
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from tests.pipeline.conftest import MakeTopic
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
from tests.proxy import PRODUCE, way_to
from tests.waiting import eventually

pytestmark = pytest.mark.services

#: Both ways use the same sender, so each tests one of the outages; the other is among the long tests.
HERE = ["in this process", pytest.param("on Spark", marks=pytest.mark.long)]
ON_SPARK = [pytest.param("in this process", marks=pytest.mark.long), "on Spark"]


@contextlib.contextmanager
def in_the_middle(incident: Callable[[], None]) -> Iterator[Looking]:
    """Call a function once a thousand messages are durable; the replay continues meanwhile."""
    happening = ThreadPoolExecutor(1)
    begun: list[Future[None]] = []

    def begin(done: int) -> None:
        if done > 1_000 and not begun:
            begun.append(happening.submit(incident))

    with happening:
        yield Looking(at_progress=begin)
    (happened,) = begun
    happened.result()


def restart_kafka(sandbox: Sandbox) -> None:
    """Kill the broker, and start it again."""
    sandbox.kill_service("kafka")
    sandbox.start_service("kafka")


@pytest.mark.long
def test_kafka_is_killed_and_comes_back(
    replays: Replays, interrupted: Sandbox, services: ServiceAddresses, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = fresh("outage")
    make_topic(3, topic)
    folder = recorded(tmp_path / "r", topic, 6_000, registered(services, topic))
    with in_the_middle(lambda: restart_kafka(interrupted)) as watch:
        outcome = replays.run(folder, watch, rate=2_000)
    sent = expected(folder)[topic]
    assert outcome.sent == len(sent)
    assert by_key(all_of(topic_content(services, topic))) == by_key(sent)


@pytest.mark.parametrize("replays", HERE, indirect=True)
def test_what_was_written_and_not_acknowledged_is_not_written_twice(
    replays: Replays, interrupted: Sandbox, services: ServiceAddresses, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """A restarted broker has forgotten producers whose messages are more than a day old."""
    topic = fresh("forgotten")
    make_topic(3, topic)
    folder = recorded(tmp_path / "r", topic, 6_000, registered(services, topic))
    with way_to(services.broker) as way:

        def lose_answers() -> None:
            way.is_deaf = True
            eventually("an answer is lost", lambda: way.lost)
            restart_kafka(interrupted)
            way.is_deaf = False

        replays.services = replace(services, broker=way.address)
        with in_the_middle(lose_answers) as watch:
            outcome = replays.run(folder, watch, rate=2_000)
    sent = expected(folder)[topic]
    assert "waiting for Kafka" in watch.phases
    assert (outcome.sent, outcome.found, outcome.doubled, outcome.done) == (len(sent), 0, 0, len(sent))
    assert by_key(all_of(topic_content(services, topic))) == by_key(sent)


@pytest.mark.parametrize("replays", ON_SPARK, indirect=True)
def test_a_request_that_comes_late_is_told(
    replays: Replays, services: ServiceAddresses, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """A recovered network delivers its data in transit after the query that did not find it."""
    topic = fresh("late")
    make_topic(1, topic)
    folder = recorded(tmp_path / "r", topic, 12_000, registered(services, topic))
    with way_to(services.broker) as way:

        def hold_up() -> None:
            way.hold_from = PRODUCE
            eventually("messages are held up", lambda: way.held)
            way.hold_from = None
            way.drop()

        replays.services = replace(services, broker=way.address)
        with in_the_middle(hold_up) as watch:
            begin = watch.at_progress
            released: list[int] = []

            def follow(done: int) -> None:
                begin(done)
                if watch.phases.count("sending") > 1 and not released and done > way_on[0] + 1_000:
                    released.append(done)
                    way.release()
                elif watch.phases.count("sending") == 1:
                    way_on[0] = done

            way_on = [0]
            watch.at_progress = follow
            outcome = replays.run(folder, watch, rate=1_000)
    sent, there = expected(folder)[topic], all_of(topic_content(services, topic))
    assert released and outcome.sent == len(sent)
    assert len(there) - len(sent) == outcome.doubled > 0
    assert "are duplicated" in summary(outcome)[0]
