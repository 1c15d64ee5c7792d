"""A table as of a position."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bwtui.pgoutput.messages import UNCHANGED, Column, Field, Relation
from bwtui.recording import as_of
from bwtui.recording.as_of import RowOrder, TableFold, pages
from bwtui.recording.change import Change
from bwtui.recording.query_completion import parse_row_query
from bwtui.recording.query_syntax import QueryError
from bwtui.recording.reader import open_recording
from bwtui.recording.view import RecordingView
from bwtui.tui.screens.rows import gap_texts
from tests.recorded_shop import (
    AUDIT,
    INT,
    NUMERIC,
    ORDERS,
    TEXT,
    MemoryRecording,
    Tape,
    relation,
    shop_recording,
)
from tests.recorded_stream import Stream, table


def fold(recording: RecordingView, table: str, position: int | None = None) -> TableFold:
    made = TableFold(table)
    assert made.advance(recording, recording.length if position is None else position)
    return made


def rows(made: TableFold) -> list[tuple[Field, ...]]:
    return [row.fields for row in pages(made, 7)]


def simply(changes: list[Change], table: str) -> list[tuple[Field, ...]]:
    """Fold orders the simple way."""
    found: dict[Field, tuple[Field, ...]] = {}
    for change in changes:
        if change.table != table or change.is_repeat:
            continue
        if change.before is not None:
            found.pop(change.before[0], None)
        if change.after is not None:
            found[change.after[0]] = change.after
    return [found[key] for key in sorted(found, key=lambda k: int(k or 0))]  # type: ignore[arg-type]


def test_at_every_position_it_is_what_a_plain_fold_gives() -> None:
    recording = shop_recording(12)
    made = TableFold("public.orders")
    changes = list(recording.changes())
    for position in range(0, recording.length + 1, 3):
        assert made.advance(recording, position)
        assert rows(made) == simply(changes[:position], "public.orders")
    assert made.gaps(False) == (False, False, 0, 0)


def test_rows_are_sorted_by_numbers_as_numbers() -> None:
    keys = [row[0] for row in rows(fold(shop_recording(), "public.orders"))]
    assert keys == sorted(keys, key=lambda k: int(k or 0))  # type: ignore[arg-type]
    assert keys[-1] == b"900"
    assert b"3" not in keys, "it is 900 now"
    assert b"1" not in keys, "it was deleted"


def test_an_unchanged_large_value_is_taken_from_the_row_before() -> None:
    assert (b"2", b"Pot", b"P" * 40) in rows(fold(shop_recording(), "public.products"))


def test_truncate_empties_and_a_table_without_a_key_keeps_its_rows_apart() -> None:
    recording = shop_recording()
    before = fold(recording, "public.audit", recording.length - 1)
    assert before.count == 39, "40 orders, and one line was deleted"
    after = fold(recording, "public.audit")
    assert (after.count, after.truncates) == (0, 1)


def test_equal_rows_without_a_key_are_counted() -> None:
    tape = Tape()
    tape.begin()
    for _ in range(3):
        tape.add("insert", AUDIT, (b"ada", None))
    tape.add("delete", AUDIT, None, (b"ada", None))
    tape.add("update", AUDIT, (b"bob", b"x"), (b"ada", None))
    tape.add("delete", AUDIT, None, (b"eve", None))
    made = fold(MemoryRecording(tape), "public.audit")
    assert sorted(rows(made), key=str) == [(b"ada", None), (b"bob", b"x")]
    assert made.gaps(False) == (True, False, 1, 0)


def test_without_a_snapshot_it_says_that_rows_are_missing() -> None:
    tape = Tape()
    tape.begin()
    tape.add("update", ORDERS, (b"1", b"paid", UNCHANGED))
    tape.add("delete", ORDERS, None, (b"2", None, None), before_is_key=True)
    made = fold(MemoryRecording(tape), "public.orders")
    assert made.gaps(True) == (True, True, 2, 0)
    assert rows(made) == [(b"1", b"paid", UNCHANGED)]


def test_a_new_snapshot_replaces_what_was_known() -> None:
    tape = Tape()
    tape.add("snapshot", ORDERS, (b"1", b"new", b"1"))
    tape.add("snapshot", ORDERS, (b"2", b"new", b"1"))
    tape.pass_number = 2
    tape.add("snapshot", ORDERS, (b"2", b"paid", b"1"))
    assert rows(fold(MemoryRecording(tape), "public.orders")) == [(b"2", b"paid", b"1")]


def test_a_tombstone_beside_the_stream_takes_its_row_away(tmp_path: Path) -> None:
    """A heal adds it for a row whose delete is not in the slot."""
    stream, orders = Stream(tmp_path), table(1, "orders")
    stream.begin_pass()
    for key in (1, 2, 3):
        stream.change("insert", orders, key, b"a")
    stream.change("rename", orders, 4, b"a")
    stream.put(orders, [5], [1, 4, 77])
    stream.change("insert", orders, 1, b"b")
    stream.stop()
    with closing(open_recording(tmp_path)) as recording, closing(fold(recording, "public.orders")) as made:
        assert rows(made) == [(b"1", b"b"), (b"2", b"a"), (b"3", b"a"), (b"5", b"p")]
        assert made.gaps(False).unknown_tombstones == 0, "of 77 there never was a row"


def test_a_tombstone_of_a_row_that_was_never_sent_is_told(tmp_path: Path) -> None:
    stream, orders = Stream(tmp_path), table(1, "orders")
    stream.begin_pass()
    stream.change("dropped", orders, 1, b"a")
    stream.put(orders, [], [1])
    stream.stop()
    with closing(open_recording(tmp_path)) as recording, closing(fold(recording, "public.orders")) as made:
        assert rows(made) == [(b"1", b"a")]
        gaps = made.gaps(False)
    assert gaps.unknown_tombstones == 1
    assert any("may still be listed" in text for text in gap_texts(gaps))


def spelled(change: Change, id: int, own: int) -> Change:
    """Return a change whose key has one schema id, while the relay's own key schema id is a different one."""
    (message,) = change.messages
    key = b"\0" + id.to_bytes(4, "big") + b"\2"
    return replace(change, messages=(replace(message, key=key, key_schema_id=own),))


@pytest.mark.parametrize(("sent", "put", "is_there"), [(5, 7, False), (7, 5, True), (5, 5, False)])
def test_ids_of_schemas_in_the_keys(sent: int, put: int, is_there: bool) -> None:
    """The relay's own id is 7. A cleanup under a different id affects only keys that the topic alone has."""
    tape = Tape()
    tape.begin()
    tape.add("insert", ORDERS, (b"1", b"new", b"1"))
    tape.add("cleanup", ORDERS)
    tape.changes[:] = [spelled(tape.changes[0], sent, sent), spelled(tape.changes[1], put, 7)]
    made = fold(MemoryRecording(tape), "public.orders")
    assert made.count == is_there
    assert made.gaps(False).unknown_tombstones == 0


def test_a_tombstone_behind_another_type_of_the_key_is_not_guessed() -> None:
    texts = Relation(100, "public", "orders", "d", (Column("id", TEXT, -1, True), *ORDERS.columns[1:]))
    tape = Tape()
    tape.begin()
    for number in (2, 10):
        tape.add("insert", ORDERS, (b"%d" % number, b"new", b"1"))
    tape.add("cleanup", texts)
    tape.changes[2] = spelled(tape.changes[2], 7, 7)
    made = fold(MemoryRecording(tape), "public.orders")
    assert (made.count, made.gaps(False).unknown_tombstones) == (2, 1)


def test_columns_that_come_and_go() -> None:
    wider = relation(100, "orders", (("note", TEXT), ("id", INT), ("total", TEXT)))
    tape = Tape()
    tape.begin()
    tape.add("insert", ORDERS, (b"1", b"new", b"1.00"))
    tape.add("insert", ORDERS, (b"2", b"new", b"2.00"))
    tape.add("update", wider, (b"hi", b"2", b"3.00"))
    assert rows(fold(MemoryRecording(tape), "public.orders")) == [
        (UNCHANGED, b"1", b"1.00"),
        (b"hi", b"2", b"3.00"),
    ]


def test_a_key_of_another_type_finds_its_rows_again() -> None:
    texts = Relation(100, "public", "orders", "d", (Column("id", TEXT, -1, True), *ORDERS.columns[1:]))
    tape = Tape()
    tape.begin()
    for number in (2, 10):
        tape.add("insert", ORDERS, (b"%d" % number, b"new", b"1"))
    tape.add("update", texts, (b"2", b"paid", b"1"))
    assert rows(fold(MemoryRecording(tape), "public.orders")) == [
        (b"10", b"new", b"1"),
        (b"2", b"paid", b"1"),
    ]


def test_it_can_be_cancelled_and_goes_on_where_it_stopped() -> None:
    recording = shop_recording(2_000)
    made = TableFold("public.orders")
    told: list[int] = []
    assert not made.advance(recording, recording.length, lambda: True, lambda done, total: told.append(done))
    assert (made.position, told) == (2_000, [2_000])
    assert made.advance(recording, recording.length)
    assert rows(made) == rows(fold(recording, "public.orders"))
    made.close()


def arranged(
    query: str | None, order: RowOrder | None, table: str = "public.orders"
) -> list[tuple[Field, ...]]:
    made = fold(shop_recording(), table)
    matches = None if query is None else parse_row_query(query).matches
    assert made.arrange(matches, order)
    found = rows_shown(made)
    assert made.shown == len(found)
    return found


def rows_shown(made: TableFold) -> list[tuple[Field, ...]]:
    found: list[tuple[Field, ...]] = []
    while part := made.rows(len(found), 7):
        found += [row.fields for row in part]
    return found


def test_rows_are_filtered_by_the_language_of_queries() -> None:
    every = rows(fold(shop_recording(), "public.orders"))
    assert arranged("after.status = paid", None) == [row for row in every if row[1] == b"paid"]
    assert arranged("key.id >= 40 and not after.status = paid", None) == [
        row
        for row in every
        if int(row[0] or 0) >= 40 and row[1] != b"paid"  # type: ignore[arg-type]
    ]
    assert arranged("after.status = nowhere", None) == []
    assert arranged("table = orders and schema = public and position >= 0", None) == every


def test_rows_are_sorted_by_any_column_numbers_as_numbers() -> None:
    by_total = [row[2] for row in arranged(None, RowOrder("total", True))]
    assert by_total == sorted(by_total, key=lambda total: -float(total or 0))  # type: ignore[arg-type]
    by_status = [row[1] for row in arranged("key.id < 900", RowOrder("status"))]
    assert by_status == sorted(by_status, key=lambda status: status or b"")  # type: ignore[arg-type,return-value]
    assert arranged(None, RowOrder(None, True)) == list(
        reversed(rows(fold(shop_recording(), "public.orders")))
    )


def test_what_is_no_number_and_what_is_not_known_has_its_place() -> None:
    table = relation(7, "odd", (("id", INT), ("n", NUMERIC), ("big", TEXT)))
    tape = Tape()
    tape.begin()
    for number, value in enumerate((b"10", b"-Infinity", None, b"NaN", b"9", b"Infinity", b"-1e3")):
        tape.add("insert", table, (b"%d" % number, value, UNCHANGED))
    made = fold(MemoryRecording(tape), "public.odd")
    assert made.arrange(None, RowOrder("n"))
    values = [row[1] for row in rows_shown(made)]
    assert values == [b"-Infinity", b"-1e3", b"9", b"10", b"Infinity", b"NaN", None]
    assert made.arrange(None, RowOrder("n", True))
    assert [row[1] for row in rows_shown(made)] == [*reversed(values[:-1]), None]
    assert made.arrange(parse_row_query("after.big is unchanged").matches, RowOrder("big"))
    assert made.shown == 7


def test_moving_on_forgets_the_order_and_a_column_that_is_gone_sorts_by_nothing() -> None:
    recording = shop_recording()
    made = fold(recording, "public.orders", 20)
    assert made.arrange(None, RowOrder("total", True))
    assert made.advance(recording, recording.length)
    assert rows_shown(made) == rows(fold(shop_recording(), "public.orders"))
    assert made.arrange(None, RowOrder("no such column"))
    assert made.shown == made.count


def test_arranging_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(as_of, "_STEPS", 1)
    made = fold(shop_recording(), "public.orders")
    assert not made.arrange(None, RowOrder("total"), lambda: True)
    assert made.shown == made.count
    assert made.arrange(None, RowOrder("total"))


@pytest.mark.parametrize(
    "text", ["op = update", "after.id = 1 and xid = 7", "before.id = 3", "changed = id", "topic = a"]
)
def test_what_only_a_change_has_is_refused_at_its_place(text: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_row_query(text)
    name = caught.value.problem.split("'")[1]
    assert text[caught.value.column :].startswith(name)
    assert "rows have no field" in caught.value.problem
