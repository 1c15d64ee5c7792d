"""A table as of a position."""

from bwtui.pgoutput.messages import UNCHANGED, Column, Field, Relation
from bwtui.recording.change import Change
from bwtui.recording.reading.as_of import TableFold, pages
from tests.recorded_shop import AUDIT, INT, ORDERS, TEXT, MemoryRecording, Tape, relation, shop_recording


def fold(recording: MemoryRecording, table: str, position: int | None = None) -> TableFold:
    made = TableFold(table)
    assert made.advance(recording, recording.length if position is None else position)
    return made


def rows(made: TableFold) -> list[tuple[Field, ...]]:
    return [row.fields for row in pages(made, 7)]


def simply(changes: list[Change], table: str) -> list[tuple[Field, ...]]:
    """Fold orders the plain way."""
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
    assert made.gaps(False) == (False, False, 0)


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
    assert made.gaps(False) == (True, False, 1)


def test_without_a_snapshot_it_says_that_rows_are_missing() -> None:
    tape = Tape()
    tape.begin()
    tape.add("update", ORDERS, (b"1", b"paid", UNCHANGED))
    tape.add("delete", ORDERS, None, (b"2", None, None), before_is_key=True)
    made = fold(MemoryRecording(tape), "public.orders")
    assert made.gaps(True) == (True, True, 2)
    assert rows(made) == [(b"1", b"paid", UNCHANGED)]


def test_a_new_snapshot_replaces_what_was_known() -> None:
    tape = Tape()
    tape.add("snapshot", ORDERS, (b"1", b"new", b"1"))
    tape.add("snapshot", ORDERS, (b"2", b"new", b"1"))
    tape.pass_number = 2
    tape.add("snapshot", ORDERS, (b"2", b"paid", b"1"))
    assert rows(fold(MemoryRecording(tape), "public.orders")) == [(b"2", b"paid", b"1")]


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
