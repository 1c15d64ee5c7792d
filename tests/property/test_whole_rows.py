"""Rows that are encoded without being split into fields give the same messages, samples and dropped rows."""

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bwtui.encode import compiled_encoders
from bwtui.encode.avro import build_encoder
from bwtui.pgoutput.frames import BODY_OFFSET
from bwtui.pgoutput.messages import UNCHANGED, Binary, Column, Field, Relation
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows import toast
from bwtui.relay.rows.batch import OutgoingBatch
from bwtui.relay.rows.recorder import NullRecorder, Recorder
from bwtui.relay.state.ack import Acknowledgements
from bwtui.relay.state.run_state import RunState, TableCounters
from bwtui.relay.stream.row_handler import BulkRows, RowHandler
from bwtui.settings import RelaySettings
from bwtui.sink.destination import TopicLimits
from tests.compiled_twin import COMPILER, built
from tests.property.test_compiled import tuple_data
from tests.relay_context import relay_context

pytestmark = pytest.mark.skipif(not COMPILER, reason="what is compiled can't be there without a compiler")

COLUMNS = (Column("id", 23, -1, True), Column("note", 25, -1, False), Column("n", 1700, -1, False))
#: Messages above it are refused, as Kafka would refuse them.
LIMIT = 700

#: A value that is not an integer, one that makes a message too large, and those of usual rows.
ids = st.sampled_from([b"1", b"2", b"-7", b"x", b""])
notes = st.sampled_from([None, b"", b"text", "größe".encode(), b"\xff", b"y" * 300, b"z" * 70_000])
numbers = st.sampled_from([None, b"1.50", b"NaN", b"-0"])
rows = st.tuples(ids, notes, numbers).map(list)
changes = st.one_of(
    st.tuples(st.just(b"I"), st.none(), rows),
    st.tuples(st.just(b"U"), st.none(), rows),
    st.tuples(st.just(b"U"), st.tuples(st.sampled_from([b"K", b"O"]), rows), rows),
    *[st.tuples(st.just(b"U"), st.none(), rows.map(lambda row: [row[0], UNCHANGED, row[2]]))] * 2,
    st.tuples(st.just(b"D"), st.none(), rows),
)


def frame(change: tuple[bytes, tuple[bytes, list[Field]] | None, list[Field]]) -> bytes:
    """Return a change of relation 1 as PostgreSQL sends it."""
    tag, before, row = change
    old = before[0] + tuple_data(before[1]) if before is not None else b""
    kind = b"O" if tag == b"D" else b"N"
    return b"w" + bytes(BODY_OFFSET - 2) + tag + struct.pack(">I", 1) + old + kind + tuple_data(row)


class Recorded(Recorder):
    """A recorder that keeps what rows report to it."""

    is_recording = True

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Any] = []

    def without(self, route: TableRoute, reason: Any, frame: int | None = None) -> None:
        self.said.append((len(self.frames), reason))

    def filled(self, sent: Sequence[Field], completed: Sequence[Field]) -> int:
        self.said.append((len(self.frames), sent, completed))
        pairs = zip(sent, completed, strict=True)
        return sum(len(new) for old, new in pairs if old is UNCHANGED and isinstance(new, bytes))


#: Results of reading unchanged values, by key: a value, no row, or a value that can't be read any more.
PRESENT: dict[bytes, list[Any] | None] = {
    b"1": [b"read"],
    b"2": None,
    b"-7": [UNCHANGED],
    b"x": [b"z" * 70_000],
    b"": [None],
}


class Present:
    """A double of `PresentRows`."""

    def read(self, session: Any, relation: Any, keys: list[Any], *_: Any) -> dict[int, Any]:
        """Leave out the last of many rows, as if their values were too large together."""
        return {at: PRESENT[key["id"]] for at, key in enumerate(keys) if at < max(1, len(keys) - 1)}


def reading() -> toast.ToastFiller:
    """Return the filler that reads unchanged values at once."""
    queries = SimpleNamespace(query=lambda query: query(None), query_ahead=lambda query: lambda: query(None))
    return toast.ToastFiller(RelaySettings(), queries, lambda seconds: None)


@pytest.fixture(autouse=True, scope="module")
def _present() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(toast, "_locked", lambda session, xids: set())
        patched.setattr(toast, "PresentRows", Present)
        patched.setattr(toast, "_ROWS_FIRST", 2)
        yield


def relayed(
    frames: list[bytes],
    package: Any,
    budget: int,
    *,
    headers: bool = False,
    recorded: bool = False,
    by_python: list[bytes] | None = None,
) -> list[Any]:
    """Return the results for frames: sampled, refused and recorded messages, and counters.

    Frames that Python handles are added to ``by_python``.
    """
    refused: list[Any] = []
    samples = SimpleNamespace(budget=budget)

    def take(operation: str, route: TableRoute, key: bytes | None, before: Any, after: Any, *_: Any) -> None:
        samples.budget -= 1
        taken.append((operation, key, before, after))

    taken: list[Any] = []
    samples.take = take
    report = RunState()
    given: dict[str, Any] = {
        "settings": RelaySettings(headers=headers),
        "session": bytes(16),
        "recorder": Recorded() if recorded else NullRecorder(),
        "report": report,
        "samples": samples,
        "policy": SimpleNamespace(
            refuse=lambda _, row, error, __: refused.append((row, type(error), error.message))
        ),
        "toast": reading(),
    }
    made: list[TableRoute] = []

    def route_of(relation: Relation, *, with_room: bool) -> TableRoute:
        bound = build_encoder(relation, ("id",), {}, with_room, with_room).bind(1, 2 + with_room)
        bound.__dict__["_twin"] = compiled_encoders.twin(*bound.records, package=package)
        made.append(TableRoute(relation, "t", ("id",), TableCounters(), bound, TopicLimits(LIMIT, False)))
        assert (made[-1].run is None) == (package is None)
        return made[-1]

    given["router"] = SimpleNamespace(route=route_of)
    recorder = given["recorder"]
    batch = OutgoingBatch(SimpleNamespace(), Acknowledgements(), report, recorder)
    left = deque(frames)
    handled = RowHandler(relay_context(**given), batch, lambda: left)
    handled.routes[1] = route_of(Relation(1, "public", "t", "f", COLUMNS), with_room=False)
    arriving = (left.popleft() for _ in frames)
    for data in BulkRows(handled, batch, given["samples"], recorder).between(arriving):
        handled.handlers[data[BODY_OFFSET - 1]](data)
        if by_python is not None:
            by_python.append(data)
        if recorded:
            recorder.frames.append(data)
            batch.held += len(data)
    counts = [asdict(one.counters) for one in made]
    messages = [(one.messages, one.positions, one.bytes) for one in made]
    in_all = [
        batch.rows,
        batch.bytes,
        batch.held,
        batch.transaction.ordinal,
        [one in batch.routes for one in made],
    ]
    return [refused, messages, taken, counts, in_all, vars(recorder)]


@given(
    given=st.lists(changes, max_size=12),
    budget=st.integers(0, 3),
    headers=st.booleans(),
    recorded=st.booleans(),
)
def test_what_becomes_of_changes_is_the_same(
    given: list[Any], budget: int, headers: bool, recorded: bool
) -> None:
    frames = [frame(change) for change in given]
    found, wanted = (
        relayed(frames, package, budget, headers=headers, recorded=recorded) for package in (built(), None)
    )
    assert found == wanted


def test_rows_of_which_the_values_were_read_are_taken_at_once() -> None:
    """Python reads their values together with the first row's, and does nothing for each of the others."""
    changes: list[Any] = [(b"U", None, [b"1", UNCHANGED, b"1.50"]) for _ in range(9)]
    frames = [frame(change) for change in changes]
    by_python: list[bytes] = []
    relayed(frames, built(), 0, by_python=by_python)
    # The double leaves the last of many rows to the next statement.
    assert len(by_python) <= 3


def test_what_is_too_large_is_dropped_with_all_of_its_fields() -> None:
    row: list[Field] = [b"1", b"y" * 600, None]
    for tag in (b"I", b"U"):
        refused = relayed([frame((tag, None, row))], built(), 0)[0]
        ((dropped, _, reason),) = refused
        assert dropped.after == row and "message.max.bytes allows 700" in reason


fields_or_none = st.sampled_from([b"1", b"2", b"", None, UNCHANGED, UNCHANGED, Binary(b"x")])
wide_rows = st.lists(fields_or_none, min_size=3, max_size=3)
updates = st.tuples(
    st.just(b"U"),
    st.one_of(st.none(), st.none(), st.tuples(st.sampled_from([b"K", b"O"]), wide_rows)),
    wide_rows,
).map(frame)
#: Frames of two tables and several transactions, some truncated or damaged after their header.
arrivals = st.one_of(
    *[updates] * 5,
    changes.map(frame),
    st.integers(1, 2**32 - 1).map(
        lambda xid: b"w" + bytes(BODY_OFFSET - 2) + b"B" + struct.pack(">QqI", 1, 2, xid)
    ),
    st.sampled_from([b"k" + bytes(17), b"w" + bytes(BODY_OFFSET - 2) + b"C" + bytes(25)]),
    updates.map(lambda one: one.replace(b"U" + struct.pack(">I", 1), b"U" + struct.pack(">I", 2))),
    st.sampled_from([1, 2, 2]).map(
        lambda oid: b"w" + bytes(BODY_OFFSET - 2) + b"R" + struct.pack(">I", oid) + b"s\0t\0d\0\0"
    ),
    st.builds(
        lambda one, at, more: one[: BODY_OFFSET + 4 + at] + more + one[BODY_OFFSET + 5 + at :],
        updates,
        st.integers(0, 40),
        st.binary(max_size=2),
    ),
    updates.map(lambda one: one + b"n"),
    st.builds(lambda one, size: one[: BODY_OFFSET + 4 + size], updates, st.integers(0, 20)),
)


@given(
    frames=st.lists(arrivals, max_size=12),
    missing=st.sampled_from([[1], [2], [1, 2], [0, 1]]),
    key=st.sampled_from([("id",), ("id", "n"), ("note",)]),
    read=st.sets(st.integers(0, 11)),
    most=st.integers(-1, 5),
)
def test_rows_that_lack_columns_are_those_that_python_finds(
    frames: list[bytes], missing: list[int], key: tuple[str, ...], read: set[int], most: int
) -> None:
    values = {id(frame): () for at, frame in enumerate(frames) if at in read}

    def found(package: Any, most: int) -> list[toast.IncompleteRow]:
        relation = Relation(1, "public", "t", "f", COLUMNS)
        bound = build_encoder(relation, key, {}, False, False).bind(1, 2)
        bound.__dict__["_twin"] = compiled_encoders.twin(*bound.records, package=package)
        route = TableRoute(relation, "t", key, TableCounters(), bound, TopicLimits(LIMIT, False))
        assert (route.lacking is None) == (package is None)
        batch: Any = SimpleNamespace(transaction=SimpleNamespace(xid=7))
        handled = RowHandler(relay_context(), batch, lambda: frames)
        return list(toast._lacking(route, missing, handled._rows_ahead(route, values, missing, most)))

    whole = found(None, most)
    assert found(built(), len(frames) + 1) == whole
    some = found(built(), most)
    assert len(some) <= max(most, 0) and some == whole[: len(some)]
