"""A replay that was killed or interrupted is resumed, and nothing is sent twice."""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bwtui.errors import Interrupted, RefusedError
from bwtui.kafka.scan import pin
from bwtui.recording.reader import open_recording
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from tests.faults.hanging import hanging
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

Config = dict[str, str]


def _below(root: int) -> Iterator[int]:
    """Yield the descendants of a process."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((path / "stat").read_text().rpartition(")")[2].split()[1]) == root:
                yield int(path.name)
                yield from _below(int(path.name))


def _command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "bwtui", "replay", str(folder), *options]


def _environment(services: ServiceAddresses, home: Path) -> dict[str, str]:
    ends = {"BWTUI_BROKER": services.broker, "BWTUI_SCHEMA_REGISTRY": services.schema_registry}
    return {**os.environ, **ends, "BWTUI_STATE_HOME": str(home)}


def test_kill_9(replays: Replays, services: ServiceAddresses, config: Config, tmp_path: Path) -> None:
    topic = fresh("killed")
    folder = recorded(tmp_path / "r", topic, 6_000, registered(services, topic))
    sent = expected(folder)[topic]
    replays.sealed(folder)
    # So slow that much is left to send when it is killed, even if this process or Kafka stalls for seconds.
    command = _command(folder, "--rate", "700", "--yes", *replays.master("local[2]"))
    process = subprocess.Popen(command, env=_environment(services, tmp_path / "home"))
    try:
        replays.run(folder, dry_run=True)

        def has_begun() -> bool:
            assert process.poll() is None
            with contextlib.suppress(RefusedError):
                return pin(config, [topic]).messages > 2_000
            return False

        eventually("the replay has begun", has_begun, 90)
        below = list(_below(process.pid))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    eventually("nothing is left of it", lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
    written = pin(config, [topic]).messages
    assert 2_000 < written < len(sent)
    replays.state = tmp_path / "home" / "replays"
    outcome = replays.run(folder, Looking())
    assert outcome.plan.is_resumed and outcome.plan.resumed > 0
    # The killed run's noted messages, its unnoted ones, and the rest make up the whole, and nothing is there
    # twice.
    assert outcome.plan.resumed + outcome.found == written and outcome.doubled == 0
    assert by_key(all_of(topic_content(services, topic))) == by_key(sent)


def test_what_a_killed_run_did_not_note_is_found_among_the_messages_of_others(
    replays: Replays, services: ServiceAddresses, config: Config, tmp_path: Path, make_topic: MakeTopic
) -> None:
    topic = fresh("unnoted")
    # Not compacted: messages of another time begin a new segment, and Kafka then compacts the one before.
    make_topic(3, topic)
    folder = recorded(tmp_path / "r", topic, 6_000, registered(services, topic))
    sent = expected(folder)[topic]
    notes = tmp_path / "notes"
    notes.mkdir()

    def keep(done: int) -> None:
        # The file from some time before the run ends: it has fewer messages than the topic.
        for path in (tmp_path / "state").glob("*.json"):
            if 0 < done < len(sent) and not (notes / path.name).exists():
                shutil.copy(path, notes / path.name)

    with pytest.raises(Interrupted, match="messages"):
        # If Kafka stalls for a while, all messages in flight may become durable at once.
        replays.run(folder, Looking(stop_at=1_500, at_progress=keep), rate=1_000)
    (noted,) = notes.glob("*.json")
    known = sum(lane["messages"] for lane in json.loads(noted.read_text())["lanes"].values())
    written = len(all_of(topic_content(services, topic)))
    assert known < written < len(sent)
    shutil.copy(noted, tmp_path / "state" / noted.name)
    # Another producer writes in between.
    produce(config, topic, [(b"other", b"foreign", None)] * 5, partition=0)
    outcome = replays.run(folder, Looking())
    assert outcome.plan.is_resumed and outcome.found == written - known
    assert outcome.sent + outcome.found + known == outcome.done == len(sent)
    found = [one for one in all_of(topic_content(services, topic)) if one.value != b"foreign"]
    assert by_key(found) == by_key(sent)


@pytest.mark.long
def test_a_recorded_pace_goes_on_where_it_was(
    replays: Replays, services: ServiceAddresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh("paced")
    ids = registered(services, topic)
    with monkeypatch.context() as patch:
        # A disk that stalls during the recording would put nearly all of the time after one batch.
        clock = itertools.count(1_790_000_000_000_000_000, 1_000_000)
        patch.setattr("bwtui.recording.journal.time.time_ns", lambda: next(clock))
        folder = recorded(tmp_path / "r", topic, 400, ids, batch=50)
    with contextlib.closing(open_recording(folder)) as view:
        received = [change.received for change in view.changes()]
    pace = (received[-1] - received[0]) / 1_000_000 / 12
    with pytest.raises(Interrupted):
        replays.run(folder, Looking(stop_at=250), pace=pace)
    outcome = replays.run(folder, pace=pace)
    # Twelve seconds in total; more than half of the waiting is done, and is not repeated.
    assert outcome.seconds < 11
    sent = expected(folder)[topic]
    assert by_key(all_of(topic_content(services, topic))) == by_key(sent)


@contextlib.contextmanager
def _hangups_pass_on() -> Iterator[None]:
    """Give a child that is started in the block the default SIGHUP, also below nohup, which ignores it.

    A child inherits an ignored signal, but not a handler. Meanwhile SIGHUP does not end the test process
    either.
    """
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_ended_by_a_signal(
    replays: Replays, services: ServiceAddresses, config: Config, tmp_path: Path, number: signal.Signals
) -> None:
    topic = fresh("ended")
    folder = recorded(tmp_path / "r", topic, 6_000, registered(services, topic))
    replays.sealed(folder)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with _hangups_pass_on():
        process = subprocess.Popen(
            _command(folder, "--rate", "700", *replays.master("local[1]"), "--progress-json"),
            env={**_environment(services, tmp_path / "home"), "TMPDIR": str(temporary)},
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        assert process.stderr is not None
        while not re.search(r'"sending", "done": [1-9]', line := process.stderr.readline()):
            assert line, "it ended before it was told to"
        process.send_signal(number)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "messages\nhint: run the same command again to resume\n" in said
    assert not list(temporary.glob("bwtui-*"))
    replays.state = tmp_path / "home" / "replays"
    outcome = replays.run(folder)
    # The messages in flight became durable, and were noted.
    assert outcome.plan.is_resumed and (outcome.found, outcome.doubled) == (0, 0)
    assert by_key(all_of(topic_content(services, topic))) == by_key(expected(folder)[topic])


@pytest.mark.parametrize("replays", ["in this process"], indirect=True)
def test_interrupted_again_and_again_while_kafka_stands_still(
    replays: Replays, services: ServiceAddresses, interrupted: Sandbox, tmp_path: Path
) -> None:
    """It ends without Kafka and reports nothing more.

    The next run finds its messages in flight in the topic.
    """
    topic = fresh("frozen")
    folder = recorded(tmp_path / "r", topic, 6_000, registered(services, topic))
    replays.sealed(folder)
    with subprocess.Popen(
        _command(folder, "--rate", "1000", "--progress-json"),
        env=_environment(services, tmp_path / "home"),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while not re.search(r'"sending", "done": [1-9]', line := process.stderr.readline()):
            assert line, "it ended before it was told to"

        def has_ended() -> bool:
            process.send_signal(signal.SIGINT)
            return process.poll() is not None

        with hanging(interrupted):
            eventually("it has ended", has_ended, 20)
        told = [line for line in process.stderr.read().splitlines() if not line.startswith("{")]
    # One more signal after the last output finds no Python any more.
    assert process.returncode in (130, -signal.SIGINT)
    # The third signal suppresses the report of the progress.
    assert told[0].startswith("bwtui: error: interrupted")
    assert told[1:] in ([], ["hint: run the same command again to resume"])
    replays.state = tmp_path / "home" / "replays"
    outcome = replays.run(folder)
    assert outcome.plan.is_resumed and outcome.doubled == 0
    assert by_key(all_of(topic_content(services, topic))) == by_key(expected(folder)[topic])


def test_nobody_needs_to_listen(replays: Replays, services: ServiceAddresses, tmp_path: Path) -> None:
    topic = fresh("unheard")
    folder = recorded(tmp_path / "r", topic, 3_000, registered(services, topic))
    replays.sealed(folder)
    with subprocess.Popen(
        _command(folder, "--rate", "1500", "--progress-json", "--json", *replays.master("local[1]")),
        env=_environment(services, tmp_path / "home"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        while b"sending" not in (line := process.stderr.readline()):
            assert line, "it ended before it was heard"
        process.stderr.close()
        told = json.loads(process.stdout.read())
    assert process.returncode == 0 and told["sent"] == told["messages"] == len(expected(folder)[topic])
