"""Keys that were sent, by which the tombstone of a backfill finds its row."""

from bwtui.pgoutput.messages import Binary, Field
from bwtui.recording.as_of import SentKeys, pack, unpack
from tests.recording_double import change, message, relation


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
