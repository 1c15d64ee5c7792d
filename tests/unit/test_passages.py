"""Sampled changes on their way to Kafka, and how they are matched with Kafka's records."""

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest

from bwtui.kafka.key_reader import StoredRecord
from bwtui.model.delivery import DeliverySpan, Receipt, SamplePassage
from bwtui.model.headers import make_headers
from bwtui.model.service_views import StageEntry, Stages, look_from_json
from bwtui.model.status import ChangeSample, FieldChange
from bwtui.recording.explain import RowKey
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows.batch import OutgoingBatch
from bwtui.relay.rows.samples import SampledCommit, Samples
from bwtui.relay.state.ack import Acknowledgements
from bwtui.relay.state.run_state import RunState, TableCounters
from bwtui.tui.sources.journey import (
    identity,
    key_of_sample,
    merged,
    opposite_key,
    role_of,
    sampled,
    sampled_key,
    updated,
    xid_of,
)
from tests.faults.doubles import MemorySink
from tests.scripted_relay import ScriptedRelay, table

NOON = 1_768_478_400.0
ORDERS = RowKey("public.orders", ("id",), (b"7",))


# -- the relay ------


class Taken:
    """One sampled change of a batch of five messages, in an open span."""

    def __init__(self, key: bytes | None = b"key") -> None:
        self.samples = Samples()
        self.span = DeliverySpan()
        counters = TableCounters()
        counters.key_schema_id, counters.value_schema_id = 3, 4
        self.route = TableRoute(table(7, "t", ["id", "body"]), "t", ("id",), counters, None, None)
        self.route.messages += [(b"k%d" % n, b"v", 0, None) for n in range(3)]
        self.samples.take(
            "insert", self.route, key, None, [b"7", b"x"], SampledCommit(10, 740, NOON, 5), self.span
        )

    @property
    def sample(self) -> ChangeSample:
        """The change as the screens get it."""
        (found,) = self.samples.after(0)
        return ChangeSample.from_json(json.loads(json.dumps(asdict(found))))

    def hand_over(self, receipt: Receipt | None = None) -> None:
        """Stamp the batch, and hand it over."""
        now = time.monotonic()
        self.span.received, self.span.encoded, self.span.produced = now - 3, now - 2, now - 1
        self.span.clock = NOON - now
        self.span.pending = 5
        for passage in self.span.sampled:
            passage.handed_over(receipt, 5)


def test_a_sampled_change_learns_its_times_and_its_place() -> None:
    taken = Taken()
    first = taken.sample
    assert (first.ordinal, first.key_schema_id, first.value_schema_id, first.message_key) == (
        5,
        3,
        4,
        b"key".hex(),
    )
    assert first.passed == ()
    receipt = Receipt(1, 0, 3)
    taken.hand_over(receipt)
    under_way = taken.sample
    assert [time - NOON for time in under_way.passed[:3]] == pytest.approx([-3, -2, -1], abs=0.001)
    assert (under_way.passed[3], under_way.batch, under_way.offset) == (0.0, 5, None)
    acks = Acknowledgements()
    acks.seal(taken.span)
    receipt.partitions[2], receipt.offsets[2] = 1, 900
    taken.span.pending = 0
    acks.advance()
    done = taken.sample
    assert done.passed[3] - NOON == pytest.approx(0, abs=1)
    assert (done.partition, done.offset, done.is_given_up) == (1, 900, False)
    assert taken.span.sampled[0]._span is None, "the batch is let go"


def test_without_a_recording_the_place_is_not_known() -> None:
    taken = Taken()
    taken.hand_over()
    acks = Acknowledgements()
    acks.seal(taken.span)
    taken.span.pending = 0
    acks.advance()
    assert taken.sample.passed[3] > 0
    assert (taken.sample.partition, taken.sample.offset) == (None, None)


def test_a_session_that_ends_gives_up_what_was_under_way() -> None:
    taken = Taken()
    taken.hand_over()
    acks = Acknowledgements()
    acks.seal(taken.span)
    acks.close()
    assert taken.sample.is_given_up
    assert taken.sample.passed[3] == 0.0
    assert taken.samples.stages().changes[0].is_given_up


def test_a_session_that_ends_gives_up_what_it_had_not_handed_over(tmp_path: Path) -> None:
    relay, relation = ScriptedRelay(tmp_path, record=False), table(7, "t", ["id"])
    relay.begin()
    relay.announce(relation)
    relay.insert(relation, [b"1"])
    relay.connect()
    assert relay._streaming is not None
    relay.context.output.samples.refill()
    relay._streaming._read()
    (passage,) = relay._streaming._batch.span.sampled
    assert not relay.context.output.samples.stages().changes[0].is_given_up
    relay.close()
    assert relay.context.output.samples.stages().changes[0].is_given_up
    assert (passage._span, passage.route) == (None, None), "both are let go"


class ReadWhileSet(DeliverySpan):
    """Another thread reads its passage after each assignment."""

    passage: SamplePassage | None = None

    def __init__(self) -> None:
        self.readings: list[tuple[float, ...]] = []
        super().__init__()

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if self.passage is not None:
            self.readings.append(self.passage.passed)


def test_no_time_is_read_without_the_clock_that_makes_it_unix_seconds() -> None:
    span, batch = ReadWhileSet(), OutgoingBatch(cast(Any, MemorySink()), Acknowledgements(), RunState())
    span.passage = SamplePassage(span, None, 0)
    batch.received = time.monotonic()
    batch._stamp(span, [("t", 1, 0)], time.monotonic())
    assert len(span.readings[-1]) == 4
    assert all(abs(at - time.time()) < 60 for reading in span.readings for at in reading if at)


def test_a_long_key_is_not_kept_and_a_span_that_nobody_measures_has_no_times() -> None:
    taken = Taken(b"x" * 5_000)
    assert taken.sample.message_key == ""
    taken.span.sampled[0].handed_over(None, 5)
    assert taken.sample.passed == ()
    alone = Samples()
    alone.take("snapshot", taken.route, None, None, [b"7", b"x"], SampledCommit(10, 0, NOON, 0))
    assert alone.stages().changes == ()
    assert alone.after(0)[0].passed == ()


def test_stages_come_back_from_json() -> None:
    taken = Taken()
    taken.hand_over()
    look = look_from_json("stages", json.loads(json.dumps(asdict(taken.samples.stages()))))
    assert isinstance(look, Stages)
    assert look.changes[0].sequence == 1
    assert updated(taken.sample, {1: replace(look.changes[0], passed=(1.0, 2.0, 3.0, 4.0))}).passed[3] == 4.0
    done = replace(taken.sample, passed=(1.0, 1.0, 1.0, 1.0))
    assert updated(done, {1: StageEntry(1)}) is done


def test_a_relay_of_another_version_is_understood() -> None:
    data = asdict(Taken().sample)
    for name in ("passed", "batch", "message_key", "ordinal"):
        del data[name]
    made = ChangeSample.from_json({**data, "something": "new"})
    assert (made.passed, made.batch) == ((), 0)


# -- the screens ------


def sample(number: int = 1, operation: str = "update", status: str = "paid", **more: Any) -> ChangeSample:
    """Return a sampled change of order 7."""
    fields: tuple[FieldChange, ...] = (
        FieldChange("id", "7", "7", "same"),
        FieldChange("status", "new", status, "changed"),
    )
    if operation == "delete":
        fields = (FieldChange("id", "7", None, "gone"),)
    made = ChangeSample(
        number, NOON, NOON, "0/1A", 740, operation, "public.orders", "orders", "id=7", fields, number
    )
    return replace(made, **more)


def stored(offset: int, at: float = NOON, value: bytes | None = b"row", **more: Any) -> StoredRecord:
    """Return a record of order 7."""
    return StoredRecord(0, offset, round(at * 1000), b"7", value, **more)


def renamed() -> ChangeSample:
    """Return an update that gave order 7 the key 8."""
    return sample(fields=(FieldChange("id", "7", "8", "changed"), FieldChange("status", "a", "a", "same")))


def test_a_change_knows_its_keys() -> None:
    assert role_of(sample(), ORDERS) == ""
    assert role_of(sample(operation="delete"), ORDERS) == ""
    assert role_of(sample(table="public.items"), ORDERS) is None
    assert role_of(renamed(), ORDERS) == "to"
    new = RowKey("public.orders", ("id",), (b"8",))
    assert role_of(renamed(), new) == "from"
    assert role_of(renamed(), RowKey("public.orders", ("id",), (b"9",))) is None
    assert opposite_key(renamed(), ORDERS) == new
    assert opposite_key(renamed(), new) == ORDERS
    assert opposite_key(sample(), ORDERS) is None
    assert key_of_sample(sample(operation="delete"), ("id",)) == ORDERS
    assert key_of_sample(sample(), ("nowhere",)) is None
    assert "No change is selected" in str(sampled_key(None, None))


def test_a_record_is_matched_by_its_place_first() -> None:
    placed = sample(partition=0, offset=5)
    (moment,) = merged([(placed, "")], [stored(5, at=NOON + 9)])
    assert moment.stored is not None
    assert moment.is_sure
    (missing,) = merged([(placed, "")], [])
    assert (missing.stored, missing.place, missing.is_sure) == (None, (0, 5), True)


def test_the_key_that_a_row_had_has_a_tombstone_somewhere_else() -> None:
    moved = replace(renamed(), partition=0, offset=9)
    (alone,) = merged([(moved, "to")], [])
    assert (alone.place, alone.is_sure) == (None, False)
    (found,) = merged([(moved, "to")], [stored(5, value=None)])
    assert (found.place, found.is_sure) == ((0, 5), False)
    headers = tuple(make_headers(0x1A, 1, "update", 740, b"s"))
    (sure,) = merged([(moved, "to")], [stored(5, at=NOON + 9, value=None, headers=headers)])
    assert (sure.place, sure.is_sure) == ((0, 5), True)
    two = merged([(moved, "to")], [stored(9)])
    assert {(m.sample is None, m.place) for m in two} == {(False, None), (True, (0, 9))}


def test_the_headers_of_others_are_no_change_of_ours() -> None:
    headers = make_headers(0x1A, 1, "update", 740, b"s")
    assert identity(stored(0, headers=tuple(headers))) == ("0/1A", 1)
    assert xid_of(stored(0, headers=tuple(headers))) == 740
    for size in (0, 3, 9, 4_000):
        foreign = stored(0, headers=tuple((name, b"\xff" * size) for name, _ in headers))
        assert (identity(foreign), xid_of(foreign)) == (None, None)


def test_a_record_is_matched_by_its_headers() -> None:
    headers = [tuple(make_headers(0x1A, number, "update", 740, b"s")) for number in (1, 2, 3)]
    records = [stored(n, headers=headers[n]) for n in range(3)]
    moments = merged([(sample(2), "")], records)
    assert [(m.stored.offset if m.stored else None, m.sample is not None, m.is_sure) for m in moments] == [
        (0, False, False), (1, True, True), (2, False, False),
    ]  # fmt: skip


def test_a_record_is_matched_by_its_time_only_where_that_is_likely() -> None:
    (moment,) = merged([(sample(), "")], [stored(5)])
    assert (moment.place, moment.is_sure) == ((0, 5), False)
    two = merged([(sample(1), ""), (sample(2), "")], [stored(5), stored(6)])
    assert [m.place for m in two] == [(0, 5), (0, 6)]
    doubtful = merged([(sample(1), "")], [stored(5), stored(6)])
    assert [(m.sample is not None, m.doubtful) for m in doubtful] == [(True, 2), (False, 0), (False, 0)]
    compacted = merged([(sample(1), ""), (sample(2), "")], [stored(6)])
    assert sorted(m.doubtful for m in compacted) == [0, 1, 1]
    other = merged([(sample(1), "")], [stored(5, at=NOON + 1)])
    assert len(other) == 2
    tombstone = merged([(sample(1, "delete"), "")], [stored(5, value=b"row"), stored(6, value=None)])
    assert [(m.sample is not None, m.place) for m in tombstone] == [(False, (0, 5)), (True, (0, 6))]


def test_only_changes_of_the_key_are_taken() -> None:
    changes = [sample(1), sample(2, table="public.items"), sample(3, operation="delete"), renamed()]
    assert [(one.sequence, role) for one, role in sampled(changes, ORDERS)] == [(1, ""), (3, ""), (1, "to")]


def test_an_empty_key_and_a_composite_one() -> None:
    items = RowKey("public.items", ("order_id", "line"), (b"7", b"2"))
    fields = (FieldChange("order_id", None, "7", "new"), FieldChange("line", None, "2", "new"))
    one = sample(table="public.items", operation="insert", fields=fields)
    assert role_of(one, items) == ""
    assert role_of(replace(one, fields=fields[:1]), items) is None
    assert key_of_sample(one, ("order_id", "line")) == items
