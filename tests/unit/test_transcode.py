"""Frames and COPY lines in a database encoding other than UTF-8."""

import json
import struct

import pytest

from bwtui.encode.avro import NoRoomError, build_encoder
from bwtui.encode.json import JsonEncoder
from bwtui.pgoutput import messages as m
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.transcode import Transcoder
from bwtui.pgoutput.tuples import DecodeError
from bwtui.recording.payloads import FilledValue, Transaction, pack_batch, unpack_batch

TEXT, TEXTS, INT, MOMENT = 25, 1009, 23, 1184
#: As in WIN1252, 0x81 is not a character. In UTF-8, these two bytes are U+0081.
BAD = b"\xc2\x81"
GOOD = "größe".encode("cp1252")


def cp1252(raw: bytes) -> bytes | None:
    """Return UTF-8, or None."""
    try:
        return raw.decode("cp1252").encode()
    except UnicodeDecodeError:
        return None


TRANSCODER = Transcoder(cp1252)


def row(*fields: m.Field) -> bytes:
    parts = [struct.pack(">H", len(fields))]
    for field in fields:
        if field is None:
            parts.append(b"n")
        elif isinstance(field, m.UnchangedToast):
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack(">I", len(field)) + field)
    return b"".join(parts)


def test_rows() -> None:
    raw = (GOOD, BAD, None, m.UNCHANGED, b"plain", b"", b"x" * 200)
    wanted = ["größe".encode(), m.Binary(BAD), None, m.UNCHANGED, b"plain", b"", b"x" * 200]
    head = struct.pack(">I", 0x81E481E4)
    for payload, old in (
        (b"I" + head + b"N" + row(*raw), None),
        (b"U" + head + b"N" + row(*raw), None),
        (b"U" + head + b"O" + row(*raw) + b"N" + row(*raw), wanted),
        (b"D" + head + b"K" + row(*raw), wanted),
    ):
        message = decode(TRANSCODER.message(payload))
        assert isinstance(message, m.Insert | m.Update | m.Delete)
        found = [getattr(message, "new", None), getattr(message, "old", None)]
        assert [one for one in found if one is not None] == [
            one for one in (None if isinstance(message, m.Delete) else wanted, old) if one is not None
        ]
        kinds = [type(field) for one in found if one for field in one]
        assert kinds.count(m.Binary) == len(kinds) // len(wanted)


def test_names() -> None:
    def relation(name: bytes) -> bytes:
        columns = (
            b"\1id\0" + struct.pack(">Ii", 0x8181, -1) + b"\0" + name + b"\0" + struct.pack(">Ii", 25, -1)
        )
        return b"R" + struct.pack(">I", 0xC281) + b"\0" + name + b"\0d" + struct.pack(">H", 2) + columns

    columns = (m.Column("id", 0x8181, -1, True), m.Column("größe", TEXT, -1, False))
    wanted = m.Relation(0xC281, "pg_catalog", "größe", "d", columns)
    assert decode(TRANSCODER.message(relation(GOOD))) == wanted
    with pytest.raises(DecodeError) as refused:
        decode(TRANSCODER.message(relation(BAD)))
    assert "a name is not valid UTF-8" in refused.value.message
    assert refused.value.hint == "rename the table or the column"
    of_type = TRANSCODER.message(b"Y" + struct.pack(">I", 7) + GOOD + b"\0" + BAD + b"\0")
    # No row needs the type's name: a recording that contains it can be read.
    assert isinstance(decode(of_type), m.Type)


@pytest.mark.parametrize("payload", [b"", b"I", b"Iabc\xff", b"R\0\0\0\1abc", b"?\xff", b"B" + b"\xff" * 20])
def test_what_is_malformed_or_holds_no_text_stays(payload: bytes) -> None:
    assert TRANSCODER.message(payload) == payload


def test_lines() -> None:
    line = b"\t".join((rb"tab\t" + GOOD, rb"a\\x" + BAD + rb"\n", rb"\N", b"", rb"\\x81", b"x")) + b"\n"
    found = unescape_copy_line(TRANSCODER.line(line))
    bad = b"a\\x" + BAD + b"\n"
    assert found == ["tab\tgröße".encode(), bad, None, b"", b"\\x81", b"x"]
    assert [isinstance(field, m.Binary) for field in found] == [False, True, False, False, False, False]
    assert TRANSCODER.line(b"plain\t\\N\n") == b"plain\t\\N\n"


def columns_of(*oids: int) -> tuple[m.Column, ...]:
    """Return columns c0, c1, …; the first is the key."""
    return tuple(m.Column(f"c{i}", oid, -1, not i) for i, oid in enumerate(oids))


@pytest.mark.parametrize("bad", [m.Binary(BAD), b"a\xff", b"\xc2"])
@pytest.mark.parametrize("count", [1, 3, 4, 6])
def test_a_schema_without_room_says_so_and_one_with_room_takes_it(bad: bytes, count: int) -> None:
    """This holds for each of its columns; bytes of a character split between two texts are not valid."""
    relation = m.Relation(1, "s", "t", "d", columns_of(INT, *[TEXT] * count))
    narrow = build_encoder(relation, ("c0",), {}).bind(1, 2)
    room = build_encoder(relation, ("c0",), {}, placeholders=True)
    assert "__escaped" not in build_encoder(relation, ("c0",), {}).value_schema
    for place in range(1, count + 1):
        fields = [b"1", *[b"\x81" if bad == b"\xc2" else "ß".encode()] * count]
        fields[place] = bad
        with pytest.raises(NoRoomError):
            narrow.both(fields)
        key, value = room.bind(1, 2).both(fields)
        assert key == narrow.key(fields)
        assert b"\\x" + bytes(bad).hex().encode() in value
    narrow.both([b"1", *["ß".encode()] * count])


def test_a_key_needs_no_room_and_stays_its_own() -> None:
    """A text equal to the placeholder of the bytes is a different key."""
    relation = m.Relation(1, "s", "t", "d", columns_of(TEXT, MOMENT))
    for any_bytes in (False, True):
        encoder = build_encoder(relation, ("c0",), {}, any_bytes)
        assert encoder.key_schema is not None and "__escaped" not in encoder.key_schema
        bound = encoder.bind(1, 2)
        texts = (m.Binary(BAD), b"\xff", rb"\xc281", rb"\xff", "ß".encode(), BAD)
        keys = [bound.both([text, None])[0] for text in texts]
        assert len(set(keys)) == len(texts)
        assert keys[1] == b"\0\0\0\0\1\2\n\\xff\0"


def test_arrays_escape_as_a_whole() -> None:
    relation = m.Relation(1, "s", "t", "d", columns_of(INT, TEXTS))
    bound = build_encoder(relation, ("c0",), {}).bind(1, 2)
    for text in (m.Binary(b"{" + BAD + b"}"), b"{a,\xff}"):
        assert b"\\x" + text.hex().encode() in bound.both([b"1", text])[1]


def test_json_has_lone_surrogates() -> None:
    relation = m.Relation(1, "s", "t", "d", columns_of(TEXT))
    encoder = JsonEncoder(relation, ("c0",), {})
    for text in (m.Binary(b"a" + BAD), b"a\xff"):
        found = json.loads(encoder.both([text])[1])["c0"]
        assert found.encode("utf-8", "surrogateescape") == text
    assert json.loads(encoder.both([m.Binary(BAD)])[1]) != json.loads(encoder.both([BAD])[1])


def test_a_recording_keeps_what_was_put_in() -> None:
    filled = [FilledValue(0, 3, m.Binary(BAD)), FilledValue(0, 1_599, BAD)]
    parts = pack_batch(1, 0, Transaction(1, 2, 3, 4), [b"frame"], [], [], filled)
    found = unpack_batch(b"".join(parts)).filled
    assert found == filled
    assert [isinstance(one.text, m.Binary) for one in found] == [True, False]
