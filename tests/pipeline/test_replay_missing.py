"""``--only-missing`` writes the messages that an audit found missing, and keeps every key's latest value."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from bwtui.audit.report import AuditFinding
from bwtui.cli.output.progress import ProgressView
from bwtui.cli.output.replay_console import ReplayConsole, question, summary
from bwtui.errors import RefusedError, UsageError
from bwtui.kafka.scan import partitions
from bwtui.model.lsn import format_lsn
from bwtui.recording.query_language import ChangeSelection, parse
from bwtui.recording.reader import open_recording
from bwtui.replay.delivery import ReplayProgress
from bwtui.replay.missing_messages import MissingMessages
from bwtui.replay.replay import progress_file
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.replayed import (
    FramedStream,
    Looking,
    Replays,
    Sent,
    expected,
    framed,
    fresh,
    recorded,
    registered,
    topic_content,
)
from tests.recorded_stream import table

pytestmark = pytest.mark.services


@pytest.fixture
def replays(spark: SparkSession, services: ServiceAddresses, tmp_path: Path) -> Replays:
    """Runs replays into the run's Kafka, on Spark, which these always use."""
    return Replays(spark, services, tmp_path / "state", on_spark=True)


@dataclass
class Loss:
    """A recording of 200 changes of 20 keys, and its topic, in which three messages are missing."""

    topic: str
    folder: Path
    sent: list[Sent]
    #: Positions of the missing messages: an old one of key 3, the last of key 4, an old one of key 6.
    lost: list[int]
    #: A message of key 6 by a later relay.
    newer: Sent

    def report(self, path: Path, counted: int = 3, **more: Any) -> Path:
        """Write an audit report of the loss."""
        findings = [
            AuditFinding("lost_acked", self.topic, lsn=1, ordinal=1, position=at, part=0).to_json()
            for at in self.lost
        ]
        content = {"classes": {"lost_acked": counted}, "findings": findings, **self.names, **more}
        path.write_text(json.dumps(content))
        return path

    @property
    def names(self) -> dict[str, str]:
        """Return the recording's names in a report."""
        with contextlib.closing(open_recording(self.folder)) as view:
            return {"recording_id": view.source.recording}


@pytest.fixture
def settings() -> dict[str, str]:
    """Return the settings of the topic."""
    return {}


@pytest.fixture
def loss(
    services: ServiceAddresses,
    config: dict[str, str],
    make_topic: MakeTopic,
    tmp_path: Path,
    settings: dict[str, str],
) -> Loss:
    topic = fresh("missing")
    ids = registered(services, topic)
    folder = recorded(tmp_path / "r", topic, 200, ids)
    sent = expected(folder)[topic]
    mine = {
        name: [at for at, one in enumerate(sent) if one.key == framed(ids[0], b"%d" % name)]
        for name in (3, 4, 6)
    }
    lost = [mine[3][2], mine[4][-1], mine[6][1]]
    newer = Sent(framed(ids[0], b"6"), framed(ids[1], b"newer"), sent[-1].stamp + 5, (("h", b"1"),))
    make_topic(1, topic, **settings)
    producer = Producer({**config})
    for one in [*(one for at, one in enumerate(sent) if at not in lost), newer]:
        producer.produce(topic, one.value, one.key, 0, timestamp=one.stamp, headers=list(one.headers) or None)
    assert producer.flush(30) == 0
    return Loss(topic, folder, sent, lost, newer)


def test_only_missing(replays: Replays, services: ServiceAddresses, loss: Loss, tmp_path: Path) -> None:
    report = loss.report(tmp_path / "report.json")
    watch = Looking()
    outcome = replays.run(loss.folder, watch, only_missing=report)
    assert outcome.plan.missing == {
        "reported": 3, "messages": 3, "late": 2, "sent_again": 2, "there": 0, "without_message": 0
    }  # fmt: skip
    # The question before the write and the summary after it both report what the replay can't fix.
    assert "2 of them after newer ones of their keys" in (question(watch.plans[0]) or "")
    assert "can't restore the order: 2 of them" in "\n".join(summary(outcome))
    (content,) = topic_content(services, loss.topic).values()
    newest = max(at for at, one in enumerate(loss.sent) if one.key == loss.sent[loss.lost[0]].key)
    wanted = [*(loss.sent[at] for at in loss.lost), loss.sent[newest], loss.newer]
    assert sorted(content[len(loss.sent) - len(loss.lost) + 1 :], key=repr) == sorted(wanted, key=repr)
    # A reader that reaches the end has the latest value of every key, including the later relay's.
    assert {one.key: one for one in content} == {
        **{one.key: one for one in loss.sent}, loss.newer.key: loss.newer
    }  # fmt: skip
    with pytest.raises(RefusedError, match="were already replayed"):
        replays.run(loss.folder, only_missing=report)
    # A second report with the same contents or a different state folder doubles nothing either.
    for again in (loss.report(tmp_path / "again.json", verdict="anomalies"), report):
        with pytest.raises(
            RefusedError, match="the topics now have all messages that the report lists as missing"
        ):
            replays.run(loss.folder, only_missing=again, restart=True)
    assert topic_content(services, loss.topic)[0] == content


@pytest.mark.long
def test_in_a_session_of_its_own(services: ServiceAddresses, loss: Loss, tmp_path: Path) -> None:
    """The other tests share a session without code generation for its plans, unlike a user's."""
    ends = ("-b", services.broker, "-r", services.schema_registry)
    report = str(loss.report(tmp_path / "report.json"))
    command = ("replay", str(loss.folder), "--only-missing", report, "--yes", "--json", *ends)
    with Attempts(services, tmp_path).begin(*command) as process:
        output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert json.loads(output)["missing"]["messages"] == 3
    (content,) = topic_content(services, loss.topic).values()
    assert {one.key: one for one in content} == {
        **{one.key: one for one in loss.sent}, loss.newer.key: loss.newer
    }  # fmt: skip


def test_only_missing_and_meant(replays: Replays, loss: Loss, tmp_path: Path) -> None:
    """Only missing messages that match a query are sent, also from a report without positions."""
    by_position, by_identity = loss.report(tmp_path / "report.json"), tmp_path / "identity.json"
    with contextlib.closing(open_recording(loss.folder)) as view:
        lost = {one.position: one for one in view.changes() if one.position in loss.lost}
    content = json.loads(by_position.read_text())
    for finding in content["findings"]:
        change = lost[finding["position"]]
        finding |= {"position": None, "lsn": change.lsn, "ordinal": change.ordinal}
    by_identity.write_text(json.dumps(content))
    one = lost[loss.lost[0]]
    first = f"lsn = {format_lsn(one.lsn)} and ordinal = {one.ordinal} and time < 1970-01-02"
    for text, found in (("table ~ '^missing' and after.body ~ '^[0-9]+$'", 3), (first, 1)):
        meant = ChangeSelection(query=parse(text))
        for report in (by_position, by_identity):
            outcome = replays.run(loss.folder, selection=meant, only_missing=report, dry_run=True)
            assert outcome.plan.missing is not None
            assert outcome.plan.missing["messages"] == found, text
    nothing = ChangeSelection(query=parse("table = other"))
    with pytest.raises(RefusedError, match="has none of the messages that the report lists as missing"):
        replays.run(loss.folder, selection=nothing, only_missing=by_position)


def test_what_is_back_is_not_sent(
    replays: Replays, services: ServiceAddresses, config: dict[str, str], loss: Loss, tmp_path: Path
) -> None:
    report = loss.report(tmp_path / "report.json")
    one = loss.sent[loss.lost[1]]
    producer = Producer({**config})
    producer.produce(loss.topic, one.value, one.key, 0, timestamp=one.stamp)
    assert producer.flush(30) == 0
    outcome = replays.run(loss.folder, only_missing=report)
    counts = outcome.plan.missing
    assert counts is not None
    assert (counts["reported"], counts["messages"]) == (3, 2)
    assert (counts["there"], counts["without_message"]) == (1, 0)
    (content,) = topic_content(services, loss.topic).values()
    assert content.count(one) == 1
    assert {one.key: one for one in content} == {
        **{one.key: one for one in loss.sent}, loss.newer.key: loss.newer
    }  # fmt: skip


@pytest.mark.long
def test_a_repeat_is_missing_although_the_first_is_there(
    replays: Replays,
    services: ServiceAddresses,
    config: dict[str, str],
    make_topic: MakeTopic,
    tmp_path: Path,
) -> None:
    """The replay sends what the audit counts: each message, each time that it was sent."""
    topic = fresh("repeat")
    stream = FramedStream(tmp_path / "r", ids=registered(services, topic))
    stream.begin_pass()
    stream.change("insert", table(1, topic), 1, b"one")
    stream.commit()
    stream.flush()
    stream.deliver()
    stream.repeat(1)
    stream.stop()
    (sent,) = expected(stream.folder)[topic]
    with contextlib.closing(open_recording(stream.folder)) as view:
        (again,) = [one.position for one in view.changes() if one.is_repeat]
        names = {"recording_id": view.source.recording}
    make_topic(1, topic)
    producer = Producer({**config})
    producer.produce(topic, sent.value, sent.key, 0, timestamp=sent.stamp)
    assert producer.flush(30) == 0
    finding = AuditFinding("lost_acked", topic, lsn=1, ordinal=1, position=again, part=0).to_json()
    ends = {"topics": [{"topic": topic, "partition": 0, "low": 0, "high": 1}]}
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"classes": {"lost_acked": 1}, "findings": [finding], **names, **ends}))
    counts = replays.run(stream.folder, only_missing=report).plan.missing
    assert counts is not None and counts["messages"] == 1
    assert topic_content(services, topic) == {0: [sent, sent]}
    with pytest.raises(RefusedError, match="the topics now have all messages"):
        replays.run(stream.folder, only_missing=report, restart=True)
    ends["topics"][0]["high"] = 3
    report.write_text(json.dumps({"classes": {"lost_acked": 1}, "findings": [finding], **names, **ends}))
    with pytest.raises(RefusedError, match="has lost the end of its log since it was verified"):
        replays.run(stream.folder, only_missing=report)


@pytest.mark.parametrize("settings", [{"message_timestamp_type": "LogAppendTime"}])
def test_a_topic_with_times_of_its_own(
    replays: Replays, services: ServiceAddresses, loss: Loss, tmp_path: Path
) -> None:
    replays.run(loss.folder, only_missing=loss.report(tmp_path / "report.json"))
    (content,) = topic_content(services, loss.topic).values()
    newest = {one.key: one.value for one in [*loss.sent, loss.newer]}
    assert {one.key: one.value for one in content} == newest
    with pytest.raises(RefusedError, match="the topics now have all messages"):
        replays.run(loss.folder, only_missing=loss.report(tmp_path / "again.json", verdict="anomalies"))


def test_a_report_of_something_else(
    replays: Replays, services: ServiceAddresses, loss: Loss, tmp_path: Path
) -> None:
    before = topic_content(services, loss.topic)
    for more, error, words in (
        ({"recording_id": "other"}, RefusedError, "the report is about a different recording"),
        ({"cluster": "other"}, RefusedError, "the report is about Kafka cluster other"),
        ({"recording_id": None}, UsageError, "is not an audit report of a recording"),
    ):
        with pytest.raises(error, match=words):
            replays.run(loss.folder, only_missing=loss.report(tmp_path / "report.json", **more))
    assert topic_content(services, loss.topic) == before


def test_a_report_that_does_not_fit(replays: Replays, loss: Loss, tmp_path: Path) -> None:
    replays.sealed(loss.folder)
    report = loss.report(tmp_path / "report.json", counted=4)
    with pytest.raises(RefusedError, match="counts 4 missing messages but lists only 3") as refused:
        replays.run(loss.folder, only_missing=report)
    assert "--findings 4" in (refused.value.hint or "")
    with pytest.raises(UsageError, match="writes to the recording's own topics"):
        replays.run(loss.folder, only_missing=report, prefix="other")
    report.write_text("[]")
    with pytest.raises(UsageError, match="is not an audit report"):
        replays.run(loss.folder, only_missing=report)
    report.write_text(json.dumps({"classes": {}, "findings": [], **loss.names}))
    with pytest.raises(UsageError, match="lists no missing messages"):
        replays.run(loss.folder, only_missing=report)


class Begun(Exception):
    """Fail the test: the work has begun, and Spark would start next."""


class Beginning(ReplayConsole):
    """A screen that lets no work begin."""

    def phase(self, name: str) -> None:
        raise Begun(name)


def test_without_a_terminal_it_is_refused_before_anything_begins(
    replays: Replays, config: dict[str, str], loss: Loss, tmp_path: Path
) -> None:
    """The recording is not even sealed first. A yes, or a run that had begun, is enough."""
    report = loss.report(tmp_path / "report.json")
    nobody, yes = (Beginning(ProgressView(), yes=said) for said in (False, True))
    with pytest.raises(RefusedError, match="3 reported messages would be") as refused:
        replays.run(loss.folder, nobody, only_missing=report)
    assert "--yes" in (refused.value.hint or "")
    with pytest.raises(RefusedError, match="the report is about a different recording"):
        other = loss.report(tmp_path / "other.json", recording_id="other")
        replays.run(loss.folder, nobody, only_missing=other)
    for watch, dry_run in ((yes, False), (nobody, True)):
        with pytest.raises(Begun):
            replays.run(loss.folder, watch, only_missing=report, dry_run=dry_run)
    job, (cluster, _) = replays.job(loss.folder, only_missing=report), partitions(config)
    with contextlib.closing(job.target):
        file = progress_file(job, loss.names["recording_id"], cluster, MissingMessages(report))
    replays.state.mkdir()
    file.save(ReplayProgress(file.what))
    with pytest.raises(Begun):
        replays.run(loss.folder, nobody, only_missing=report)
    with pytest.raises(RefusedError, match="3 reported messages would be"):
        replays.run(loss.folder, nobody, only_missing=report, restart=True)
