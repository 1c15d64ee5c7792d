"""``--only-missing`` writes what an audit found missing, and keeps every key's latest value right."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bwtui.audit.report import Finding
from bwtui.cli.replay_view import question, told
from bwtui.errors import RefusedError, UsageError
from bwtui.sandbox.supervisor import Services
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.replayed import (
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

pytestmark = pytest.mark.services


@dataclass
class Loss:
    """A recording of 200 changes of 20 keys, and its topic, in which three messages are missing."""

    topic: str
    folder: Path
    sent: list[Sent]
    #: Positions of what is missing: an old message of key 3, the last of key 4, an old one of key 6.
    lost: list[int]
    #: What a later relay wrote of key 6.
    newer: Sent

    def report(self, path: Path, counted: int = 3) -> Path:
        """Write what an audit says of it."""
        findings = [
            Finding("lost_acked", self.topic, lsn=1, ordinal=1, position=at, part=0).to_json()
            for at in self.lost
        ]
        path.write_text(json.dumps({"classes": {"lost_acked": counted}, "findings": findings}))
        return path


@pytest.fixture
def loss(services: Services, config: dict[str, str], make_topic: MakeTopic, tmp_path: Path) -> Loss:
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
    make_topic(1, topic)
    producer = Producer({**config})
    for one in [*(one for at, one in enumerate(sent) if at not in lost), newer]:
        producer.produce(topic, one.value, one.key, 0, timestamp=one.stamp, headers=list(one.headers) or None)
    assert producer.flush(30) == 0
    return Loss(topic, folder, sent, lost, newer)


def test_only_missing(replays: Replays, services: Services, loss: Loss, tmp_path: Path) -> None:
    report = loss.report(tmp_path / "report.json")
    watch = Looking()
    outcome = replays.run(loss.folder, watch, only_missing=report)
    assert outcome.plan.missing == {
        "reported": 3, "messages": 3, "late": 2, "sent_again": 2, "without_message": 0
    }  # fmt: skip
    # Before anything is written, and behind it, somebody is told what can't be mended.
    assert "2 of them behind newer ones of their keys" in (question(watch.plans[0]) or "")
    assert "order can't be mended: 2 of them" in told(outcome)
    (content,) = topic_content(services, loss.topic).values()
    newest = max(at for at, one in enumerate(loss.sent) if one.key == loss.sent[loss.lost[0]].key)
    wanted = [*(loss.sent[at] for at in loss.lost), loss.sent[newest], loss.newer]
    assert sorted(content[len(loss.sent) - len(loss.lost) + 1 :], key=repr) == sorted(wanted, key=repr)
    # Whoever reads to the end has the latest value of every key, and that of the later relay.
    assert {one.key: one for one in content} == {
        **{one.key: one for one in loss.sent}, loss.newer.key: loss.newer
    }  # fmt: skip
    with pytest.raises(RefusedError, match="was replayed already"):
        replays.run(loss.folder, only_missing=report)


def test_a_report_that_does_not_fit(replays: Replays, loss: Loss, tmp_path: Path) -> None:
    replays.sealed(loss.folder)
    report = loss.report(tmp_path / "report.json", counted=4)
    with pytest.raises(RefusedError, match="counts 4 missing messages and lists 3"):
        replays.run(loss.folder, only_missing=report)
    with pytest.raises(UsageError, match="writes into the topics of the recording"):
        replays.run(loss.folder, only_missing=report, prefix="other")
    report.write_text("[]")
    with pytest.raises(UsageError, match="is no report of an audit"):
        replays.run(loss.folder, only_missing=report)
    report.write_text(json.dumps({"classes": {}, "findings": []}))
    with pytest.raises(UsageError, match="found nothing missing"):
        replays.run(loss.folder, only_missing=report)
