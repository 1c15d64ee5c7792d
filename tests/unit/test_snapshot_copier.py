"""Snapshot rows in batches give the same messages, numbers, frames and dropped rows as one by one."""

import itertools
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from bwtui.encode.avro import build_encoder
from bwtui.encode.json import JsonEncoder
from bwtui.encode.lines import EncodedLines
from bwtui.model.headers import ORDINAL
from bwtui.pgoutput.messages import Column, Relation
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows.batch import BATCH_BYTES, BATCH_ROWS
from bwtui.relay.rows.recorder import Recorder
from bwtui.relay.snapshot import snapshot_copier as gathering_module
from bwtui.relay.snapshot.snapshot_copier import SnapshotCopier, gathering
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.sink.destination import MessageTuple, TopicLimits
from tests.compiled_twin import COMPILER, built
from tests.faults.doubles import MemorySink
from tests.relay_context import relay_context

COLUMNS = (Column("id", 20, -1, True), Column("a", 25, -1, False), Column("n", 23, -1, False))
RELATION = Relation(1, "public", "t", "d", COLUMNS)
LIMIT = 2_000


class KeepingRecorder(Recorder):
    """Keeps its calls."""

    is_recording = True

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Any] = []
        self._without: list[Any] = []

    def without(self, route: TableRoute, reason: Any, frame: int | None = None) -> None:
        self._without.append((len(self.frames), reason))

    def write_batch(self, routes: Sequence[TableRoute]) -> list[Any]:
        sections = [(route.value_schema_id, list(route.messages), list(route.positions)) for route in routes]
        self.batches.append((list(self.frames), sections, self._without))
        self.frames.clear()
        self._without = []
        return []


class Wide(SnapshotCopier):
    """Has a second route, whose schema allows bytes that are not valid text."""

    def _with_room(self, route: TableRoute) -> TableRoute:
        return route_of(self._run.report, any_bytes=True)


def route_of(report: RunState, any_bytes: bool = False) -> TableRoute:
    counters = report.table("public.t")
    counters.key_schema_id, counters.value_schema_id = 1, 3 if any_bytes else 2
    bound = build_encoder(RELATION, ("id",), {}, any_bytes).bind(1, counters.value_schema_id)
    return TableRoute(RELATION, "t", ("id",), counters, bound, TopicLimits(LIMIT, compacted=False))


def copying(headers: bool) -> tuple[Wide, Any]:
    sink, report = MemorySink(), RunState()
    seen = SimpleNamespace(sink=sink, report=report, recorder=KeepingRecorder(), dropped=[], sampled=[])

    def refuse(route: TableRoute, row: Any, error: Any, span: Any) -> None:
        seen.dropped.append((row.identity, row.after, str(error)))

    def take(*sample: Any) -> None:
        seen.samples.budget -= 1
        seen.sampled.append(list(sample[4]))

    seen.samples = SimpleNamespace(budget=3, refill=lambda: None, take=take)
    context = relay_context(
        sink=sink,
        service=sink.destination.service,
        report=report,
        recorder=seen.recorder,
        policy=SimpleNamespace(undelivered=lambda failures: failures, refuse=refuse),
        session=bytes(8),
        stop_requested=lambda: False,
        samples=seen.samples,
        settings=RelaySettings(headers=headers),
    )
    made = Wide(context.run, context.output, 77, 5, lambda: None)
    made._route = route_of(report)
    return made, seen


def lines_of(seed: int) -> list[bytes]:
    """Return lines, some without a message or for the wider schema; an odd seed adds some too large ones."""
    chance = random.Random(seed)
    odd = [b"x\ty\t1", b"%d\ty\tone", b"%d\ty"]
    if seed % 2:
        # One such line makes all lines of its batch go one by one.
        odd.append(b"%d\t" + b"z" * LIMIT + b"\t1")
    usual = [b"%d\ttext\t1", b"%d\ta\\tb\\\\\t\\N", b"%d\t\\N\t-7", "%d\tgröße\t1".encode()]
    found = []
    for number in range(60):
        line = chance.choice(odd) if chance.random() < 0.15 else chance.choice(usual)
        found.append((line % number if b"%d" in line else line) + b"\n")
    found.insert(chance.randrange(60), b"61\t\xff\t1\n")
    return found


def result(made: SnapshotCopier, seen: Any) -> Any:
    messages: list[MessageTuple] = [tuple(message) for _, message in seen.sink.delivered]
    counters = seen.report.table("public.t")
    return {
        "messages": messages,
        "recorded": seen.recorder.batches,
        "dropped": seen.dropped,
        "sampled": seen.sampled,
        "rows": (counters.snapshot_rows, seen.report.rows_read, made._ordinal),
        "counted": (counters.messages, counters.bytes, seen.report.messages),
    }


def both_ways(headers: bool, lines: list[bytes], left: frozenset[int] = frozenset()) -> Any:
    """Return the results for rows one by one, and check that all rows at once give the same.

    The C extension leaves rows to Python; so does this test for those in ``left``.
    """
    one, seen_one = copying(headers)
    for line in lines:
        one._row(line)
    one._flush()
    many, seen_many = copying(headers)
    assert many._route is not None
    encode = many._route.lines

    def leave(given: list[bytes], *arguments: Any) -> EncodedLines:
        messages = list(encode(given, *arguments).messages)
        for number in left:
            messages[number] = None
        sizes = [len(key or b"") + len(value or b"") for key, value, _, _ in filter(None, messages)]
        holes = [number for number, message in enumerate(messages) if message is None]
        return EncodedLines(messages, holes, sum(sizes), max(sizes, default=0))

    if left:
        many._route.lines = leave
    many._rows(list(lines), sum(map(len, lines)))
    wanted = result(one, seen_one)
    assert result(many, seen_many) == wanted
    return wanted


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_batch_at_once_is_what_its_rows_are_one_by_one(headers: bool, seed: int) -> None:
    wanted = both_ways(headers, lines_of(seed))
    assert wanted["rows"] == (61, 61, 61)
    assert 1 <= len(wanted["dropped"]) <= 30
    assert len(wanted["messages"]) + len(wanted["dropped"]) == 61
    # Rows after the one with invalid text use the wider schema.
    assert {section[0] for batch in wanted["recorded"] for section in batch[1]} == {2, 3}


GOOD, REFUSED, NO_TEXT = b"1\ta\t1\n", b"x\ty\t1\n", b"2\t\xff\t1\n"


@pytest.mark.parametrize("lines", list(itertools.product((GOOD, REFUSED, NO_TEXT), repeat=3)))
def test_a_row_without_a_message_may_stand_anywhere_in_its_batch(lines: tuple[bytes, ...]) -> None:
    both_ways(False, list(lines))


@pytest.mark.parametrize("left", [{0}, {1, 2}, {3}, {0, 1, 2, 3}])
def test_a_row_that_is_left_out_goes_by_itself(left: set[int]) -> None:
    assert len(both_ways(True, [GOOD] * 4, frozenset(left))["messages"]) == 4


@pytest.mark.parametrize(
    ("length", "by_itself"), [(2_000, 0), (200_000, 0), (BATCH_BYTES, 0), (2 * BATCH_BYTES, 1)]
)
def test_only_a_line_that_is_far_larger_than_a_batch_goes_by_itself(
    monkeypatch: pytest.MonkeyPatch, length: int, by_itself: int
) -> None:
    # The C extension, if installed, leaves lines of more than 64 KiB to Python.
    monkeypatch.setattr("bwtui.encode.avro.twin", lambda *_: None)
    made, seen = copying(headers=False)
    assert made._route is not None
    made._route.max_message_bytes = 4 * BATCH_BYTES
    alone: list[int] = []
    one = made._row

    def row(line: bytes) -> None:
        alone.append(len(line))
        one(line)

    monkeypatch.setattr(made, "_row", row)
    take, end = gathering(made._rows)
    count = 3 * BATCH_BYTES // length + 1
    for number in range(count):
        take(b"%d\t" % number + b"z" * length + b"\t1\n")
    end()
    assert len(seen.sink.delivered) == count
    assert len(alone) == by_itself * count


def test_messages_that_are_far_larger_than_their_lines_make_more_batches() -> None:
    made, seen = copying(headers=True)
    columns = tuple(Column(f"{'a name of some length':_>60}{n}", 25, -1, n == 0) for n in range(300))
    relation = Relation(1, "public", "t", "d", columns)
    keys = (columns[0].name,)
    made._route = TableRoute(
        relation,
        "t",
        keys,
        seen.report.table("public.t"),
        JsonEncoder(relation, keys, {}),
        TopicLimits(BATCH_BYTES, compacted=False),
    )
    lines = [b"\t".join((b"%d" % number, *[b"\\N"] * 299)) + b"\n" for number in range(500)]
    made._rows(lines, sum(map(len, lines)))
    batches = seen.recorder.batches
    assert [line for frames, _, _ in batches for line in frames] == lines
    sizes = [sum(len(value) for _, value, _, _ in sections[0][1]) for _, sections, _ in batches]
    assert sum(sizes) > 9 * BATCH_BYTES
    assert max(sizes) < 2.1 * BATCH_BYTES
    numbers = [dict(message[3])[ORDINAL] for _, message in seen.sink.delivered]
    assert [int.from_bytes(number) for number in numbers] == [*range(1, 501)]


@pytest.fixture(params=["Python", "C"] if COMPILER else ["Python"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with both implementations."""
    monkeypatch.setattr(gathering_module, "speedups", built() if request.param == "C" else None)


@pytest.mark.usefixtures("either")
def test_lines_are_gathered_to_as_many_as_a_batch_has_and_a_large_one_does_not_wait() -> None:
    given: list[tuple[int, int]] = []
    take, end = gathering(lambda lines, size: given.append((len(lines), size)))
    for _ in range(2 * BATCH_ROWS + 1):
        take(b"1\n")
    take(bytes(BATCH_BYTES))
    assert given == [(BATCH_ROWS, 2 * BATCH_ROWS)] * 2 + [(2, 2 + BATCH_BYTES)]
    end()
    take(b"\n")
    end()
    end()
    assert given[3:] == [(1, 1)]


@pytest.mark.usefixtures("either")
def test_what_gives_lines_and_fails_is_not_given_them_again() -> None:
    def fail(lines: list[bytes], size: int) -> None:
        raise OSError

    take, end = gathering(fail)
    with pytest.raises(OSError):
        take(bytes(BATCH_BYTES))
    end()
