"""The relay's memory does not grow with DDL, reconnects, or data waiting to be recorded."""

import gc
import tracemalloc
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from bwtui.errors import StateFailed
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.model.status import SchemaEntry
from bwtui.recording.blocks import BlockKind
from bwtui.recording.check import check
from bwtui.recording.folder import segments
from bwtui.recording.recover import recover
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows.batch import BATCH_BYTES
from bwtui.relay.rows.journal_recorder import JournalRecorder
from bwtui.relay.rows.samples import SampledCommit, Samples
from bwtui.relay.state.run_state import RunState, TableCounters
from bwtui.sink.delivery import DeliveryReports, ReceiptSection
from tests.faults.doubles import HoldResponse
from tests.scripted_relay import ScriptedRelay, table
from tests.waiting import eventually

COLUMNS = ["id", *(f"c{number}" for number in range(10))]


@pytest.fixture(autouse=True)
def no_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripted relay's catalog answer every query with the same row."""
    monkeypatch.setattr("bwtui.source.replica_identity.unused_key", lambda connection, table: None)


@pytest.fixture(autouse=True, scope="module")
def frozen_again() -> Iterator[None]:
    """Unfreeze the objects that `held` froze, and freeze the remaining ones to speed up later collections."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def collector_rests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the collector as rarely as in a relay: see `bwtui.cycles`."""
    # Lower the bounds so that they are reached quickly.
    monkeypatch.setattr("bwtui.relay.rows.samples.SAMPLES", 5)
    for bound in ("_MOST", "_MOST_LARGE", "NEWEST", "LARGEST"):
        monkeypatch.setattr(f"bwtui.relay.state.transaction_log.{bound}", 5)
    monkeypatch.setattr("bwtui.relay.routes.route._ROUTES_KEPT", 16)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def growth(
    step: Callable[[int], None], first: int, last: int, settle: Callable[[], None] = lambda: None
) -> int:
    """Return the growth of the used memory in bytes from step ``first`` to ``last``.

    ``settle`` waits for the pending work of other threads, which changes the result.
    """
    tracemalloc.start()
    try:
        for number in range(first):
            step(number)
        settle()
        before = held()
        for number in range(first, last):
            step(number)
        settle()
        return held() - before
    finally:
        tracemalloc.stop()


def confirmed(relay: ScriptedRelay) -> None:
    """Wait until everything relayed is durable, also in the recording, and released."""
    eventually("all is confirmed", lambda: relay.acks.advance() == relay.report.received_lsn)


def held() -> int:
    """Return the used memory in bytes, including garbage that only the collector would free."""
    # Python reuses freed tuples until a collection, but not frozen ones.
    gc.freeze()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize(("output_format", "record"), [("avro", False), ("avro", True), ("json", True)])
def test_memory_does_not_grow_with_alter_table(tmp_path: Path, record: bool, output_format: str) -> None:
    relay = ScriptedRelay(tmp_path, record=record, output_format=output_format, segment_bytes=50_000)

    def alter(number: int) -> None:
        columns = [*COLUMNS, f"extra{number}"] if number % 2 else COLUMNS
        relation = table(7, "t", columns)
        relay.begin()
        relay.announce(relation)
        relay.insert(relation, [b"x"] * len(columns))
        relay.commit()
        relay.play()
        relay.sink.delivered.clear()

    assert growth(alter, 60, 140, lambda: confirmed(relay)) < 30_000
    relay.close()


def test_memory_hardly_grows_with_tables_that_come_and_go(tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path, segment_bytes=50_000)

    def come_and_go(number: int) -> None:
        relation = table(1_000 + number, f"t{number}", COLUMNS)
        relay.begin()
        relay.announce(relation)
        relay.insert(relation, [b"x"] * len(COLUMNS))
        relay.commit()
        relay.play()
        relay.sink.delivered.clear()
        relay.catalog.keys.clear()

    # A table's counters, topic, schema and RELATION stay; its functions do not.
    assert growth(come_and_go, 80, 160, lambda: confirmed(relay)) < 80 * 7_000
    relay.close()
    assert check(relay.folder).verdict == "clean"


def test_memory_does_not_grow_with_rows_of_a_refused_table(tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path, on_error="log")
    refused = table(7, "t", ["c", "d"], identity="f")

    def row(number: int) -> None:
        relay.begin()
        if not number:
            relay.announce(refused, key="")
        for _ in range(10):
            relay.insert(refused, [b"x" * 1_000, b"y"])
        relay.commit()
        relay.play()

    assert growth(row, 10, 30) < 80_000
    assert relay.report.tables["public.t"].dead_letters == 300
    relay.close()


@pytest.mark.long
def test_memory_does_not_grow_with_reconnects(tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path, segment_bytes=50_000)
    relation = table(7, "t", COLUMNS)

    def reconnect(number: int) -> None:
        # Continue after the last transaction: it is not sent again, and the server has it.
        relay.connect(relay.report.received_lsn + 1)
        # The engine does this before each session; `held` has frozen the last one.
        gc.unfreeze()
        gc.collect()
        relay.begin()
        relay.announce(relation)
        relay.insert(relation, [b"x"] * len(COLUMNS))
        relay.commit()
        relay.play()
        relay.sink.delivered.clear()

    assert growth(reconnect, 15, 35, lambda: confirmed(relay)) < 20_000
    relay.close()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The size of each batch when it was recorded: bytes of frames and of messages."""
    found: list[tuple[int, int]] = []
    write = JournalRecorder.write_batch

    def note(recorder: JournalRecorder, routes: Sequence[TableRoute]) -> Any:
        found.append((sum(map(len, recorder.frames)), sum(route.bytes for route in routes)))
        return write(recorder, routes)

    monkeypatch.setattr(JournalRecorder, "write_batch", note)
    return found


@pytest.mark.parametrize("kind", ["deletes", "inserts", "unkeyed", "refused"])
def test_a_batch_holds_no_more_than_its_bound_and_a_row(
    tmp_path: Path, written: list[tuple[int, int]], kind: str
) -> None:
    size = 200_000
    relay = ScriptedRelay(tmp_path, on_error="log", allow_unkeyed=True)
    relation = table(7, "t", ["id", "body"])
    relay.begin()
    relay.announce(relation, key="" if kind == "unkeyed" else "id")
    for number in range(100):
        row = [b"%d" % number, b"x" * size]
        if kind == "inserts":
            relay.insert(relation, row)
        elif kind == "refused":
            relay.insert(relation, [*row, b"too many"])
        else:
            relay.delete(relation, row)
    relay.commit()
    relay.play()
    assert sum(frames for frames, _ in written) > 100 * size
    assert max(frames + messages for frames, messages in written) < BATCH_BYTES + 2 * size + 1_000
    relay.close()
    assert check(relay.folder).verdict == "clean"


def test_a_batch_of_nothing_but_truncates_is_bounded(tmp_path: Path, written: list[tuple[int, int]]) -> None:
    relay = ScriptedRelay(tmp_path)
    relation = table(7, "t", ["id"])
    relay.begin()
    relay.announce(relation)
    for _ in range(40_000):
        relay.truncate(relation)
    relay.commit()
    relay.play()
    assert max(frames for frames, _ in written) < BATCH_BYTES + 1_000
    relay.close()
    checked = check(relay.folder)
    assert (checked.verdict, checked.changes) == ("clean", 40_000)


def test_dead_letters_on_their_way_are_counted(tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path, sink=HoldResponse(), on_error="log", dead_letter_topic="letters")
    refused = table(7, "t", ["c", "d"])
    relay.begin()
    relay.announce(refused, key="")
    for _ in range(5):
        relay.insert(refused, [b"x" * 100_000, b"y"])
    relay.commit()
    relay.play()
    assert relay.acks.bytes_in_flight > 500_000
    relay.close()


def test_transactions_without_a_message_take_no_memory_while_kafka_is_away(tmp_path: Path) -> None:
    relay = ScriptedRelay(tmp_path, record=False, sink=HoldResponse(), exclude_tables=("left_out",))
    relation, left_out = table(7, "t", ["id"]), table(8, "left_out", ["id"])
    relay.begin()
    relay.announce(relation)
    relay.announce(left_out)
    relay.insert(relation, [b"1"])
    relay.commit()
    relay.play()

    def transaction(number: int) -> None:
        relay.begin()
        relay.insert(left_out, [b"1"])
        relay.commit()
        relay.play()

    assert growth(transaction, 20, 200) < 2_000
    assert not relay.acks.advance()
    assert isinstance(relay.sink, HoldResponse)
    relay.sink.release(0)
    assert relay.acks.advance() == relay.report.received_lsn
    relay.close()


def test_callbacks_of_an_outage_are_freed_after_it() -> None:
    arrived = Message("t", 0, 0)
    reports = DeliveryReports(lambda *failure: None)

    def send() -> ReceiptSection:
        section = reports.take("t", [(b"k", b"v", 0, None)], DeliverySpan(), Receipt(0, 0, 1))
        weak.append(weakref.ref(section))
        return section

    weak: list[weakref.ref[Any]] = []
    waiting = [send() for _ in range(2_000)]
    while waiting:
        waiting.pop().callbacks[0](None, arrived)
    for _ in range(2_000):
        send().callbacks[0](None, arrived)
    assert len({id(section) for one in weak if (section := one()) is not None}) <= 70


def test_schemas_kept_for_the_screens_are_few_of_each_subject() -> None:
    report = RunState()

    def register(subject: str, number: int) -> None:
        report.schema(SchemaEntry(subject, number, number, "public.t", "t", "value", "{}", 0.0))

    register("other-value", 1)
    for number in range(100):
        register("t-value", number)
        register("t-value", 0)
    assert list(report.schemas) == [("other-value", 1), *(("t-value", n) for n in [*range(81, 100), 0])]


def test_samples_of_wide_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bwtui.relay.rows.samples.SAMPLES", 500)
    samples = Samples()
    relation = table(7, "t", [f"c{number}" for number in range(500)])
    route = TableRoute(relation, "t", (), TableCounters(), None, None)
    commit = SampledCommit(1, 1, 0.0, 1)
    for _ in range(200):
        samples.take("update", route, None, [b"x" * 9_000] * 500, [b"y" * 9_000] * 500, commit)
    kept = samples.after(0)
    assert 1 < len(kept) < 10
    assert kept[-1].sequence == 200


@pytest.mark.parametrize("policy", ["stop", "stop-recording"])
def test_a_block_beyond_the_format_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr("bwtui.recording.journal.MAX_PAYLOAD", 50_000)
    relay = ScriptedRelay(tmp_path, on_record_error=policy)
    relation = table(7, "t", ["id", "body"])

    def insert(number: int, size: int) -> None:
        relay.begin()
        if number == 1:
            relay.announce(relation)
        relay.insert(relation, [b"%d" % number, b"x" * size])
        relay.commit()
        relay.play()

    insert(1, 10)
    if policy == "stop":
        with pytest.raises(StateFailed) as raised:
            insert(2, 60_000)
        assert "can't be written: a block of 12" in raised.value.message
        assert "bytes is larger than the format allows" in raised.value.message
        assert "disk space" not in str(raised.value.hint)
        assert "--exclude-table" in str(raised.value.hint)
        assert raised.value.exit_code == 2
        relay.close()
        (recovered,) = recover(relay.folder)
        assert recovered.reason == "all blocks are intact"
        assert len(relay.sink.delivered) == 1, "no message without its record"
    else:
        insert(2, 60_000)
        insert(3, 10)
        (error,) = [entry for entry in relay.report.errors() if entry.kind == "recording"]
        assert "disk space" not in str(error.hint)
        relay.close()
        assert len(relay.sink.delivered) == 3
    checked = check(relay.folder)
    assert (checked.verdict, checked.changes) == ("clean", 1)


def test_a_segment_ends_with_its_index_however_little_its_blocks_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bwtui.recording.journal._BLOCKS", 20)
    relay = ScriptedRelay(tmp_path)
    relay.connect()
    assert isinstance(relay.recorder, JournalRecorder)
    for number in range(100):
        relay.recorder._json(
            BlockKind.ERROR, {"time": number, "kind": "notice", "table": None, "message": ""}
        )
        relay.recorder.settle()
    relay.close()
    assert len(segments(relay.folder)) > 4
    assert check(relay.folder).verdict == "clean"
