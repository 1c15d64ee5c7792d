"""A replay adapts its messages to the existing topics, or reports at once why it can't."""

import contextlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bwtui.encode.registry import SchemaRegistry
from bwtui.errors import RefusedError, UsageError
from bwtui.kafka.scan import partitions, pin
from bwtui.recording.query_language import ChangeSelection
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.administration import limit_topic
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.replayed import (
    FramedStream,
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
from tests.recorded_stream import table

pytestmark = pytest.mark.services

Config = dict[str, str]


def test_batches_fit_into_a_topic_of_small_messages(
    replays: Replays, services: ServiceAddresses, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = fresh("narrow")
    ids = registered(services, topic)
    make_topic(2, topic, max_message_bytes="1500")
    folder = recorded(tmp_path / "r", topic, 2_000, ids, body=b"x" * 200)
    # Compressed messages would fit by chance.
    replays.kafka_config = (("compression.type", "none"),)
    outcome = replays.run(folder)
    sent = expected(folder)[topic]
    assert outcome.sent == len(sent)
    assert by_key(all_of(topic_content(services, topic))) == by_key(sent)


def test_a_window_that_stands_behind_a_later_one_is_held(
    replays: Replays, services: ServiceAddresses, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = fresh("late")
    folder = recorded(tmp_path / "r", topic, 400, registered(services, topic))
    make_topic(1, topic)
    half = expected(folder)[topic][200].stamp * 1000
    late, early = ChangeSelection(from_time=half), ChangeSelection(to_time=half - 1)
    watch = Looking()
    for chosen in (late, early, early):
        replays.run(folder, watch, chosen)
    assert [plan.held for plan in watch.plans] == [0, 0, watch.plans[1].messages]


def _mixed(folder: Path, topic: str, ids: tuple[int, int]) -> Path:
    """Record a table that lost its key in between."""
    stream = FramedStream(folder, ids=ids)
    stream.begin_pass()
    relation = table(1, topic)
    for number in range(20):
        stream.change("insert", relation, number, b"%d" % number)
        stream.commit()
    key, value = stream._batch_routes[0].messages[-1][:2]
    assert key is not None
    stream._batch_routes[0].messages[-1] = (None, value, 0, None)
    stream.stop()
    return folder


def test_messages_with_and_without_keys(
    replays: Replays, services: ServiceAddresses, config: Config, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = fresh("mixed")
    folder = _mixed(tmp_path / "r", topic, registered(services, topic))
    prefix = fresh("again")
    # A compacted topic would reject messages without a key.
    assert replays.run(folder, prefix=prefix).sent == 20
    assert pin(config, [f"{prefix}.{topic}"]).topics[f"{prefix}.{topic}"].deletes
    make_topic(1, topic, cleanup_policy="compact")
    for dry_run in (False, True):
        with pytest.raises(
            RefusedError, match=f"topic {topic} is compacted, and 1 of its messages has no key"
        ):
            replays.run(folder, dry_run=dry_run)
    assert pin(config, [topic]).messages == 0


def test_names_that_kafka_refuses_are_refused_before_anything_is_made(
    replays: Replays, services: ServiceAddresses, config: Config, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = fresh("named")
    folder = recorded(tmp_path / "r", topic, 20, registered(services, topic))
    like = fresh("like")
    make_topic(1, f"{like}_{topic}")
    with contextlib.closing(SchemaRegistry(services.schema_registry)) as registry:
        before = set(registry._client.get_subjects())
        for prefix, words in (
            ("a b", "is not a valid topic name"),
            ("größe", "is not a valid topic name"),
            (like, "differ only in dots"),
        ):
            for dry_run in (False, True):
                with pytest.raises((UsageError, RefusedError), match=words):
                    replays.run(folder, prefix=prefix, dry_run=dry_run)
        assert set(registry._client.get_subjects()) == before
    assert f"{like}.{topic}" not in partitions(config)[1]


def test_messages_that_a_topic_would_not_keep(
    replays: Replays, services: ServiceAddresses, config: Config, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = fresh("short")
    folder = recorded(tmp_path / "r", topic, 20, registered(services, topic))
    make_topic(1, topic, cleanup_policy="delete", retention_ms="86400000")
    planned = replays.run(folder, dry_run=True)
    assert any("keeps messages for 1 day" in note for note in planned.plan.notes)
    make_topic(1, f"old.{topic}", message_timestamp_before_max_ms="3600000")
    with pytest.raises(RefusedError, match="rejected a message") as refused:
        replays.run(folder, prefix="old")
    assert "message.timestamp.before.max.ms" in (refused.value.hint or "")


def _with_one_too_large(folder: Path, topic: str, ids: tuple[int, int], before: int, behind: int) -> Path:
    stream = FramedStream(folder, ids=ids)
    stream.begin_pass()
    bodies = [b"before"] * before + [random.randbytes(20_000)] + [b"behind"] * behind
    for number, body in enumerate(bodies):
        stream.change("insert", table(1, topic), number, body)
        stream.commit()
    stream.stop()
    return folder


@pytest.mark.parametrize("before", [0, 3])
def test_behind_a_refused_message_nothing_is_sent(
    replays: Replays, services: ServiceAddresses, make_topic: MakeTopic, tmp_path: Path, before: int
) -> None:
    """Every message is a separate request; from a new producer, a broker accepts the second one first."""
    topic = fresh("stopped")
    make_topic(1, topic, max_message_bytes="2000")
    folder = _with_one_too_large(tmp_path / "r", topic, registered(services, topic), before, 30)
    replays.kafka_config = (("batch.num.messages", "1"), ("linger.ms", "0"))
    with pytest.raises(RefusedError, match=f"topic {topic} does not accept a message of 200.. bytes"):
        replays.run(folder)
    assert len(topic_content(services, topic).get(0, [])) == before
    limit_topic(services, topic, 1_000_000)
    replays.run(folder)
    assert all_of(topic_content(services, topic)) == expected(folder)[topic]


@pytest.mark.parametrize("replays", ["in this process"], indirect=True)
def test_of_a_refused_message_two_lines_are_told(
    replays: Replays, services: ServiceAddresses, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Nothing may keep the failed work: DuckDB would report leftovers when the process ends."""
    topic = fresh("told")
    make_topic(1, topic, max_message_bytes="2000")
    folder = _with_one_too_large(tmp_path / "r", topic, registered(services, topic), 3, 3_000)
    ends = {"BWTUI_BROKER": services.broker, "BWTUI_SCHEMA_REGISTRY": services.schema_registry}
    ended = subprocess.run(
        [sys.executable, "-m", "bwtui", "replay", str(folder), "--yes", "--json"],
        env={**os.environ, **ends, "BWTUI_STATE_HOME": str(tmp_path / "home")},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert len(ended.stderr.splitlines()) == 2, ended.stderr
    error, hint = ended.stderr.splitlines()
    assert error.startswith(f"bwtui: error: topic {topic} does not accept a message of ")
    assert hint.startswith(f"hint: raise max.message.bytes of topic {topic}, ")
