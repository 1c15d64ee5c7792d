"""Tombstones beside the stream in what is made of a recording: they have no row, only a message's key."""

import io
from contextlib import closing
from pathlib import Path

import pytest

from bwtui.pgoutput.messages import Binary, Field
from bwtui.recording.export.exporting import export, make_writer
from bwtui.recording.reading.reader import open_recording
from bwtui.recording.reading.sent_keys import SentKeys, pack, unpack
from bwtui.recording.selection import ChangeSelection
from tests.recorded_stream import Stream, table
from tests.recording_double import change, message, relation


def exported(folder: Path, *, create: bool = False) -> tuple[list[str], list[str]]:
    """Return the statements behind the head, and the notes."""
    file = io.BytesIO()
    with closing(open_recording(folder)) as recording:
        writer = make_writer("sql", recording, file, ChangeSelection(), create=create)
        export(recording, ChangeSelection(), writer)
    return file.getvalue().decode().partition("END $$;\n\n")[2].splitlines(), writer.notes


@pytest.mark.parametrize("create", [True, False])
def test_sql_deletes_the_row_that_a_repair_found_gone(tmp_path: Path, create: bool) -> None:
    stream, orders = Stream(tmp_path), table(1, "orders")
    stream.begin_pass()
    stream.change("insert", orders, 1, b"a")
    stream.change("rename", orders, 4, b"a")
    stream.put(orders, [5], [1, 4, 77])
    stream.stop()
    lines, notes = exported(tmp_path, create=create)
    deletes = [line for line in lines if line.startswith("DELETE")]
    assert deletes == [f"""DELETE FROM "public"."orders" WHERE "id" = '{key}';""" for key in (1, 4)]
    assert (
        len(
            [line for line in lines if line.startswith("-- backfilled tombstone") and "public.orders" in line]
        )
        == 1
    )
    assert [note for note in notes if "tombstone" in note] == [
        "1 backfilled tombstone omitted: the recording has no row with such a key;"
        " comments in the file mark the places"
    ]


def test_what_was_cleared_up_behind_an_unfinished_snapshot_needs_no_word(tmp_path: Path) -> None:
    stream, orders = Stream(tmp_path), table(1, "orders")
    stream.row(orders, 1, b"a")
    stream.cleanup(orders, [77])
    stream.stop()
    lines, notes = exported(tmp_path)
    assert [line.split()[0] for line in lines] == ["BEGIN;", "INSERT", "COMMIT;"]
    assert notes == []


def test_a_key_is_found_while_its_columns_are_what_they_were() -> None:
    keys, (was, now) = SentKeys(), (relation("a", (("id", oid),)) for oid in (23, 25))
    sent = message(0, key=b"k")
    keys.note(change(was, "insert", ("7",), messages=(sent,)))
    keys.note(change(was, "update", ("7",), messages=()))
    tombstone = change(was, "cleanup", messages=(sent,))
    assert keys.find(tombstone) == (b"7",)
    assert keys.find(change(now, "cleanup", messages=(sent,))) is None
    keys.note(change(now, "insert", ("8",), messages=(message(0, key=b"l"),)))
    assert keys.find(tombstone) is None
    keys.close()


def test_fields_come_back_as_they_were() -> None:
    fields: tuple[Field, ...] = (b"a", None, Binary(b"\xff"))
    assert unpack(pack(fields)) == fields
    assert isinstance(unpack(pack(fields))[2], Binary)
