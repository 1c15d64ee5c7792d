"""A replay writes the recorded messages byte for byte, each key in order, to the requested place."""

import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click import BadParameter
from click.testing import CliRunner

from bwtui.audit.partitioner import murmur2_of
from bwtui.cli.main import CONTEXT
from bwtui.cli.replay import replay as command
from bwtui.encode.registry import SchemaRegistry
from bwtui.errors import BwtuiError, ConnectionFailed, DamagedRecording, RefusedError, UsageError
from bwtui.kafka.scan import partitions
from bwtui.recording.query_language import ChangeSelection, parse
from bwtui.recording.reader import open_recording
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.replayed import (
    FramedStream,
    Looking,
    Replays,
    all_of,
    by_key,
    expected,
    framed,
    fresh,
    recorded,
    registered,
    topic_content,
    with_ids,
)
from tests.recorded_stream import table

pytestmark = pytest.mark.services

SAMPLE = Path(__file__).parents[2] / "recordings" / "shop"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, which the first replay seals."""
    return Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("shop") / "a [copy]*"))


@pytest.fixture
def run(services: ServiceAddresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the command line without a terminal, and returns its output."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BWTUI_BROKER", services.broker)
    monkeypatch.setenv("BWTUI_SCHEMA_REGISTRY", services.schema_registry)

    def run(*arguments: str) -> str:
        # click keeps the help options of the first call of a command.
        return str(CliRunner().invoke(command, arguments, catch_exceptions=False, **CONTEXT).stdout)

    return run


def test_the_shop_into_another_registry_and_under_another_prefix(
    replays: Replays, services: ServiceAddresses, shop: Path, run: Any
) -> None:
    prefix = fresh("again")
    wanted = {topic.replace("shop.", f"{prefix}.", 1): sent for topic, sent in expected(shop).items()}
    watch = Looking()
    outcome = replays.run(shop, watch, prefix=prefix)
    count = sum(map(len, wanted.values()))
    assert outcome.sent == count and watch.told[-1] == (count, count)
    # Spark starts meanwhile.
    assert "choosing partitions" in watch.phases[-3:]
    assert watch.phases[-1] == "sending"
    uses = outcome.plan.schemas.uses
    with contextlib.closing(SchemaRegistry(services.schema_registry)) as registry:
        for use in uses:
            assert use.is_new and use.id is not None
            assert json.loads(registry.schema_text(use.id) or "") == json.loads(use.text)
    for topic, sent in wanted.items():
        of = [use for use in uses if use.subject.startswith(f"{topic}-")]
        keys, values = (
            {use.recorded_id: use.id or 0 for use in of if use.part == part} for part in ("key", "value")
        )
        mapped = [with_ids(one, keys, values) for one in sent]
        content = topic_content(services, topic)
        # Each key has its messages in order, with headers and times, in the partition that Java clients
        # choose.
        assert {key: all_ for key, all_ in by_key(all_of(content)).items() if key is not None} == {
            key: all_ for key, all_ in by_key(mapped).items() if key is not None
        }
        assert sorted(map(repr, all_of(content))) == sorted(map(repr, mapped))
        for number, messages in content.items():
            keys = pa.array([*(one.key for one in messages), None], pa.binary())
            assert {found % len(content) for found in murmur2_of(keys).drop_null().to_pylist()} <= {number}
    assert any(one.headers for sent in wanted.values() for one in sent)
    # A second replay would double them, so it asks first; a dry run only reports.
    with pytest.raises(RefusedError, match="of this range, and would then contain them twice") as refused:
        run(str(shop), "--topic-prefix", prefix)
    assert "--yes" in (refused.value.hint or "")
    planned = json.loads(run(str(shop), "--topic-prefix", prefix, "--dry-run", "--json"))
    assert planned["state"] == "planned" and planned["messages"] == count
    for topic, sent in wanted.items():
        assert sum(planned["topics"][topic]["partitions"].values()) == len(sent)
        assert sum(planned["topics"][topic]["held"].values()) == len(sent)


def test_a_dry_run_makes_nothing(replays: Replays, services: ServiceAddresses, shop: Path, run: Any) -> None:
    replays.sealed(shop)
    prefix = fresh("never")
    told = run(str(shop), "--topic-prefix", prefix, "--dry-run")
    assert "would send" in told and "to be created" in told and "to be registered" in told
    assert not [one for one in partitions({"bootstrap.servers": services.broker})[1] if prefix in one]
    with contextlib.closing(SchemaRegistry(services.schema_registry)) as registry:
        assert not [one for one in registry._client.get_subjects() if prefix in one]


def _counts(
    shop: Path, options: Sequence[str], chosen: ChangeSelection, run: Any
) -> Iterator[tuple[str, int, int]]:
    planned = json.loads(run(str(shop), "--topic-prefix", "never", "--dry-run", "--json", *options))
    wanted: dict[str, int] = {}
    with contextlib.closing(open_recording(shop)) as view:
        for change in view.changes():
            for one in change.messages if chosen.takes(change) else ():
                wanted[one.topic] = wanted.get(one.topic, 0) + 1
    assert wanted
    found = {topic["recorded"]: topic["messages"] for topic in planned["topics"].values()}
    yield from ((topic, found.get(topic, 0), wanted.get(topic, 0)) for topic in {*found, *wanted})


def test_ranges_tables_and_queries_take_what_the_reader_takes(replays: Replays, shop: Path, run: Any) -> None:
    replays.sealed(shop)
    with contextlib.closing(open_recording(shop)) as view:
        changes = [change for change in view.changes() if change.operation != "snapshot"]
    early, late = changes[len(changes) // 3], changes[2 * len(changes) // 3]
    lsn = [f"{one.lsn >> 32:X}/{one.lsn & 0xFFFFFFFF:X}" for one in (early, late)]
    regex = re.compile("order.*")
    query = "op = update or table = customers"
    for options, chosen in (
        (("--from-lsn", lsn[0], "--to-lsn", lsn[1]), ChangeSelection(None, None, early.lsn, late.lsn)),
        (("--table", "order.*"), ChangeSelection(table=regex)),
        (("--where", query), ChangeSelection(parse(query))),
        (
            ("--where", "op = delete", "--with-repeats"),
            ChangeSelection(parse("op = delete"), with_repeats=True),
        ),
    ):
        assert [one for one in _counts(shop, options, chosen, run) if one[1] != one[2]] == []
    with pytest.raises(UsageError, match="has no matching message"):
        run(str(shop), "--table", "nothing", "--dry-run")


def test_kept_ids_and_a_part(replays: Replays, services: ServiceAddresses, tmp_path: Path) -> None:
    topic = fresh("kept")
    ids = registered(services, topic)
    folder = recorded(tmp_path / "r", topic, 300, ids)
    other = recorded(tmp_path / "s", topic, 10, (ids[0] + 900_000, ids[1]))
    with pytest.raises(
        RefusedError, match=f"has no schema under id {ids[0] + 900_000}, to which messages of"
    ):
        replays.run(other, keep_ids=True)
    sent = expected(folder)[topic]
    chosen = [one for one in sent if one.stamp >= sent[150].stamp and one.value is not None]
    selection = ChangeSelection(query=parse("op != delete"), from_time=sent[150].stamp * 1000)
    outcome = replays.run(folder, selection=selection, keep_ids=True)
    assert outcome.sent == len(chosen)
    assert by_key(all_of(topic_content(services, topic))) == by_key(chosen)
    # The recorded partitions had keys in two places, so the keys now decide.
    assert outcome.plan.notes and "different partitions" in outcome.plan.notes[0]
    # An id that the registry lacks is replaced by its id for the same schema.
    mapped = replays.run(other)
    assert {use.id for use in mapped.plan.schemas.uses} == set(ids) and mapped.sent == 10


def test_partitions_that_were_recorded_are_kept(
    replays: Replays, services: ServiceAddresses, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = fresh("placed")
    ids = registered(services, topic)
    make_topic(4, topic)
    stream = FramedStream(tmp_path / "r", ids=ids)
    stream.begin_pass()
    # Six keys in turn, which the double's broker assigns in turn to partitions 1, 2 and 0.
    for number in range(30):
        stream.change("insert", table(1, topic), number % 6, b"%d" % number)
        stream.commit()
        stream.flush()
        stream.deliver()
    stream.stop()
    outcome = replays.run(tmp_path / "r")
    assert (outcome.plan.topics[0].placement, outcome.plan.notes) == ("recorded", [])
    content = topic_content(services, topic)
    found = {number: {one.key for one in messages} for number, messages in content.items()}
    key = [framed(ids[0], b"%d" % number) for number in range(6)]
    assert found == {0: {key[2], key[5]}, 1: {key[0], key[3]}, 2: {key[1], key[4]}, 3: set()}


def test_rate_and_pace(replays: Replays, services: ServiceAddresses, tmp_path: Path) -> None:
    topic = fresh("slow")
    folder = recorded(tmp_path / "r", topic, 400, registered(services, topic), batch=50)
    outcome = replays.run(folder, rate=500)
    assert outcome.seconds > 0.6 and outcome.sent == 400
    watch = Looking()
    # The recording took some milliseconds; the replay gets a second and a half.
    with contextlib.closing(open_recording(folder)) as view:
        received = [change.received for change in view.changes()]
    recorded_seconds = (received[-1] - received[0]) / 1_000_000
    begin = time.monotonic()
    paced = replays.run(folder, watch, pace=recorded_seconds / 1.5, restart=True)
    assert paced.sent == 400 and watch.plans[0].held == 400
    assert 1.3 < paced.seconds < time.monotonic() - begin


def _refused(error: BwtuiError) -> tuple[int, bool]:
    return error.exit_code, bool(error.hint) and "\n" not in error.message


def test_bad_input_is_told_in_a_sentence(
    replays: Replays,
    services: ServiceAddresses,
    make_topic: MakeTopic,
    tmp_path: Path,
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    topic = fresh("small")
    make_topic(1, topic, max_message_bytes="2000")
    folder = tmp_path / "r"
    stream = FramedStream(folder, ids=registered(services, topic))
    stream.begin_pass()
    noise = b"".join(framed(number * 7_919, b"") for number in range(4_000))
    for number, body in enumerate((b"one", b"two", noise, b"four")):
        stream.change("insert", table(1, topic), number, body)
        stream.commit()
    stream.stop()
    with pytest.raises(
        RefusedError, match=f"topic {topic} does not accept a message of 20005 bytes"
    ) as refused:
        replays.run(folder)
    assert _refused(refused.value) == (2, True)
    options: tuple[str, ...]
    for options, what in (
        (("-b", "127.0.0.1:1"), "can't reach Kafka at 127.0.0.1:1"),
        (("-r", "http://127.0.0.1:1", "--dry-run"), "can't reach the schema registry"),
        (("--spark-master", "spark://127.0.0.1:1", "--yes"), "no Spark master answers"),
    ):
        with monkeypatch.context() as patch, pytest.raises(ConnectionFailed, match=what) as unreachable:
            if "-b" in options:
                # Only for an unreachable broker: the run's broker may take its time.
                patch.setattr("bwtui.kafka.client.REQUEST_SECONDS", 1.0)
            run(str(folder), *options)
        assert _refused(unreachable.value) == (4, True)
    # librdkafka does not repeat it either; messages of clients of other tests do not matter here.
    assert "127.0.0.1:1:" not in (said := capfd.readouterr().err) and "127.0.0.1:1/" not in said
    for options, what in (
        (("--rate", "5", "--pace", "1"), "--rate and --pace are mutually exclusive"),
        (("--only-missing", "gone.json"), "gone.json can't be read"),
        (
            (
                "--spark-master",
                "here",
            ),
            "is not a valid Spark master",
        ),
        (
            (
                "-C",
                "partitioner=random",
            ),
            "partitioner=random is not allowed",
        ),
    ):
        with pytest.raises(UsageError, match=what):
            run(str(folder), *options, "--yes")
    with pytest.raises(BadParameter, match="'0' is not a number from 1 to 1,000,000,000"):
        CliRunner().invoke(
            command, [str(folder), "--rate", "0"], standalone_mode=False, catch_exceptions=False, **CONTEXT
        )
    file = max((folder / "sealed").rglob("*.parquet"))
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    with pytest.raises(DamagedRecording, match="does not match its checksum") as damaged:
        run(str(folder), "--restart")
    assert _refused(damaged.value)[0] == 6
    with pytest.raises(UsageError, match="does not exist"):
        run(str(tmp_path / "home"))
