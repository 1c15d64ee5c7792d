"""Backfilled rows are replayed in their place, with the age of that place."""

import contextlib
import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bwtui.audit.report import AuditFinding
from bwtui.recording.reader import open_recording
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.replayed import (
    FramedStream,
    Replays,
    by_key,
    expected,
    framed,
    fresh,
    registered,
    topic_content,
)
from tests.recorded_stream import table

pytestmark = pytest.mark.services


def recorded(folder: Path, topic: str, ids: tuple[int, int]) -> Path:
    """Record backfilled rows, each time right before a transaction that has the same LSN."""
    stream = FramedStream(folder, ids=ids)
    stream.begin_pass()
    relation = table(1, topic)
    for turn in range(5):
        for key in range(4):
            stream.change("update", relation, key, b"stream %d" % turn)
        stream.put(relation, range(4), [100 + turn], b"put %d" % turn)
        if turn == 2:
            stream.deliver()
            stream.repeat(2)
    stream.change("update", relation, 3, b"the last")
    stream.commit()
    stream.flush()
    stream.deliver()
    stream.stop()
    return folder


def test_a_replay_keeps_their_place(replays: Replays, services: ServiceAddresses, tmp_path: Path) -> None:
    topic = fresh("put")
    folder = recorded(tmp_path / "r", topic, registered(services, topic))
    sent = expected(folder)[topic]
    assert any(one.headers for one in sent) and not all(one.headers for one in sent)
    replays.run(folder)
    content = [one for part in topic_content(services, topic).values() for one in part]
    assert by_key(content) == by_key(sent)


def test_a_row_that_is_sent_late_is_older_than_the_transaction_behind_it(
    replays: Replays,
    services: ServiceAddresses,
    config: dict[str, str],
    make_topic: MakeTopic,
    tmp_path: Path,
) -> None:
    topic = fresh("put")
    ids = registered(services, topic)
    folder = recorded(tmp_path / "r", topic, ids)
    key = framed(ids[0], b"3")
    with contextlib.closing(open_recording(folder)) as view:
        changes = [change for change in view.changes() if not change.is_repeat]
        identity = {"recording_id": view.source.recording}
    of_key = [change for change in changes if change.messages[0].key == key]
    lost, last = of_key[-2], of_key[-1]
    assert (lost.operation, last.operation) == ("backfill", "update")
    assert lost.lsn == last.lsn and lost.ordinal > last.ordinal
    make_topic(1, topic)
    producer = Producer({**config})
    for change in changes:
        if change is not lost:
            for one in change.messages:
                headers: list[tuple[str, str | bytes | None]] = list(one.headers)
                producer.produce(
                    topic, one.value, one.key, 0, timestamp=change.commit_time // 1000, headers=headers
                )
    assert producer.flush(30) == 0
    finding = AuditFinding(
        "lost_acked", topic, lsn=lost.lsn, ordinal=lost.ordinal, position=lost.position, part=0
    )
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"classes": {"lost_acked": 1}, "findings": [finding.to_json()], **identity}))
    missing = replays.run(folder, only_missing=report).plan.missing
    assert missing is not None and (missing["messages"], missing["sent_again"]) == (1, 1)
    (content,) = topic_content(services, topic).values()
    assert [one.value for one in content if one.key == key][-2:] == [
        lost.messages[0].value,
        last.messages[0].value,
    ]
