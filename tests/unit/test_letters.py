"""The dead-letter file as other programs read it, and the requests that resend its rows."""

from pathlib import Path

import pytest

from bwtui.sink import dead_letters as letters_module
from bwtui.sink.dead_letters import (
    ChangeIdentity,
    DeadLetterFile,
    DeadLetterRows,
    DeadLetterWriter,
    DroppedRow,
)

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
    # One from an older version has no key.
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
    assert file.skipped > 0
    assert file.rows(file.letters[-1]) == DeadLetterRows(None, {"id": "19", "body": "x"})
    monkeypatch.setattr(letters_module, "_LARGEST", 10)
    assert file.rows(file.letters[-1]) is None


def test_without_a_right_it_is_an_error_of_the_system(file: DeadLetterFile) -> None:
    file.path.mkdir()
    with pytest.raises(OSError, match="directory"):
        file.read()
