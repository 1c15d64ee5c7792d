"""A broker that goes away for a while in the middle of a replay costs time, and no message."""

from pathlib import Path

import pytest

from bwtui.sandbox.supervisor import Sandbox, Services
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
