"""The file of dead letters as others read it, and what has its rows sent again."""

import json
from pathlib import Path
from typing import Any

import pytest

from bwtui.sink import dead_letter_file as letters_module
from bwtui.sink.dead_letter_file import DeadLetter, DeadLetterFile, DeadLetterRows
from bwtui.sink.dead_letter_writer import ChangeIdentity, DeadLetterWriter, DroppedRow
from bwtui.sink.requeue_sql import RequeuePlan, requeue_plan

KEYS = {"public.t": ("id",), "public.two": ("a", "b")}


@pytest.fixture
def written(tmp_path: Path) -> DeadLetterWriter:
    return DeadLetterWriter(tmp_path)


@pytest.fixture
def file(written: DeadLetterWriter) -> DeadLetterFile:
    return DeadLetterFile(written.path, lambda table: KEYS.get(table, ()))


def keep(
    written: DeadLetterWriter,
    number: int,
    operation: str = "insert",
    table: str = "public.t",
    columns: tuple[str, ...] = ("id", "body"),
    fields: tuple[bytes | None, ...] | None = None,
) -> None:
    """Drop a row."""
    values = fields or (str(number).encode(), b"x")
    gone = operation == "delete"
    row = DroppedRow(
        table,
        "t",
        operation,
        ChangeIdentity(0x1_0000_0000 + number, 1, 700 + number),
        columns,
        values if gone else None,
        None if gone else values,
        KEYS.get(table, ()),
    )
    written.keep(written.letter(row, f"it is too large: {number}", "RowTooLarge"))


def test_what_a_relay_writes_is_read_and_read_on(written: DeadLetterWriter, file: DeadLetterFile) -> None:
    file.read()
    assert (file.letters, file.is_changed()) == ([], False)
    keep(written, 5)
    assert file.is_changed()
    file.read()
    keep(written, 6, "delete", fields=(b"6", None))
    file.read()
    first, second = file.letters
    assert (first.table, first.operation, first.commit_lsn, first.xid) == ("public.t", "insert", "1/5", 705)
    assert (first.key, first.error, first.reason) == ((("id", "5"),), "it is too large: 5", "RowTooLarge")
    assert first.time > 1.7e9
    assert file.rows(first) == DeadLetterRows(None, {"id": "5", "body": "x"})
    assert file.rows(second) == DeadLetterRows({"id": "6", "body": None}, None)
    assert not file.is_changed()


def test_a_letter_names_its_key_itself(written: DeadLetterWriter, file: DeadLetterFile) -> None:
    row = DroppedRow(
        "s.other", "t", "insert", ChangeIdentity(1, 1, 1), ("n", "b"), None, (b"7", b"x"), ("n",)
    )
    letter = written.letter(row, "e", "r")
    written.keep(letter)
    # One that an older version wrote does not.
    old = {**letter, "table": "public.two", "after": {"a": "1", "b": "2"}}
    written.keep({name: value for name, value in old.items() if name != "key"})
    file.read()
    assert [found.key for found in file.letters] == [(("n", "7"),), (("a", "1"), ("b", "2"))]


def test_a_line_that_is_being_written_is_read_once_it_is_whole(
    written: DeadLetterWriter, file: DeadLetterFile
) -> None:
    keep(written, 1)
    whole = written.path.read_bytes()
    with written.path.open("ab") as out:
        out.write(whole[:40])
    file.read()
    assert (len(file.letters), file.unreadable) == (1, 0)
    with written.path.open("ab") as out:
        out.write(whole[40:])
    file.read()
    assert len(file.letters) == 2


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"{", b"[]", b"5", b"{}", b'{"table": 1}', b"\xff\xfe"),
        b'{"table": "t", "operation": "x", "commit_lsn": "0/1", "ordinal": []}',
    ],
)
def test_what_is_no_letter_is_counted(written: DeadLetterWriter, file: DeadLetterFile, line: bytes) -> None:
    keep(written, 1)
    with written.path.open("ab") as out:
        out.write(line + b"\n")
    keep(written, 2)
    file.read()
    assert [letter.xid for letter in file.letters] == [701, 702]
    assert file.unreadable == 1


def test_a_file_that_is_gone_or_another_one_is_begun_anew(
    written: DeadLetterWriter, file: DeadLetterFile
) -> None:
    keep(written, 1)
    file.read()
    written.path.replace(written.path.with_suffix(".old"))
    file.read()
    assert file.letters == []
    keep(written, 2)
    file.read()
    assert [letter.xid for letter in file.letters] == [702]
    written.path.write_bytes(b"")
    file.read()
    assert file.letters == []


def test_of_a_large_file_the_end_is_read(
    written: DeadLetterWriter, file: DeadLetterFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        keep(written, number)
    monkeypatch.setattr(letters_module, "_MOST_BYTES", written.path.stat().st_size // 2)
    file.read()
    assert 8 <= len(file.letters) <= 10
    assert file.left_out > 0
    assert file.rows(file.letters[-1]) == DeadLetterRows(None, {"id": "19", "body": "x"})
    monkeypatch.setattr(letters_module, "_LARGEST", 10)
    assert file.rows(file.letters[-1]) is None


def test_without_a_right_it_is_an_error_of_the_system(file: DeadLetterFile) -> None:
    file.path.mkdir()
    with pytest.raises(OSError, match="directory"):
        file.read()


def made(file: DeadLetterFile) -> RequeuePlan:
    file.read()
    return requeue_plan((letter, file.rows(letter)) for letter in file.letters)


def test_each_row_is_named_once_and_no_key_is_set_where_another_column_will_do(
    written: DeadLetterWriter, file: DeadLetterFile
) -> None:
    for number in (1, 2, 1):
        keep(written, number)
    keep(written, 3, table="public.two", columns=("a", "b"), fields=(b"it's", b"c\\d"))
    found = made(file)
    of_t, of_two = found.statements
    assert """|| '"public"."t"' || ' SET '""" in of_t and "ORDER BY attname IN ('id'), attnum" in of_t
    assert """$q1$ WHERE "id" IN ('1', '2')$q1$;""" in of_t
    assert """$q1$ WHERE ("a", "b") IN (('it''s', E'c\\\\d'))$q1$;""" in of_two
    assert (found.rows, found.refused) == (3, {})


def test_ten_thousand_letters_are_few_statements(written: DeadLetterWriter, file: DeadLetterFile) -> None:
    letter = written.letter(
        DroppedRow(
            "public.t", "t", "insert", ChangeIdentity(1, 1, 1), ("id", "b"), None, (b"0", b"x"), ("id",)
        ),
        "e",
        "r",
    )
    with written.path.open("wb") as out:
        for number in range(10_000):
            out.write(json.dumps(letter | {"after": {"id": str(number), "b": "x"}}).encode() + b"\n")
    found = made(file)
    assert (found.rows, len(found.statements)) == (10_000, 20)


def _cut(letter: dict[str, Any]) -> dict[str, Any]:
    return {**letter, "before": None, "after": None, "cut": True}


def test_what_can_t_be_sent_safely_is_refused_with_its_reason(
    written: DeadLetterWriter, file: DeadLetterFile
) -> None:
    keep(written, 1, "delete")
    keep(written, 2, table="public.unknown")
    keep(written, 3, fields=(b"\xff", b"x"))
    keep(written, 4, fields=(b"a\x1bb", b"x"))
    keep(written, 5, fields=(None, b"x"))
    row = DroppedRow("public.t", "t", "insert", ChangeIdentity(1, 1, 1), ("id",), None, (b"0",), ("id",))
    written.keep(_cut(written.letter(row, "e", "r")))
    found = made(file)
    assert (found.statements, found.rows) == ([], 0)
    reasons = list(found.refused.items())
    assert [(number, why.partition(",")[0]) for why, number in reasons] == [
        (1, "the row was deleted: no UPDATE can re-send it"),
        (1, "the row can't be identified: its table has no key"),
        (3, "its key contains unprintable characters"),
        (1, "the dead letter does not contain the row"),
    ]


def test_a_name_with_a_dot_names_two_tables() -> None:
    letter = DeadLetter(0, 1, 0.0, "a.b.c", "t", "insert", "0/1", 1, 1, "e", "r", (("id", "1"),))
    found = requeue_plan([(letter, DeadLetterRows(None, {"id": "1"}))])
    assert found.statements == []
    assert next(iter(found.refused)).startswith("the name of its table or schema contains a dot")
