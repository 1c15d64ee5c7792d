"""Random columns with random values: PostgreSQL's text, and the Python value that a reader must find.

This code formats the texts from the Python values, independently of the encoder.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from struct import pack, unpack
from typing import Any

from hypothesis import strategies as st

from bwtui.pgoutput.messages import Column, Field
from bwtui.types.registry import TypeInfo


@dataclass(frozen=True)
class Escaped:
    """A value that is sent as text in the escape field."""

    text: str


@dataclass(frozen=True)
class Sample:
    """A field as PostgreSQL sends it, and a reader's result: a value, None, or Escaped."""

    text: Field
    value: Any


def _sample(value: Any, text: str | bytes) -> Sample:
    return Sample(text.encode() if isinstance(text, str) else text, value)


def _escaped(text: str) -> Sample:
    return Sample(text.encode(), Escaped(text))


def integers(bits: int, signed: bool = True) -> st.SearchStrategy[Sample]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    edges = [1 << shift for shift in range(bits)]
    near = st.sampled_from(edges).flatmap(lambda edge: st.sampled_from([edge - 1, edge, -edge, -edge - 1]))
    numbers = st.integers(low, high) | near.filter(lambda n: low <= n <= high)
    return numbers.map(lambda n: _sample(n, str(n)))


def _float_text(number: float) -> str:
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "Infinity" if number > 0 else "-Infinity"
    return repr(number).removesuffix(".0")


def doubles() -> st.SearchStrategy[Sample]:
    # Texts can express only one NaN.
    return st.floats().map(lambda x: float("nan") if x != x else x).map(lambda x: _sample(x, _float_text(x)))


def floats() -> st.SearchStrategy[Sample]:
    def sample(x: float) -> Sample:
        if x != x or x in (float("inf"), float("-inf")):
            return _sample(x, _float_text(x))
        # Nine significant digits identify every float, though PostgreSQL finds shorter ones.
        return _sample(unpack("<f", pack("<f", x))[0], f"{x:.9g}")

    return st.floats(width=32).map(lambda x: float("nan") if x != x else x).map(sample)


def strings(max_size: int = 200) -> st.SearchStrategy[Sample]:
    anything = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=max_size)
    return (anything | st.sampled_from(("\\N", "\\", "\t", "a\nb", "t", "x" * 8192))).map(
        lambda s: _sample(s, s)
    )


def byteas() -> st.SearchStrategy[Sample]:
    return st.binary(max_size=100).map(lambda b: _sample(b, "\\x" + b.hex()))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Sample]:
    def sample(unscaled: int) -> Sample:
        number = Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))
        text = f"{number:f}"
        # With a negative scale, Avro's is 0: the number is the same, with its zeros written out.
        return _sample(Decimal(text) if scale < 0 else number, text)

    odd = st.sampled_from(("NaN", "Infinity", "-Infinity")).map(_escaped)
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(sample) | odd


def dates() -> st.SearchStrategy[Sample]:
    odd = ("infinity", "-infinity", "0044-03-15 BC", "4714-11-24 BC", "10000-01-01", "5874897-12-31")
    return st.dates().map(lambda d: _sample(d, d.isoformat())) | st.sampled_from(odd).map(_escaped)


def _moment_text(moment: datetime) -> str:
    text = moment.strftime(f"{moment.year:04d}-%m-%d %H:%M:%S")
    return f"{text}.{moment.microsecond:06d}".rstrip("0") if moment.microsecond else text


def timestamps(zone: str) -> st.SearchStrategy[Sample]:
    tz = UTC if zone else None
    odd = ["infinity", "-infinity"]
    odd += [
        f"{t}{zone}{era}" for t, era in (("0044-03-15 12:00:00", " BC"), ("0001-01-01 01:02:03.5", " BC"))
    ]
    odd += [f"{t}{zone}" for t in ("10000-01-01 00:00:00", "294276-12-31 23:59:59.999999")]
    moments = st.datetimes() | st.datetimes(datetime(1969, 12, 1), datetime(1970, 3, 1))
    rounded = st.tuples(moments, st.integers(0, 6)).map(
        lambda pair: pair[0] - timedelta(microseconds=pair[0].microsecond % 10 ** pair[1])
    )
    usual = rounded.map(lambda m: _sample(m.replace(tzinfo=tz), _moment_text(m) + zone))
    return usual | st.sampled_from(odd).map(_escaped)


def times() -> st.SearchStrategy[Sample]:
    usual = st.times() | st.sampled_from(
        (time(0, 0, 0, 1), time(0, 0, 0, 8191), time(0, 2, 14, 217728), time(23, 59))
    )
    return usual.map(lambda t: _sample(t, _clock_text(t))) | st.just(_escaped("24:00:00"))


def _clock_text(clock: time) -> str:
    text = clock.strftime("%H:%M:%S")
    return f"{text}.{clock.microsecond:06d}".rstrip("0") if clock.microsecond else text


def money() -> st.SearchStrategy[Sample]:
    def sample(cents: int) -> Sample:
        return _sample(
            Decimal(cents).scaleb(-2),
            f"{'-' if cents < 0 else ''}${abs(cents) // 100:,}.{abs(cents) % 100:02d}",
        )

    return st.integers(-(1 << 63), (1 << 63) - 1).map(sample)


def _xid8(number: int) -> Sample:
    return _escaped(str(number)) if number >> 63 else _sample(number, str(number))


def _element(text: str) -> str:
    # As array_out quotes (src/backend/utils/adt/arrayfuncs.c).
    if text and text.upper() != "NULL" and not any(c in '{}",\\ \t\n\r\v\f' for c in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def arrays(elements: st.SearchStrategy[Sample]) -> st.SearchStrategy[Sample]:
    """Arrays of one dimension; one with an element that its type can't represent is escaped as a whole."""

    def sample(items: list[Sample]) -> Sample:
        texts = []
        for item in items:
            assert item.text is None or isinstance(item.text, bytes)
            texts.append("NULL" if item.text is None else _element(item.text.decode()))
        text = "{" + ",".join(texts) + "}"
        if any(isinstance(item.value, Escaped) for item in items):
            return _escaped(text)
        return _sample([item.value for item in items], text)

    odd = st.sampled_from(("{{1,2},{3,4}}", "[0:1]={1,2}", "[2:2]={NULL}")).map(_escaped)
    return st.lists(elements | st.just(Sample(None, None)), max_size=5).map(sample) | odd


def hstores() -> st.SearchStrategy[Sample]:
    def quoted(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'

    def sample(pairs: dict[str, str | None]) -> Sample:
        texts = (f"{quoted(k)}=>{'NULL' if v is None else quoted(v)}" for k, v in pairs.items())
        return _sample(pairs, ", ".join(texts))

    words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8) | st.sampled_from(
        ('"', "\\", '=>"', ", ", "NULL")
    )
    return st.dictionaries(words, words | st.none(), max_size=4).map(sample)


HSTORE = 4_000_000_001
CATALOG = {HSTORE: TypeInfo(HSTORE, "hstore", "public")}

_booleans = st.booleans().map(lambda b: _sample(b, "t" if b else "f"))
_uuids = st.uuids().map(lambda u: _sample(u, str(u)))

# Type oid to its values, for types without a modifier.
SIMPLE: dict[int, st.SearchStrategy[Sample]] = {
    16: _booleans,
    17: byteas(),
    20: integers(64),
    21: integers(16),
    23: integers(32),
    25: strings(),
    26: integers(32, signed=False),
    114: strings(20),
    700: floats(),
    701: doubles(),
    1043: strings(20),
    1082: dates(),
    1114: timestamps(""),
    1184: timestamps("+00"),
    2950: _uuids,
    3802: strings(20),
    790: money(),
    1007: arrays(integers(32)),
    1009: arrays(strings(10)),
    1083: times(),
    1182: arrays(dates()),
    5069: st.integers(0, (1 << 64) - 1).map(_xid8),
    HSTORE: hstores(),
    4_000_000_000: strings(20),
}


def numeric_typmod(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


@st.composite
def _numeric(draw: st.DrawFn) -> tuple[int, int, st.SearchStrategy[Sample]]:
    precision = draw(st.integers(1, 40) | st.just(1000))
    scale = draw(st.integers(-50, 50) | st.sampled_from((0, 2, 2, 1000, -1000)))
    return 1700, numeric_typmod(precision, scale), decimals(precision, scale)


kinds = st.sampled_from(sorted(SIMPLE)).map(lambda oid: (oid, -1, SIMPLE[oid])) | _numeric()

names = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=10
) | st.sampled_from(("id", "order", "__escaped", "a b", "_x20_"))


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[Column, ...], list[list[Sample]]]:
    """Return columns and rows; a null is Sample(None, None)."""
    found = draw(st.lists(names, min_size=1, max_size=12, unique=True))
    types = [draw(kinds) for _ in found]
    columns = tuple(
        Column(name, oid, typmod, False) for name, (oid, typmod, _) in zip(found, types, strict=True)
    )
    nothing = st.just(Sample(None, None))
    row = st.tuples(*(values | nothing for _, _, values in types)).map(list)
    return columns, draw(st.lists(row, min_size=1, max_size=5))
