"""The rows of a sealed recording equal the reader's rows of the same changes, whatever they are."""

import itertools
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bwtui.pgoutput.messages import UNCHANGED, Column, Field, Relation
from bwtui.recording.folder import existing_segments
from bwtui.recording.parquet import SCHEMA, message_rows
from bwtui.recording.payloads import NoMessageReason
from bwtui.recording.reader import open_recording
from bwtui.seal.task import SealTask, folder_of, read_part, run
from tests.recorded_stream import Stream, table, tuple_of

ODD = ['"', "\\", "{", "}", "%s", "a b", "\n\t\x01", "ä€😀", "'", "t\0\0"]
TEXTS = st.one_of(
    st.none(),
    st.text(max_size=8).map(lambda text: text.replace("\0", "").encode()),
    st.binary(max_size=6).map(lambda raw: raw.replace(b"\0", b"")),
    st.just(b"x" * 70_000),
)


def seal_all(folder: Path, work: Path, *, tasks: int = 1) -> list[tuple[Any, ...]]:
    """Seal every segment without Spark, in ``tasks`` tasks, and return the rows in order."""
    numbers = [one.number for one in existing_segments(folder)]
    tasks = min(tasks, len(numbers))
    edges = [len(numbers) * at // tasks for at in range(tasks + 1)]
    rows: list[tuple[Any, ...]] = []
    previous = ""
    work.mkdir()
    for start, stop in itertools.pairwise(edges):
        task = SealTask(str(folder), str(work), numbers[start], numbers[stop - 1], previous)
        run(task)
        part = read_part(work / task.name)
        previous = part.segments[-1].digest
        for file in part.files:
            if file.kind == "changes":
                rows += read_rows(work / task.name / file.path)
    return sorted(rows, key=lambda row: (row[0], row[SCHEMA.get_field_index("part")]))


def read_rows(path: Path) -> list[tuple[Any, ...]]:
    """Return a file's rows, times as microseconds."""
    found = pq.ParquetFile(path).read()
    assert found.schema.equals(SCHEMA)
    columns = [one.cast(pa.int64()) if pa.types.is_timestamp(one.type) else one for one in found.columns]
    return list(zip(*(one.to_pylist() for one in columns), strict=True))


def expected_rows(folder: Path) -> list[tuple[Any, ...]]:
    """Return the rows as the reader computes them."""
    view = open_recording(folder)
    try:
        return [row for change in view.changes() for row in message_rows(change)]
    finally:
        view.close()


def transactions(work: Path) -> list[tuple[int, int, int, int]]:
    """Return pass, LSN, first position and number of changes of every sealed transaction that has any."""
    rows = []
    for path in sorted(work.rglob("transactions/*.parquet")):
        for row in pq.ParquetFile(path).read().to_pylist():
            if row["changes"]:
                rows.append((row["pass"], row["lsn"], row["position"], row["changes"]))
    return rows


def expected_transactions(folder: Path) -> list[tuple[int, int, int, int]]:
    """Return the same, computed from the reader's changes."""
    found: list[list[int]] = []
    view = open_recording(folder)
    for change in view.changes():
        if not change.in_transaction:
            continue
        if found and found[-1][:2] == [change.pass_number, change.lsn]:
            found[-1][3] += 1
        else:
            found.append([change.pass_number, change.lsn, change.position, 1])
    view.close()
    return [(a, b, c, d) for a, b, c, d in found]


WHATS = ("insert", "insert", "update", "rename", "toast", "delete", "dropped", "truncate")


def play(stream: Stream, choose: random.Random, steps: int) -> None:
    """Do all that a relay may do, at random."""
    tables = [table(1, "orders"), table(2, "t2", "f"), table(3, "Odd/name=%")]
    for step in range(steps):
        if step % 40 == 39:
            tables[0] = table(1, "orders", version=step // 40 + 1)
        what = choose.random()
        one = choose.choice(tables)
        body = choose.choice([None, b"", b"plain", '"quoted" \\ ä\n'.encode(), b"\xff\xfe"])
        if what < 0.55:
            for _ in range(choose.randrange(1, 4)):
                stream.change(choose.choice(WHATS), one, choose.randrange(100), body)
        elif what < 0.75:
            stream.commit()
        elif what < 0.85:
            stream.flush()
        elif what < 0.90:
            stream.flush()
            stream.deliver()
        elif what < 0.92:
            keys = [choose.randrange(100) for _ in range(choose.randrange(4))]
            stream.put(one, keys, [key + 100 for key in keys[:2]], body or b"put")
        elif what < 0.94:
            stream.commit()
            stream.flush()
            stream.settle()
        elif what < 0.96:
            stream.commit()
            stream.flush()
            stream.repeat(min(len(stream.history), choose.randrange(3)))
        elif what < 0.98:
            stream.commit()
            for key in range(choose.randrange(1, 4)):
                stream.row(one, key, body)
            if choose.random() < 0.5:
                stream.cleanup(one, [1, 2])
            stream.flush()
            stream.begin_pass()
        else:
            stream.commit()
            stream.stop()
            stream.start()
            stream.begin_pass()
    stream.commit()
    stream.stop()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.variants(4)
def test_random_streams(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    stream = Stream(
        tmp_path / "r", {"segment_bytes": choose.choice([600, 4_000, 1 << 20]), "headers": seed % 2}
    )
    stream.begin_pass()
    play(stream, choose, 150)
    found = seal_all(tmp_path / "r", tmp_path / "w", tasks=choose.choice([1, 3, 50]))
    assert found == expected_rows(tmp_path / "r")
    assert transactions(tmp_path / "w") == expected_transactions(tmp_path / "r")


class Rows:
    """Writes given frames into a recording."""

    def __init__(self, folder: Path, relation: Relation, key: tuple[str, ...]) -> None:
        self.stream = Stream(folder)
        self.stream.begin_pass()
        self.route = self.stream._route(relation)
        self.route.key_columns = key
        self.oid = struct.pack(">I", relation.oid)
        self.stream.begin()

    def write(self, tag: bytes, *rows: tuple[bytes, list[Field]], messages: int = 1) -> None:
        """Write one change; each row follows its type letter."""
        for part in range(messages):
            self.stream._add(self.route, b"k", None if part or tag == b"D" else b"v")
        body = b"".join(letter + tuple_of(row) for letter, row in rows)
        self.stream._frame(tag + self.oid + body)

    def finish(self) -> None:
        """End the recording."""
        self.stream.commit()
        self.stream.flush()
        self.stream.deliver()
        self.stream.recorder.close()


@st.composite
def relations(draw: st.DrawFn) -> tuple[Relation, tuple[str, ...]]:
    names = draw(st.lists(st.sampled_from([*ODD[:9], "id", "b", "c"]), min_size=1, max_size=5, unique=True))
    identity = draw(st.sampled_from("dnfi"))
    columns = tuple(
        Column(name, draw(st.sampled_from([25, 23, 3802])), -1, draw(st.booleans()) or identity == "f")
        for name in names
    )
    key = tuple(draw(st.lists(st.sampled_from([*names, "gone"]), max_size=2, unique=True)))
    return Relation(7, draw(st.sampled_from(["public", "s.x"])), "t", identity, columns), key


@given(st.data(), relations())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_row(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, made: Any) -> None:
    relation, key = made
    folder = tmp_path_factory.mktemp("any")
    rows = Rows(folder / "r", relation, key)

    def row(*, may_miss: bool = False) -> list[Field]:
        found: list[Field] = []
        for column in relation.columns:
            value = data.draw(st.sampled_from([b"1", b"-5", None]) if column.type_oid == 23 else TEXTS)
            found.append(UNCHANGED if may_miss and data.draw(st.integers(0, 5)) == 0 else value)
        return found

    for kind in data.draw(st.lists(st.sampled_from("IUKODF"), min_size=1, max_size=12)):
        if kind == "I":
            rows.write(b"I", (b"N", row()), messages=data.draw(st.integers(0, 1)))
        elif kind == "U":
            rows.write(b"U", (b"N", row(may_miss=True)))
        elif kind in "KO":
            old = (kind.encode(), row())
            rows.write(b"U", old, (b"N", row(may_miss=True)), messages=data.draw(st.integers(0, 3)))
        elif kind == "F":
            sent, new = row(may_miss=True), row()
            rows.stream.recorder.filled(
                sent, [b if a is UNCHANGED else a for a, b in zip(sent, new, strict=True)]
            )
            rows.write(b"U", (b"N", sent))
        else:
            if data.draw(st.booleans()):
                rows.stream.recorder.without(rows.route, NoMessageReason.UNKEYED)
            rows.write(b"D", (data.draw(st.sampled_from([b"K", b"O"])), row()), messages=0)
    rows.finish()
    assert seal_all(folder / "r", folder / "w") == expected_rows(folder / "r")


def test_a_truncate_of_several_tables(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "r")
    stream.begin_pass()
    one, two = table(1, "one"), table(2, "two")
    stream.change("insert", one, 1, b"a")
    route = stream._route(two)
    for each in (one, two):
        stream.recorder.relation(each)
    stream.recorder.without(route, NoMessageReason.TRUNCATED)
    stream._frame(b"T" + struct.pack(">IBII", 2, 0, 1, 2))
    stream.change("insert", two, 1, b"b")
    stream.commit()
    stream.stop()
    found = seal_all(tmp_path / "r", tmp_path / "w")
    assert found == expected_rows(tmp_path / "r")
    table_at = SCHEMA.get_field_index("table")
    assert [row[table_at] for row in found] == ["one", "one", "two", "two"]


def names() -> Iterator[tuple[str, str]]:
    yield from (
        ("public", name) for name in ("orders", "a/b=c%", "..", "x" * 63, "/" * 63, "ä" * 31, "é" + "/" * 61)
    )
    yield "/" * 63, "/" * 62 + "a"
    yield "/" * 63, "/" * 62 + "b"


def test_folders_of_odd_names_are_distinct_and_short() -> None:
    folders = [folder_of(name, 0) for name in names()]
    assert len(set(folders)) == len(folders)
    for folder in folders:
        assert folder.count("/") == 2 and all(len(part.encode()) < 255 for part in folder.split("/"))
    assert (
        folder_of(("public", "a/b=c%"), 491_000) == "changes/relation=public.a%2Fb%3Dc%25/hour=2026-01-05-08"
    )


def test_an_old_row_whose_key_is_not_known(tmp_path: Path) -> None:
    """Found by `test_any_row`: the tombstone must not get the key of the new row."""
    columns = (Column("id", 25, -1, False), Column("b", 25, -1, False))
    rows = Rows(tmp_path / "r", Relation(7, "public", "t", "d", columns), ("id",))
    rows.write(b"U", (b"K", [None, None]), (b"N", [b"1", UNCHANGED]), messages=2)
    rows.finish()
    expected = expected_rows(tmp_path / "r")
    key = SCHEMA.get_field_index("key_json")
    assert [row[key] for row in expected] == ['{"id": "1"}', None]
    assert seal_all(tmp_path / "r", tmp_path / "w") == expected
