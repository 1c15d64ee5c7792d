"""A broker's disk has damaged a batch.

Its messages are lost, all others are read, and the audit reports it.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bwtui.kafka import scan as kafka_damage
from bwtui.kafka import scan as kafka_scan
from bwtui.kafka.scan import Split, SplitScan, pin
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from bwtui.verify import recording as verify
from tests.attempts import Attempts
from tests.database import Session, session
from tests.fresh_topic import create_topic
from tests.integration.test_verify_database import relaying
from tests.integration.test_verify_database import verify as verify_database
from tests.raw_topic import raw_records
from tests.waiting import eventually

pytestmark = pytest.mark.services

#: Length of a batch's header, and offset of the records in it.
_HEAD = 61
BATCHES, SIZE = 8, 10


class Batch(NamedTuple):
    """A batch in a segment file: its position, and its offsets ``[low, high)``."""

    at: int
    length: int
    low: int
    high: int


def log_file(sandbox: Sandbox, topic: str, partition: int = 0) -> Path:
    """Return the only segment file of a partition."""
    (path,) = (sandbox.folder / "data").rglob(f"{topic}-{partition}/*.log")
    return path


def batches(path: Path) -> list[Batch]:
    """Return the batches of a segment file."""
    data, at, found = path.read_bytes(), 0, []
    while at + _HEAD <= len(data):
        base, length = struct.unpack_from(">qi", data, at)
        (last,) = struct.unpack_from(">i", data, at + 23)
        found.append(Batch(at, 12 + length, base, base + last + 1))
        at += 12 + length
    return found


#: The changes: file, position, and the original bytes.
_changed: list[tuple[Path, int, bytes]] = []


@pytest.fixture(autouse=True)
def mended() -> Iterator[None]:
    """Restore all files: a restarted broker reads all logs, and does not start with damaged ones."""
    yield
    while _changed:
        path, at, before = _changed.pop()
        if path.exists():
            _write(path, at, before)


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Change the file in place, as a disk does."""
    _changed.append((path, at, path.read_bytes()[at : at + len(data)]))
    _write(path, at, data)


def _write(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, batch: Batch, place: int) -> None:
    """Change one byte of a batch."""
    overwrite(path, batch.at + place, bytes([path.read_bytes()[batch.at + place] ^ 0x55]))


@pytest.fixture
def topic(services: ServiceAddresses, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Create a topic of one partition that holds eight batches of ten messages."""

    def make(**settings: str) -> str:
        config = {"bootstrap.servers": services.broker}
        name = f"damaged-{abs(hash(request.node.name)):x}"
        create_topic(AdminClient({**config}), NewTopic(name, 1, 1))
        producer = Producer({**config, "linger.ms": 1000, "batch.num.messages": SIZE, **settings})
        for number in range(BATCHES * SIZE):
            producer.produce(name, b"value %d " % number * 9, b"%d" % number, 0)
            if number % SIZE == SIZE - 1:
                assert producer.flush(30) == 0
        return name

    return make


def scan(services: ServiceAddresses, topic: str, low: int = 0, high: int = 0) -> tuple[set[int], list[Any]]:
    """Return the offsets of the messages that are read, and the holes."""
    config = {"bootstrap.servers": services.broker}
    split = Split(topic, 0, low, high or BATCHES * SIZE)
    offsets: set[int] = set()
    holes: list[Any] = []
    for part in SplitScan(config, split, "read_uncommitted", 1.0):
        offsets.update(part.offsets)
        holes += map(tuple, part.holes)
    return offsets, holes


@pytest.mark.parametrize(
    ("which", "settings"),
    [
        ([0], {}),
        ([3], {}),
        ([7], {}),
        ([2, 3, 6], {}),
        ([1, 4], {"compression.type": "lz4"}),
        (list(range(8)), {"compression.type": "zstd"}),
    ],
    ids=["first", "middle", "last", "several", "compressed", "all"],
)
def test_all_others_are_read(
    services: ServiceAddresses,
    sandbox: Sandbox,
    topic: Callable[..., str],
    which: Sequence[int],
    settings: dict[str, str],
) -> None:
    name = topic(**settings)
    path = log_file(sandbox, name)
    there = batches(path)
    assert [(one.low, one.high) for one in there] == [(n * SIZE, n * SIZE + SIZE) for n in range(BATCHES)]
    for number in which:
        flip(path, there[number], there[number].length - 5)
    lost = {offset for number in which for offset in range(there[number].low, there[number].high)}
    offsets, holes = scan(services, name)
    assert offsets == set(range(BATCHES * SIZE)) - lost
    assert {kind for kind, *_ in holes} == {"damaged"}
    assert {offset for _, low, high in holes for offset in range(low, high)} == lost
    # A task may begin and end within a batch.
    offsets, holes = scan(services, name, 15, 65)
    assert offsets == set(range(15, 65)) - lost
    assert all(kind == "damaged" and 15 <= low < high <= 65 for kind, low, high in holes)


def test_a_header_that_says_nothing_sensible_is_passed_over(
    services: ServiceAddresses, sandbox: Sandbox, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    path = log_file(sandbox, name)
    there = batches(path)
    # The magic byte: no batch format has this version.
    overwrite(path, there[3].at + 16, b"\x63")
    monkeypatch.setattr(kafka_damage, "_SILENCE_SECONDS", 0.4)
    offsets, holes = scan(services, name)
    assert offsets | {offset for _, low, high in holes for offset in range(low, high)} == set(range(80))
    assert offsets.isdisjoint(range(30, 40))
    assert set(range(30)) <= offsets
    assert [tuple(hole) for hole in holes] == [("damaged", 30, 40)]
    # A task that begins within the batch gets no error at all.
    monkeypatch.setattr(kafka_scan, "_SILENCE_SECONDS", 0.5)
    assert scan(services, name, 35, 65) == (set(range(40, 65)), [("damaged", 35, 40)])


def test_a_header_whose_offset_is_damaged_too_hides_nothing_behind_it(
    services: ServiceAddresses, sandbox: Sandbox, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    path = log_file(sandbox, name)
    batch = batches(path)[3]
    # The broker, too, returns the batch for the requested offset, until its index leads past it.
    overwrite(path, batch.at, struct.pack(">qiiB", 1 << 40, batch.length - 12, 0, 0x63))
    monkeypatch.setattr(kafka_damage, "_SILENCE_SECONDS", 0.4)
    offsets, holes = scan(services, name)
    ((kind, low, high),) = holes
    assert (kind, low) == ("damaged", 30) and 40 <= high < 80
    assert offsets == set(range(30)) | set(range(high, 80))


def test_the_audit_names_what_is_lost(
    services: ServiceAddresses,
    sandbox: Sandbox,
    database: str,
    tmp_path: Path,
) -> None:
    attempts = Attempts(services, tmp_path)
    with session(database) as opened:
        opened.run("create table orders (id int primary key, note text)")
        opened.run("insert into orders select i, 'note ' || i from generate_series(1, 60) i")
        attempts.succeed(database, "--record", str(tmp_path / "recording"))
        for number in range(3):
            opened.run(f"update orders set note = 'again {number}' where id <= 20")
            attempts.succeed(database, "--record", str(tmp_path / "recording"))
        opened.run("select pg_drop_replication_slot(%s)", attempts.name)
    name = f"{attempts.name}.orders"
    config = {"bootstrap.servers": services.broker}
    (found,) = [place for place in pin(config, [name]).offsets if place[1] == 0]
    path = log_file(sandbox, *found)
    victim = batches(path)[1]
    flip(path, victim, victim.length - 5)

    report = eventually("it is judged", lambda: verify.verify_recording(tmp_path / "recording", config))
    assert report.verdict == "anomalies"
    assert report.found["lost_acked"] == victim.high - victim.low
    lost = {one.offset for one in report.findings if one.name == "lost_acked"}
    assert lost <= set(range(victim.low, victim.high)) and lost
    assert any(f"in batches of {name} that can't be read" in note for note in report.notes)


def test_tables_are_not_clean_beside_a_damaged_batch(
    services: ServiceAddresses, sandbox: Sandbox, attempts: Attempts, source: Session, database: str
) -> None:
    source.run("create table t (id int primary key, v text); insert into t values (1, 'one')")
    topic = f"{attempts.name}.t"
    create_topic(AdminClient({"bootstrap.servers": services.broker}), NewTopic(topic, 1, 1))

    def has(number: int) -> Callable[[], bool]:
        return lambda: len(raw_records(services, [topic]).get((topic, 0), [])) == number

    with relaying(attempts, database, source):
        eventually("the row is there", has(1))
        for number, value in enumerate(("two", "one"), 2):
            source.run("update t set v = %s", value)
            eventually("the update is there", has(number))
        path = log_file(sandbox, topic)
        # The last readable record has the row's value.
        for batch in batches(path)[-2:]:
            flip(path, batch, batch.length - 5)
        ended, report = verify_database(attempts, database)
    assert (ended.code, report["verdict"]) == (3, "indeterminate"), ended.stderr or report
    assert report["classes"]["indeterminate"] == 2
    assert any(f"2 offsets are in batches of {topic} that can't be read" in note for note in report["notes"])
