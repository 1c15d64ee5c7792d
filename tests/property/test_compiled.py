"""Encoding many rows at once, in Python and in C, gives the same bytes as encoding each row alone."""

import gc
import hashlib
import re
import struct
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bwtui.compiled
from bwtui.encode import compiled_encoders
from bwtui.encode.avro import EncodeError, build_encoder
from bwtui.encode.compiled_encoders import CompiledEncoders
from bwtui.encode.lines import Both, encode_lines
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.messages import UNCHANGED, Binary, Column, Field, Relation
from bwtui.pgoutput.tuples import DecodeError, last_tuple
from tests.compiled_twin import COMPILER, SOURCE, built
from tests.property.test_any_row import Table, copy_line
from tests.property.values import CATALOG, SIMPLE, numeric_typmod, tables

#: Making a table takes far longer than testing it.
few = settings(max_examples=settings().max_examples // 4)
HEADERS = [("bwtui.session", b"x")]
#: Without a compiler the C extension can't be installed, so only Python is tested.
WAYS = ["python", "compiled"] if COMPILER else ["python"]
#: For each compiled kind: usual values, and odd values that it supports as well.
USUAL: list[tuple[int, int, list[Field]]] = [
    (20, -1, [b"7", b"-42", b"0", b"16384", b"-999999999999999999", b"999999999999999999", None]),
    (20, -1, [b"1234567890123456789", b"9223372036854775807", b"-9223372036854775807"]),
    (23, -1, [b"2147483647", b"-2147483648", b"63", b"64", b"-64", b"-65", None]),
    (16, -1, [b"t", b"f", None]),
    (25, -1, [b"", b"x", "größe, 日本, 🦆".encode(), b"a\tb\nc\\d\r\b\f\v", b"\\N", b"y" * 8192, None]),
    (2950, -1, [b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None]),
    (1700, numeric_typmod(18, 2), [b"0.00", b"-1.28", b"1.28", b"-0.01", b"9999999999999999.99", None]),
    (1700, numeric_typmod(9, 0), [b"0", b"-128", b"127", b"128", b"-32768", b"999999999", None]),
    (1700, numeric_typmod(2, 4), [b"0.0099", b"-0.0001", None]),
    (1082, -1, [b"2024-02-29", b"0001-01-01", b"9999-12-31", b"1970-01-01", b"1969-12-31", None]),
    (1114, -1, [b"2024-05-06 07:08:09.12", b"1969-12-31 23:59:59.999999", b"0001-01-01 00:00:00", None]),
    (1184, -1, [b"2024-05-06 07:08:09.123456+00", b"1970-01-01 00:00:00+00", b"2000-02-29 23:59:59.1+00"]),
    (700, -1, [b"1.5", b"-0", b"1e-45", b"3.4028235e+38", None]),
    (701, -1, [b"0.1", b"-0", b"5e-324", b"1.7976931348623157e+308", None]),
]
#: Values that Python's or C's parsers might accept wrongly; each is tried for every kind.
ODD = (
    b"", b"-", b"+1", b" 1", b"1 ", b"1_000", b"0x10", b"01", b"-0", b"1\0", b"999999999999999999999",
    b"-9223372036854775808", b"9223372036854775808", b"-9223372036854775809", b"9999999999999999999",
    b"123456789012345678x", b"x123456789012345678", b"-123456789012345678.",
    b"NaN", b"Infinity", b"inf", b"1e999", b"1e5", b"7.038531e-26", b"33554433",
    b"-7.038531e-26", b".5", b"5.", b"-.5", b"1.5", b"-1.50", b"1.2.3",
    b"true", b"T", b"2024-02-30", b"2023-02-29", b"1900-02-29", b"2024-13-01", b"0000-01-01", b"2024-1-01",
    b"20240101", b"2024-01-01 ", b"10000-01-01", b"infinity", b"2024-01-01 24:00:00",
    b"2024-01-01 23:60:00", b"2024-01-01 23:59:60", b"2024-01-01T00:00:00", b"2024-01-01 00:00:00.",
    b"2024-01-01 00:00:00.1234567", b"2024-01-01 00:00:00+01", b"2024-01-01 00:00:00.5+00",
    b"0044-03-15 00:00:00 BC", b"+00", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80",
    b"\xe2\x82", b"x" * 65_536, b"x" * 65_537,
)  # fmt: skip


@pytest.fixture(params=WAYS, scope="module")
def way(request: pytest.FixtureRequest) -> Any:
    """Return the C extension, or None for Python."""
    return built() if request.param == "compiled" else None


def encoders(columns: tuple[Column, ...], keys: tuple[str, ...], way: Any) -> tuple[Both, CompiledEncoders]:
    """Return Python's encoder, and the encoders to compare with it."""
    encoder = build_encoder(Relation(1, "s", "t", "d", columns), keys, CATALOG)
    bound = encoder.bind(1 if keys else None, 2)
    plain = compiled_encoders.in_python(*bound.records)
    made = compiled_encoders.twin(*bound.records, package=way)
    if way is None:
        assert made is None
        return plain, CompiledEncoders(
            plain, partial(encode_lines, plain), partial(one_row, plain), lambda *_: []
        )
    assert made is not None
    return plain, made


def one_row(plain: Both, frame: bytes, _: Any, __: int, offset: int, time: int, *___: Any) -> Any:
    """Return the result of ``Encoder.rows`` for a supported frame, made with Python's encoder."""
    key, value = plain(last_tuple(frame, offset))
    return [(key, value, time, None)], [], len(key or b"") + len(value), 0, None


def framed(run: Any, frame: bytes, offset: int) -> Any:
    """Return key and value of a row that extends from an offset to the end of the frame, or None."""
    messages, taken, size, held, rest = run(frame, iter(()), 1, offset, 5, 1, 1 << 40, 1 << 40, False, {})
    assert (taken, held) == ([], 0)
    if not messages:
        assert (size, rest) == (0, frame)
        return None
    ((key, value, time, headers),) = messages
    assert (time, headers, size, rest) == (5, None, len(key or b"") + len(value), None)
    return key, value


def outcome(encode: Any, argument: Any) -> Any:
    try:
        return encode(argument)
    except EncodeError as error:
        return error.column, error.reason, error.hint


def tuple_data(row: Sequence[Field]) -> bytes:
    """Return a row as pgoutput sends it."""
    parts = [struct.pack(">H", len(row))]
    for field in row:
        if isinstance(field, bytes):
            kind = b"b" if isinstance(field, Binary) else b"t"
            parts += (kind, struct.pack(">I", len(field)), field)
        else:
            parts.append(b"n" if field is None else b"u")
    return b"".join(parts)


def compare(plain: Both, twin: CompiledEncoders, rows: list[list[Field]]) -> int:
    """Compare the results for rows; return the number of rows that were left to be encoded one by one."""
    wanted = [outcome(plain, row) for row in rows]
    assert [outcome(twin.both, row) for row in rows] == wanted
    whole = [outcome(lambda row: framed(twin.run, b"head" + tuple_data(row), 4), row) for row in rows]
    assert all(made is None or made == one for made, one in zip(whole, wanted, strict=True))
    found = twin.lines([copy_line(row) for row in rows], 5, HEADERS)
    assert [n for n, message in enumerate(found.messages) if message is None] == found.holes
    for message, one in zip(found.messages, wanted, strict=True):
        assert message is None or message == (*one, 5, HEADERS)
    sizes = [len(key or b"") + len(value or b"") for key, value, _, _ in filter(None, found.messages)]
    assert (found.size, found.largest) == (sum(sizes), max(sizes, default=0))
    return len(found.holes) + whole.count(None)


def odd(texts: Sequence[bytes]) -> list[list[Field]]:
    return [[b"1", text] for text in texts]


@few
@given(table=tables(), is_keyed=st.booleans())
def test_any_row_of_any_table_has_the_same_bytes(way: Any, table: Table, is_keyed: bool) -> None:
    columns, rows = table
    keys = tuple(column.name for column in columns[::2]) if is_keyed else ()
    texts: list[list[Field]] = [[sample.text for sample in row] for row in rows]
    compare(*encoders(columns, keys, way), texts)


@few
@given(table=tables(), data=st.data())
def test_garbage_has_the_same_end(way: Any, table: Table, data: st.DataObject) -> None:
    columns, rows = table
    row: list[Field] = [sample.text for sample in rows[0]]
    index = data.draw(st.integers(0, len(row) - 1))
    text = row[index] or b""
    assert isinstance(text, bytes)
    at = data.draw(st.integers(0, len(text)))
    piece = data.draw(
        st.binary(max_size=2) | st.sampled_from((b"_", b" ", b"+", b"-", b".", b"0", b"e", b":"))
    )
    row[index] = text[:at] + piece + text[at + data.draw(st.integers(0, 2)) :]
    compare(*encoders(columns, (columns[0].name,), way), [row])


@given(
    lines=st.lists(
        st.lists(
            st.sampled_from(
                (b"\\", b"\t", b"N", b"\n", b"x", b"1", b"t", b"\\N", b"\\\\", b"\xc3\xa4", b"\xff")
            )
        ).map(b"".join)
    )
)
def test_any_line_has_the_bytes_of_its_fields(way: Any, lines: list[bytes]) -> None:
    columns = (Column("a", 25, -1, True), Column("b", 23, -1, False), Column("c", 25, -1, False))
    plain, twin = encoders(columns, ("a",), way)
    if way is None:
        lines = [line for line in lines if b"\\x" not in line]
    for line, message in zip(lines, twin.lines(lines, 5, None).messages, strict=True):
        if message is not None:
            assert message == (*plain(unescape_copy_line(line)), 5, None)


@few
@given(table=tables(), data=st.data())
def test_any_frame_has_the_bytes_of_its_fields_or_none(way: Any, table: Table, data: st.DataObject) -> None:
    """The frames are cut, lengthened and changed anywhere; a rejected frame is left to the general path."""
    columns, rows = table
    plain, twin = encoders(columns, (columns[0].name,), way)
    whole = tuple_data([sample.text for sample in rows[0]])
    at, upto = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, len(whole)))
    frame = b"I" + whole[:at] + data.draw(st.binary(max_size=3)) + whole[max(at, upto) :]
    try:
        made = framed(twin.run, frame, 1)
    except (DecodeError, EncodeError):
        assert way is None
        return
    if made is not None:
        assert made == plain(last_tuple(frame, 1))


@pytest.mark.skipif(not COMPILER, reason="what is compiled can't be there without a compiler")
def test_a_frame_is_read_from_within_its_bytes() -> None:
    encoder = built().Encoder(None, (b"h", ((0, 3, 0, None), (1, 3, 0, None)), False), 2, list)
    run, frame = encoder.rows, b"w" + tuple_data([b"ab", None])
    assert framed(run, frame, 1) == (None, b"h\2\4ab\0")
    assert framed(run, frame, 2) is framed(run, frame, len(frame)) is None
    for cut in range(1, len(frame)):
        assert framed(run, frame[:cut], 1) is None
    assert framed(run, frame + b"n", 1) is None
    for length in (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\4"):
        assert framed(run, frame.replace(b"\0\0\0\2ab", length + b"ab"), 1) is None
    rest: tuple[Any, ...] = 5, 1, 9, 9, False, {}
    for begin, offset in ((0, 1), (2, 1), (1, len(frame) + 1), (-1, 1), (1, 1 << 40), (1, -1)):
        with pytest.raises(ValueError, match="offsets within"):
            run(frame, iter(()), begin, offset, *rest)
    for wrongly in ((frame,), (bytearray(frame), iter(()), 1, 1, *rest), (frame, iter(()), 1, "1", *rest)):
        with pytest.raises(TypeError):
            run(*wrongly)
    with pytest.raises(ValueError, match="iterator"):
        run(frame, [frame], 1, 1, *rest)
    with pytest.raises(OverflowError):
        run(frame, iter(()), 1, 1 << 70, *rest)


@pytest.mark.skipif(not COMPILER, reason="what is compiled can't be there without a compiler")
def test_values_complete_the_frame_that_they_were_read_for_or_none() -> None:
    encoder = built().Encoder(None, (b"h", ((0, 3, 0, None), (1, 3, 0, None)), False), 2, list)
    frame = b"w" + tuple_data([b"ab", UNCHANGED])
    another = bytes(bytearray(frame))
    wrong: list[Any] = [
        (),
        (frame,),
        (frame, 0),
        (another, 1, b"x"),
        (frame, 1, UNCHANGED),
        (frame, 2, b"x", b"y"),
    ]
    for values in (*wrong, [frame, 1, b"x"], (frame, 70_000, b"x" * 70_000), None):
        found = encoder.rows(frame, iter(()), 1, 1, 5, 1, 9, 9, True, {id(frame): values})
        assert found == ([], [], 0, 0, frame)
    for value, made in ((b"x", b"h\2\4ab\2\2x"), (None, b"h\2\4ab\0")):
        read = {id(frame): (frame, 1, value)}
        for keep in (True, False):
            found = encoder.rows(frame, iter(()), 1, 1, 5, 1, 9, 9, keep, read)
            held = (len(frame) + len(value or b"")) * keep
            assert found == ([(None, made, 5, None)], [frame], len(made), held, None)


@pytest.mark.skipif(not COMPILER, reason="what is compiled can't be there without a compiler")
def test_rows_that_lack_columns_are_found_by_valid_arguments_only() -> None:
    lacking = built().Encoder(None, (b"h", ((0, 3, 0, None), (1, 3, 0, None)), False), 2, list).lacking
    frame = b"wU" + struct.pack(">I", 7) + b"N" + tuple_data([b"ab", UNCHANGED])
    rest: tuple[Any, ...] = 7, 5, (1,), ((0, "id"),), 9
    assert lacking([frame], {}, 1, *rest) == [(frame, 5, {"id": b"ab"})]
    assert lacking([frame], {}, 1, 8, *rest[1:]) == lacking([frame], {id(frame): ()}, 1, *rest) == []
    # A column that the rows don't have.
    absent: list[tuple[Any, Any]] = [
        ((1, 2), ((0, "id"),)),
        ((1,), ((0, "id"), (2, "b"))),
        ((1,), ((0, "id"), (0, "b"))),
    ]
    for missing, key in absent:
        assert lacking([frame], {}, 1, 7, 5, missing, key, 9) == [(frame, 5)]
    for begin in (2, 9, len(frame), 1 << 40):
        assert len(lacking([frame], {}, begin, *rest)) <= 1
    with pytest.raises(ValueError, match="offset"):
        lacking([frame], {}, 0, *rest)
    invalid: list[tuple[Any, Any]] = [
        ((-1,), ()),
        ((1 << 70,), ()),
        (("1",), ()),
        ((), (0,)),
        ((), ((0, b"id"),)),
    ]
    for missing, key in invalid:
        with pytest.raises(ValueError, match="names"):
            lacking([frame], {}, 1, 7, 5, missing, key, 9)
    wrong: list[tuple[Any, ...]] = [
        (7, {}, 1, *rest),
        ([frame], None, 1, *rest),
        ([bytearray(frame)], {}, 1, *rest),
        ([frame], {}, 1, 7, 5, [1], (), 9),
    ]
    for wrongly in wrong:
        with pytest.raises(TypeError):
            lacking(*wrongly)


#: Frames of two tables and three kinds, with rows that make no message, and bytes that are not a frame.
arrivals = st.one_of(
    st.builds(
        lambda head, row, tail: head + tuple_data(row) + tail,
        st.sampled_from([b"wI1", b"wI2", b"wU1", b"kI1"]),
        st.lists(st.sampled_from([b"", b"ab", b"x" * 40, b"\xff", None]), min_size=1, max_size=2),
        st.sampled_from([b"", b"", b"", b"n"]),
    ),
    st.sampled_from([b"", b"w", b"wI1", None, 7, bytearray(b"wI1")]),
)


@pytest.mark.skipif(not COMPILER, reason="what is compiled can't be there without a compiler")
@given(
    first=arrivals.filter(lambda frame: isinstance(frame, bytes) and len(frame) >= 3),
    others=st.lists(arrivals, max_size=12),
    most=st.integers(-1, 9),
    most_bytes=st.integers(-1, 200),
    most_message=st.integers(0, 60),
    keep=st.booleans(),
)
def test_rows_of_a_run_are_those_of_its_frames(
    first: Any, others: list[Any], most: int, most_bytes: int, most_message: int, keep: bool
) -> None:
    run = built().Encoder(None, (b"h", ((0, 3, 0, None), (1, 3, 0, None)), False), 2, list).rows
    left = iter(others)
    found = run(first, left, 1, 3, 5, most, most_bytes, most_message, keep, {})
    messages: list[Any] = []
    taken: list[Any] = []
    size = held = 0
    arrived = iter(others)
    frame = first
    while isinstance(frame, bytes) and frame[:3] == first[:3]:
        both = framed(run, frame, 3)
        if both is None or len(both[1]) > most_message:
            break
        messages.append((*both, 5, None))
        size += len(both[1])
        if keep:
            taken.append(frame)
            held += len(frame)
        frame = None
        if len(messages) >= most or size + held >= most_bytes or (frame := next(arrived, None)) is None:
            break
    assert found == (messages, taken, size, held, frame)
    assert list(left) == list(arrived)


@pytest.mark.skipif(not COMPILER, reason="what is compiled can't be there without a compiler")
def test_what_ends_a_run_with_an_error_is_told() -> None:
    run = built().Encoder(None, (b"h", ((0, 3, 0, None),), False), 1, list).rows

    def arrived() -> Iterator[bytes]:
        yield frame
        raise OSError("gone")

    frame = b"wI1" + tuple_data([b"ab"])
    with pytest.raises(OSError, match="gone"):
        run(frame, arrived(), 1, 3, 5, 9, 999, 999, True, {})


@pytest.mark.parametrize(("oid", "typmod", "texts"), USUAL)
def test_usual_values_are_never_left_out(way: Any, oid: int, typmod: int, texts: list[Field]) -> None:
    columns = (Column("id", 20, -1, True), Column("a", oid, typmod, False), Column("b", oid, typmod, True))
    rows: list[list[Field]] = [[b"%d" % number, text, text] for number, text in enumerate(texts)]
    assert compare(*encoders(columns, ("id", "b"), way), rows) == 0
    assert compare(*encoders(columns, (), way), rows) == 0


@pytest.mark.parametrize("oid", sorted(SIMPLE))
def test_odd_values_have_the_same_end(way: Any, oid: int) -> None:
    columns = (Column("id", 20, -1, True), Column("a", oid, -1, False))
    compare(*encoders(columns, ("id", "a"), way), odd(ODD))


@pytest.mark.parametrize("scale", [0, 1, 2, 17, 18, 1000])
def test_odd_decimals_have_the_same_end(way: Any, scale: int) -> None:
    columns = (Column("id", 20, -1, True), Column("a", 1700, numeric_typmod(1000, scale), False))
    more = [
        b"%s%d.%s" % (sign, 10**n - 1, b"9" * scale) for sign in (b"", b"-") for n in (0, 1, 16, 17, 18, 19)
    ]
    compare(*encoders(columns, ("id",), way), odd((*ODD, *more)))


@pytest.mark.parametrize("content", [None, "", "ABI_VERSION = 0"])
def test_what_is_no_package_of_this_version_is_as_good_as_none(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "bwtui_compiled", raising=False)
    # Nothing else is on the path: an installed package takes precedence over a folder without a file.
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    folder = tmp_path / "bwtui_compiled"
    folder.mkdir()
    if content is not None:
        (folder / "__init__.py").write_text(content)
    try:
        assert bwtui.compiled.load() is None
    finally:
        sys.modules.pop("bwtui_compiled", None)


def test_what_changes_the_bytes_raises_the_version() -> None:
    """An installed older package would continue to make the former bytes."""
    package = Path(compiled_encoders.__file__).parents[1]
    kinds = sorted(one for one in (package / "types").glob("*.py") if "compiled" in one.read_text())
    assert len(kinds) >= 5
    digest = hashlib.sha256()
    said = (
        SOURCE,
        package / "compiled.py",
        package / "encode" / "compiled_encoders.py",
        package / "encode" / "encoder_generator.py",
    )
    for path in (*said, *kinds):
        for line in path.read_text().splitlines():
            # Comments and the version itself do not change the bytes.
            if line.strip() and not re.match(r"\s*#:? |ABI_VERSION = |SOURCES = |#define ABI_VERSION", line):
                digest.update(f"{line}\n".encode())
    found = digest.hexdigest()[:16]
    assert found == bwtui.compiled.SOURCES, (
        "what makes a row's bytes has changed, here or in packaging/compiled. Where any row's bytes, or what "
        "both say to each other, are others now, raise ABI_VERSION in both. "
        f"Then write SOURCES = {found!r} beside it."
    )


def test_a_row_that_is_no_list_of_texts_has_the_same_end(way: Any) -> None:
    columns = (Column("id", 20, -1, True), Column("a", 25, -1, False))
    plain, twin = encoders(columns, ("id",), way)
    rows: list[Any] = [
        (b"1", b"x"),
        [b"1"],
        [b"1", b"x", b"y"],
        [b"1", UNCHANGED],
        [UNCHANGED, b"x"],
        [b"1", Binary(b"x")],
    ]
    for row in rows:
        assert outcome(twin.both, row) == outcome(plain, row)


def test_tables_of_no_and_of_1600_columns(way: Any) -> None:
    columns = tuple(Column(f"c{n}", (20, 25, 16, 1184)[n % 4], -1, n == 0) for n in range(1600))
    texts: list[Field] = [b"1", "ä\n".encode(), b"t", b"2024-05-06 07:08:09+00"] * 400
    rows: list[list[Field]] = [
        texts,
        [None] * 1600,
        [text if n % 3 else None for n, text in enumerate(texts)],
    ]
    assert compare(*encoders(columns, ("c0",), way), rows) == 0
    bound = build_encoder(Relation(1, "s", "t", "d", ()), (), CATALOG).bind(None, 2)
    assert compiled_encoders.twin(*bound.records, package=way) is None


@pytest.mark.long
def test_a_value_of_100_mb(way: Any) -> None:
    columns = (Column("id", 20, -1, True), Column("a", 25, -1, False))
    plain, twin = encoders(columns, ("id",), way)
    large = b"x" * (100 << 20)
    wanted = plain([b"1", large])
    assert twin.both([b"1", large]) == wanted
    assert framed(twin.run, b"w" + tuple_data([b"1", large]), 1) in (None, wanted)
    found = twin.lines([b"1\t" + large + b"\n", b"2\ty\n"], 5, None)
    assert found.messages[0] in (None, (*wanted, 5, None))
    assert found.messages[1] == (*plain([b"2", b"y"]), 5, None)


@pytest.mark.skipif(not COMPILER, reason="what is compiled can't be there without a compiler")
def test_a_function_in_python_may_encode_another_row_meanwhile_or_stop_all() -> None:
    package = built()

    def plain(fields: Any) -> tuple[bytes, bytes]:
        return b"plain", b"%d" % len(fields)

    def encode(text: bytes) -> bytes:
        if text == b"stop":
            raise KeyboardInterrupt
        if text == b"odd":
            raise ValueError
        row.clear()
        assert inner([b"1"]) == (b"plain", b"1")
        assert inner.lines([b"1\n"], 5, None) == ([None], 0, 0)
        assert framed(inner.rows, b"w" + tuple_data([b"1"]), 1) is None
        return text

    inner = package.Encoder(None, (b"h", ((0, 1, 0, None),), False), 1, plain)
    outer = package.Encoder(None, (b"h", ((1, 0, 0, encode), (0, 3, 0, None)), True), 2, plain)
    row = [b"ab", b"cd"]
    assert outer(row) == (None, b"h\2cd\2\4ab\0")
    assert row == []
    with pytest.raises(KeyboardInterrupt):
        outer([b"ab", b"stop"])
    with pytest.raises(KeyboardInterrupt):
        framed(outer.rows, b"w" + tuple_data([b"ab", b"stop"]), 1)
    assert framed(outer.rows, b"w" + tuple_data([b"ab", b"odd"]), 1) is None
    with pytest.raises(KeyboardInterrupt):
        outer.lines([b"ab\tcd\n", b"ab\tstop\n"], 5, None)
    assert outer([b"ab", b"odd"]) == (b"plain", b"2")
    assert inner([b"1"]) == (None, b"h\2\2")
    for wrong in (
        (None, (b"", ((1, 1, 0, None),), False), 1, plain),
        (None, (b"", ((0, 99, 0, None),), False), 1, plain),
    ):
        with pytest.raises(ValueError, match="no such column"):
            package.Encoder(*wrong)


@pytest.mark.skipif(not COMPILER, reason="what is compiled can't be there without a compiler")
def test_a_finalizer_may_encode_another_row_while_one_is_taken() -> None:
    width = 30  # Python keeps some shorter tuples for reuse and does not garbage-collect then.
    columns = tuple((number, 3, 0, None) for number in range(width))
    encode = built().Encoder(None, (b"", columns, False), width, lambda row: None)
    row, ended = [b"mine"] * width, []

    class Loop:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            ended.append(encode([b"another's"] * width))

    wanted, before = encode(row), gc.get_threshold()
    Loop()
    gc.set_threshold(1)
    try:
        found = encode(row)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert ended == [(None, b"\2\22another's" * width)]
    assert found == wanted
