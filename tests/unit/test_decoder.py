"""The decoder against bytes written by hand from "Logical Replication Message Formats"."""

import itertools
import struct

import pytest

from bwtui.pgoutput import messages as m
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.tuples import DecodeError, split_tuple, splitter

# 2026-01-02 03:04:05.000006 UTC, after 2000-01-01 and after 1970-01-01.
PG_TIME = 820_638_245_000_006
UNIX_TIME = 1_767_323_045_000_006

ROW = b"\0\5" + b"n" + b"u" + b"t\0\0\0\3abc" + b"t\0\0\0\0" + b"b\0\0\0\2\0\1"
FIELDS = [None, m.UNCHANGED, b"abc", b"", m.Binary(b"\0\1")]

PLAIN: list[tuple[bytes, m.Message]] = [
    (b"B" + struct.pack(">QqI", 0x1_0000_0002, PG_TIME, 7), m.Begin(0x1_0000_0002, UNIX_TIME, 7)),
    (b"C" + struct.pack(">BQQq", 0, 10, 20, PG_TIME), m.Commit(0, 10, 20, UNIX_TIME)),
    (b"O" + struct.pack(">Q", 9) + b"elsewhere\0", m.Origin(9, "elsewhere")),
    (b"S" + struct.pack(">IB", 7, 1), m.StreamStart(7, True)),
    (b"E", m.StreamStop()),
    (b"c" + struct.pack(">IBQQq", 7, 0, 10, 20, PG_TIME), m.StreamCommit(7, 0, 10, 20, UNIX_TIME)),
    (b"A" + struct.pack(">II", 7, 8), m.StreamAbort(7, 8)),
    (b"A" + struct.pack(">IIQq", 7, 8, 10, PG_TIME), m.StreamAbort(7, 8, 10, UNIX_TIME)),
    (b"b" + struct.pack(">QQqI", 10, 20, PG_TIME, 7) + b"g\0", m.BeginPrepare(10, 20, UNIX_TIME, 7, "g")),
    (b"P" + struct.pack(">BQQqI", 0, 10, 20, PG_TIME, 7) + b"g\0", m.Prepare(0, 10, 20, UNIX_TIME, 7, "g")),
    (
        b"p" + struct.pack(">BQQqI", 0, 10, 20, PG_TIME, 7) + b"g\0",
        m.Prepare(0, 10, 20, UNIX_TIME, 7, "g", streamed=True),
    ),
    (
        b"K" + struct.pack(">BQQqI", 0, 10, 20, PG_TIME, 7) + b"g\0",
        m.CommitPrepared(0, 10, 20, UNIX_TIME, 7, "g"),
    ),
    (
        b"r" + struct.pack(">BQQqqI", 0, 10, 20, PG_TIME, PG_TIME + 1, 7) + b"g\0",
        m.RollbackPrepared(0, 10, 20, UNIX_TIME, UNIX_TIME + 1, 7, "g"),
    ),
]

# Kind, then the payload after the transaction's id, then the expected message (…, stream_xid).
OPTIONAL_XID = [
    (
        b"R",
        b"\0\0\x40\1public\0orders\0d\0\2"
        + (b"\1id\0" + struct.pack(">Ii", 20, -1))
        + (b"\0pr\xc3\xafce\0" + struct.pack(">Ii", 1700, 655366)),
        lambda xid: m.Relation(
            0x4001,
            "public",
            "orders",
            "d",
            (m.Column("id", 20, -1, True), m.Column("prïce", 1700, 655366, False)),
            xid,
        ),
    ),
    (
        b"R",
        b"\0\0\x04\xeb\0pg_class\0n\0\0",
        lambda xid: m.Relation(1259, "pg_catalog", "pg_class", "n", (), xid),
    ),
    (b"Y", b"\0\0\x40\2public\0mood\0", lambda xid: m.Type(0x4002, "public", "mood", xid)),
    (b"I", b"\0\0\x40\1N" + ROW, lambda xid: m.Insert(0x4001, FIELDS, xid)),
    (b"U", b"\0\0\x40\1N" + ROW, lambda xid: m.Update(0x4001, None, None, FIELDS, xid)),
    (
        b"U",
        b"\0\0\x40\1K\0\1t\0\0\0\x011N" + ROW,
        lambda xid: m.Update(0x4001, [b"1"], "K", FIELDS, xid),
    ),
    (b"U", b"\0\0\x40\1O" + ROW + b"N\0\0", lambda xid: m.Update(0x4001, FIELDS, "O", [], xid)),
    (b"D", b"\0\0\x40\1K" + ROW, lambda xid: m.Delete(0x4001, FIELDS, "K", xid)),
    (b"D", b"\0\0\x40\1O" + ROW, lambda xid: m.Delete(0x4001, FIELDS, "O", xid)),
    (
        b"T",
        struct.pack(">IBII", 2, 3, 5, 6),
        lambda xid: m.Truncate((5, 6), cascade=True, restart_identity=True, stream_xid=xid),
    ),
    (
        b"M",
        b"\1" + struct.pack(">Q", 9) + b"prefix\0" + b"\0\0\0\2hi",
        lambda xid: m.LogicalMessage(True, 9, "prefix", b"hi", xid),
    ),
]

ALL = (
    [(raw, False, message) for raw, message in PLAIN]
    + [(kind + rest, False, make(None)) for kind, rest, make in OPTIONAL_XID]
    + [(kind + b"\0\0\1\1" + rest, True, make(257)) for kind, rest, make in OPTIONAL_XID]
)


@pytest.mark.parametrize(("payload", "streamed", "message"), ALL)
def test_every_message(payload: bytes, streamed: bool, message: m.Message) -> None:
    assert decode(payload, streamed) == message


@pytest.mark.parametrize(("payload", "streamed", "message"), ALL)
def test_a_message_that_is_cut_off_or_too_long_is_refused(
    payload: bytes, streamed: bool, message: m.Message
) -> None:
    for end in range(len(payload)):
        # The short form of STREAM ABORT is a complete message of protocol versions 2 and 3.
        if payload[:1] == b"A" and end == 9:
            continue
        with pytest.raises(DecodeError) as caught:
            decode(payload[:end], streamed)
        assert 0 <= caught.value.offset <= end
    with pytest.raises(DecodeError):
        decode(payload + b"\0", streamed)


def test_an_unknown_message_or_column_is_refused_with_its_offset() -> None:
    with pytest.raises(DecodeError, match="unknown kind of message 0x7a"):
        decode(b"z")
    with pytest.raises(DecodeError, match="unknown kind of column 0x78") as caught:
        decode(b"I\0\0\0\1N\0\1x")
    assert caught.value.offset == 8
    with pytest.raises(DecodeError, match="begins with 0x58 in place of K or O"):
        decode(b"D\0\0\0\1X\0\0")


def test_a_name_that_is_not_utf8_is_refused_where_a_row_needs_it() -> None:
    with pytest.raises(DecodeError, match="not valid UTF-8"):
        decode(b"R\0\0\0\1public\0\xff\0d\0\0")
    assert decode(b"Y\0\0\0\1public\0\xff\0") == m.Type(1, "public", "\udcff", None)


def test_unchanged_is_neither_null_nor_false_nor_equal_to_another() -> None:
    assert m.UNCHANGED is not None
    assert m.UNCHANGED
    assert m.UnchangedToast() != m.UNCHANGED
    assert repr(m.UNCHANGED) == "UNCHANGED"


def test_a_relation_knows_its_name_for_people() -> None:
    assert m.Relation(1, "shop", "orders", "d", ()).qualified_name == "shop.orders"


def insert(*fields: bytes, oid: bytes = b"\0\0\x40\1") -> bytes:
    return b"I" + oid + b"N" + len(fields).to_bytes(2, "big") + b"".join(fields)


def text(value: bytes) -> bytes:
    return b"t" + len(value).to_bytes(4, "big") + value


# Lengths, oids and values that look like the head of a column.
TRAPS = [
    insert(text(b"ab"), text(b"c")),
    insert(text(b"cat"), text(b"t")),
    insert(text(b""), text(b"")),
    insert(text(b"x" * 0x74), text(b"t" * 0x74)),
    insert(text(b"x" * 0x7400), text(b"y" * 0x7474)),
    insert(text(b"x" * 0x10000), text(b"y")),
    insert(text(b"x" * 0x740000), text(b"y")),
    insert(b"n", text(b"y")),
    insert(text(b"x"), b"n"),
    insert(b"n", b"n"),
    insert(b"u", text(b"t")),
    insert(b"n", text(b"y"), oid=b"t\0\0\1"),
    insert(text(b"x"), text(b"y"), oid=b"t\0\0t"),
    insert(text(b"x"), text(b"y"), oid=b"\0t\0\0"),
    insert(b"b\0\0\0\x06t\0\0\0\1x", text(b"")),
    insert(text(b"x")),
    insert(text(b"x"), text(b"y"), text(b"z")),
    insert(),
]


@pytest.mark.parametrize("payload", TRAPS)
def test_the_fast_splitter_reads_what_the_general_one_reads(payload: bytes) -> None:
    fields, end = split_tuple(payload, 6)
    assert end == len(payload)
    assert splitter(2)(payload, 6) == fields


def test_the_fast_splitter_refuses_what_the_general_one_refuses() -> None:
    split = splitter(2)
    for broken in (insert(text(b"x"), b"n") + b"!", insert(text(b"x"), b"n")[:-1], insert(b"x", b"n")):
        with pytest.raises(DecodeError):
            split(broken, 6)


@pytest.mark.parametrize("columns", [0, 1, 2, 300, 1600, 1601])
def test_splitters_of_every_width(columns: int) -> None:
    payload = insert(*(text(b"%d" % i) for i in range(columns)))
    assert splitter(columns)(payload, 6) == [b"%d" % i for i in range(columns)]


TEXT_HEAD = b"t\0\0"
#: The smallest length whose bytes can look like the head of another column: 00 74 00 00.
MISLEADING = 0x740000


@pytest.mark.parametrize("behind", [b"x", b"t"])
def test_below_0x740000_every_length_has_the_cuts_that_it_must_have(behind: bytes) -> None:
    # Text follows a head and has no zero byte; after a text of one byte comes another head.
    heads = bytearray(b"".join(b"t\0\0%b%bt" % (low.to_bytes(2, "big"), behind) for low in range(1 << 16)))
    stride = len(heads) >> 16
    assert heads.count(TEXT_HEAD) == 1 << 16
    for high in range(1, MISLEADING >> 16):
        heads[2::stride] = bytes((high,)) * (1 << 16)
        assert heads.count(TEXT_HEAD) == 0, hex(high << 16)


def test_an_empty_text_has_one_cut_whatever_follows_it() -> None:
    for behind in (b"", b"n", b"u", b"t", b"b"):
        assert (text(b"") + behind).count(TEXT_HEAD) == 1


def test_of_all_lengths_only_those_that_hold_the_head_can_cut_and_none_is_below_0x740000() -> None:
    # A search for t, 0, 0 distinguishes only t, zero, and other bytes: these 81 lengths represent all 2**32.
    found = set()
    for length in itertools.product((0, ord("t"), 1), repeat=4):
        for behind in itertools.product(b"xt", repeat=2):
            # After an empty text comes another column's kind, or the end.
            next_to = bytes(behind) if any(length) else bytes(behind[1:])
            head = b"t" + bytes(length) + next_to
            if head.find(TEXT_HEAD, 1) >= 0:
                found.add(length)
    t = ord("t")
    assert found == {(high, t, 0, 0) for high in (0, t, 1)} | {(t, 0, 0, low) for low in (0, t, 1)}
    assert min(int.from_bytes(length, "big") for length in found) == MISLEADING


@pytest.mark.parametrize("length", [MISLEADING - 1, MISLEADING, MISLEADING + 1, MISLEADING | 0x1000000])
@pytest.mark.parametrize("place", range(3))
def test_the_fast_splitter_reads_a_text_with_a_misleading_length(length: int, place: int) -> None:
    columns = [text(b"x"), text(b"t"), text(b"y")]
    columns[place] = text(b"z" * length)
    payload = insert(*columns)
    assert splitter(3)(payload, 6) == split_tuple(payload, 6)[0]


def test_the_fast_splitter_reads_every_mixture_of_columns() -> None:
    long = text(b"l" * 0x10000)
    misleading = text(b"m" * MISLEADING)
    kinds = (text(b""), text(b"t"), long, misleading, b"n", b"u")
    split = splitter(3)
    for columns in itertools.product(kinds, repeat=3):
        payload = insert(*columns)
        assert split(payload, 6) == split_tuple(payload, 6)[0]


@pytest.mark.parametrize("place", range(27))
def test_a_chance_cut_in_the_heads_of_frame_and_message_is_none(place: int) -> None:
    head = bytearray(b"w" + bytes(24) + b"I" + bytes(4) + b"N")
    head[place + 1 : place + 4] = TEXT_HEAD
    for columns in ([text(b"x"), text(b"y")], [text(b"x"), b"n"], [text(b"x" * 0x10000), text(b"y")]):
        frame = bytes(head) + b"\0\2" + b"".join(columns)
        assert splitter(2)(frame, len(head)) == split_tuple(frame, len(head))[0]
