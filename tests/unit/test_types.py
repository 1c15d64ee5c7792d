"""Type families that tests with a reader or a server don't cover."""

import io
import itertools
import re
from datetime import date, timedelta

import fastavro
import pytest

from bwtui.types import datetimes
from bwtui.types.arrays import QUOTED, array_codec, encode_hstore, unescaped
from bwtui.types.codec import Unholdable
from bwtui.types.datetimes import encode_date, encode_time, encode_timestamp, encode_timestamptz
from bwtui.types.numbers import INT4, avro_decimal, declared, encode_money, numeric_codec, to_bytes, unscaled
from bwtui.types.registry import TypeInfo, codec_for
from bwtui.types.strings import encode_char
from bwtui.types.varint import long

NUMERIC, TEXT, BOX_ARRAY = 1700, 25, 1020


@pytest.mark.parametrize(
    ("typmod", "modifier", "decimal"),
    [
        ((10 << 16 | 2) + 4, (10, 2), (10, 2)),
        ((1000 << 16 | 1000) + 4, (1000, 1000), (1000, 1000)),
        ((3 << 16 | (-2 & 0x7FF)) + 4, (3, -2), (5, 0)),
        ((2 << 16 | 4) + 4, (2, 4), (4, 4)),
        ((1 << 16 | (-1000 & 0x7FF)) + 4, (1, -1000), (1001, 0)),
    ],
)
def test_declared_numerics(typmod: int, modifier: tuple[int, int], decimal: tuple[int, int]) -> None:
    assert declared(typmod) == modifier
    assert avro_decimal(*modifier) == decimal


def test_a_numeric_without_a_modifier_is_text_of_any_length() -> None:
    assert declared(-1) is None
    codec = numeric_codec(-1)
    assert codec.avro == "string"
    assert codec.encode(b"9" * 131_072).endswith(b"9" * 131_072)


def test_decimal_bytes_are_the_shortest() -> None:
    for number in (*range(-70_000, 70_000, 7), -128, -129, 127, 128, -32768, -32769, 32767, 32768):
        data = to_bytes(number)
        assert int.from_bytes(data, "big", signed=True) == number
        if len(data) > 1:
            with pytest.raises(OverflowError):
                number.to_bytes(len(data) - 1, "big", signed=True)


@pytest.mark.parametrize("text", [b"1.5", b"1", b"1.555", b"x", b"", b"9" * 5000 + b".00"])
def test_a_decimal_of_another_scale_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"2 decimal places|invalid literal"):
        unscaled(text, 2)


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity"])
def test_not_numbers_take_the_escape(text: bytes) -> None:
    with pytest.raises(Unholdable):
        unscaled(text, 2)


@pytest.mark.parametrize(
    "text",
    [b"infinity", b"-infinity", b"0044-03-15 BC", b"10000-01-01", b"294276-12-31", b"5874897-12-31"],
)
def test_days_that_calendars_lack_take_the_escape(text: bytes) -> None:
    clock = b"" if b"infinity" in text else b" 01:02:03.5"
    day, _, era = text.partition(b" ")
    moment = day + clock
    with pytest.raises(Unholdable):
        encode_date(text)
    with pytest.raises(Unholdable):
        encode_timestamp(moment + (b" " + era if era else b""))
    with pytest.raises(Unholdable):
        encode_timestamptz(moment + (b"+00" if clock else b"") + (b" " + era if era else b""))


@pytest.mark.parametrize(
    "text", [b"2024-05-06 01:02:03+02", b"2024-05-06 01:02:03", b"06/05/2024", b"2024-05-06", b""]
)
def test_a_moment_in_another_style_or_zone_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not an ISO") as caught:
        encode_timestamptz(text)
    assert not isinstance(caught.value, Unholdable)


def test_the_caches_of_days_and_hours_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datetimes, "_CACHED", 100)
    codec = codec_for(1184, -1, {})
    assert codec.inline is not None
    hours, dates = codec.inline.names["HOURS"], codec.inline.names["DATES"]
    assert isinstance(hours, dict)
    assert isinstance(dates, dict)
    for number in range(1000):
        day = (date(2000, 1, 1) + timedelta(number)).isoformat().encode()
        assert hours[day + b" 01"] % 7_200_000_000 == 0
        assert dates[day][:1] == b"\x02"
        assert len(hours) <= 100
        assert len(dates) <= 101
    assert dates[None] == b"\x00"


def test_midnight_at_the_end_of_a_day_takes_the_escape() -> None:
    assert encode_time(b"23:59:59.999999") == long(86_399_999_999)
    with pytest.raises(Unholdable):
        encode_time(b"24:00:00")


def test_money() -> None:
    assert encode_money(b"-$1,234.56") == long(3) + to_bytes(-123456)
    with pytest.raises(ValueError, match="lc_monetary"):
        encode_money("1.234,56 €".encode())


def test_the_high_half_of_char_is_written_as_postgresql_16_does() -> None:
    assert encode_char(b"a") == b"\x02a"
    assert encode_char(b"\xe9") == b"\x08\\351"
    assert encode_char(b"") == b"\x00"
    # A server of version 14 or 15 in LATIN1 converts the byte like any character.
    assert encode_char("é".encode()) == b"\x04" + "é".encode()


def read_array(data: bytes) -> object:
    return fastavro.schemaless_reader(io.BytesIO(data), {"type": "array", "items": ["null", "int"]}, None)


def test_arrays_with_another_delimiter() -> None:
    codec = array_codec(INT4, ";")
    assert read_array(codec.encode(b"{1;NULL;-3}")) == [1, None, -3]
    assert codec.pg_type == "integer[]"
    assert codec_for(BOX_ARRAY, -1, {}).encode(b"{(1,1),(0,0);NULL}").startswith(long(2))


@pytest.mark.parametrize(
    "text", [b"{{1}}", b"[0:0]={1}", b"", b"{", b"1", b'{"1}', b'{"1"2}', b'{1,"2",}', rb'{"\a"}']
)
def test_what_is_no_plain_list_takes_the_escape(text: bytes) -> None:
    with pytest.raises(Unholdable):
        array_codec(INT4).encode(text)


@pytest.mark.parametrize("text", [b"7", b"NULL", b'"a \\\\ b"', b"12345"])
def test_an_array_that_is_read_some_at_a_time_is_whole(text: bytes) -> None:
    for count in (1, 585, 820, 821, 4096, 10_000):
        for tail in (b"x", b'"y z"'):
            data = codec_for(1009, -1, {}).encode(
                b"{" + text + (b"," + text) * (count - 1) + b"," + tail + b"}"
            )
            found = fastavro.schemaless_reader(
                io.BytesIO(data), {"type": "array", "items": ["null", "string"]}, None
            )
            value = None if text == b"NULL" else text.strip(b'"').replace(b"\\\\", b"\\").decode()
            assert found == [value] * count + [tail.strip(b'"').decode()]


def test_quoted_parts_are_those_of_array_out_and_hstore_out() -> None:
    for number in range(7):
        for characters in itertools.product(b'"\\ab', repeat=number):
            text = bytes(characters)
            quoted = text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            assert re.fullmatch(QUOTED, b'"%b"' % quoted, re.DOTALL)
            assert unescaped(quoted) == text


@pytest.mark.parametrize("text", [b'"a"', b"a=>b", b'"a"=>"b"x', b"[1,2]", rb'"a"=>"\b"'])
def test_what_is_no_hstore_takes_the_escape(text: bytes) -> None:
    with pytest.raises(Unholdable):
        encode_hstore(text)


def test_domains_end_in_their_base_and_a_circle_of_them_in_text() -> None:
    catalog = {
        1: TypeInfo(1, "outer", "s", "d", 2),
        2: TypeInfo(2, "inner", "s", "d", NUMERIC, (5 << 16 | 1) + 4),
        3: TypeInfo(3, "list", "s", "b", element_oid=1),
        4: TypeInfo(4, "circle", "s", "d", 4),
    }
    assert codec_for(1, -1, catalog).pg_type == "numeric(5,1)"
    assert codec_for(3, -1, catalog).pg_type == "numeric(5,1)[]"
    assert codec_for(4, -1, catalog).as_text


def test_text_that_is_no_utf8_takes_the_escape_only_where_it_can_be() -> None:
    assert not codec_for(TEXT, -1, {}).escapes
    codec = codec_for(TEXT, -1, {}, any_bytes=True)
    assert codec.escapes
    assert codec.encode("ß".encode()) == b"\x04\xc3\x9f"
    with pytest.raises(Unholdable):
        codec.encode(b"\xff")
    with pytest.raises(Unholdable):
        codec_for(1009, -1, {}, any_bytes=True).encode(b"{a,\xff}")
