"""An interrupted replay is not resumed if something that it depends on has changed meanwhile."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from bwtui.encode.registry import SchemaRegistry
from bwtui.errors import Interrupted, RefusedError
from bwtui.kafka.scan import partitions
from bwtui.recording.query_language import ChangeSelection, parse
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.messages import produce
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


@dataclass
class Begun:
    """A replay that was interrupted after some of its messages."""

    topic: str
    folder: Path
    ids: tuple[int, int]


@pytest.fixture
def begun(replays: Replays, services: ServiceAddresses, make_topic: MakeTopic, tmp_path: Path) -> Begun:
    topic = fresh("begun")
    ids = registered(services, topic)
    make_topic(3, topic)
    folder = recorded(tmp_path / "r", topic, 3_000, ids)
    with pytest.raises(Interrupted):
        replays.run(folder, Looking(stop_at=600), rate=1_000)
    return Begun(topic, folder, ids)


def test_another_partitioner(replays: Replays, services: ServiceAddresses, begun: Begun) -> None:
    replays.kafka_config = (("partitioner", "consistent"),)
    # Keys would go to different partitions than those in the notes.
    for dry_run in (False, True):
        with pytest.raises(RefusedError, match="began with the partitioner hash murmur2, not crc32"):
            replays.run(begun.folder, dry_run=dry_run)
    replays.kafka_config = (("partitioner", "murmur2"),)
    replays.run(begun.folder)
    sent = expected(begun.folder)[begun.topic]
    assert by_key(all_of(topic_content(services, begun.topic))) == by_key(sent)


class _Renumbered(SchemaRegistry):
    """A registry with the same schemas under different ids."""

    def schema_text(self, number: int) -> str | None:
        return super().schema_text(number - 700)

    def schema_id(self, subject: str, schema: str) -> int | None:
        found = super().schema_id(subject, schema)
        return None if found is None else found + 700


def test_another_registry(replays: Replays, services: ServiceAddresses, begun: Begun) -> None:
    job = replays.job(begun.folder)
    other = replace(job, target=replace(job.target, registry=_Renumbered(services.schema_registry)))
    told = f"by id {begun.ids[0]}, but it would be under {begun.ids[0] + 700}"
    closing = contextlib.closing
    with closing(job.target), closing(other.target), pytest.raises(RefusedError, match=told):
        replays.started(other)


@pytest.fixture
def delete(admin: AdminClient, config: dict[str, str]) -> Iterator[Callable[[str], None]]:
    def delete(topic: str) -> None:
        admin.delete_topics([topic])[topic].result()
        eventually("it is gone", lambda: topic not in partitions(config)[1])

    yield delete


def test_a_topic_that_is_gone_or_made_anew(
    replays: Replays,
    services: ServiceAddresses,
    begun: Begun,
    delete: Callable[[str], None],
    make_topic: MakeTopic,
    config: dict[str, str],
) -> None:
    delete(begun.topic)
    for dry_run in (False, True):
        with pytest.raises(
            RefusedError, match=f"topic {begun.topic} was deleted, with the messages"
        ) as refused:
            replays.run(begun.folder, dry_run=dry_run)
        assert "--restart" in (refused.value.hint or "")
    assert begun.topic not in partitions(config)[1]
    make_topic(3, begun.topic)
    # It may have the same length as before.
    for partition in range(3):
        produce(config, begun.topic, [(b"other", b"foreign", None)] * 2_000, partition=partition)
    with pytest.raises(RefusedError, match=f"topic {begun.topic} was recreated"):
        replays.run(begun.folder)
    outcome = replays.run(begun.folder, restart=True)
    sent = expected(begun.folder)[begun.topic]
    assert outcome.sent == len(sent)
    found = [one for one in all_of(topic_content(services, begun.topic)) if one.value != b"foreign"]
    assert by_key(found) == by_key(sent)


def test_times_that_count_from_another_end(
    replays: Replays, services: ServiceAddresses, tmp_path: Path
) -> None:
    topic = fresh("relative")
    folder = recorded(tmp_path / "r", topic, 3_000, registered(services, topic))
    last = expected(folder)[topic][-1].stamp * 1000
    text = "time >= -1h"
    with pytest.raises(Interrupted):
        replays.run(folder, Looking(stop_at=600), ChangeSelection(parse(text, last)), rate=1_000)
    for end, is_same in ((last, True), (last + 1_000_000, False)):
        planned = replays.run(folder, None, ChangeSelection(parse(text, end)), dry_run=True)
        assert planned.plan.is_resumed is is_same
