"""date → int date; timestamp → long local-timestamp-micros; timestamptz → long timestamp-micros.

The text is ISO with the year first and the zone UTC, as the session sets it: ``2024-05-06 07:08:09.12+00``.
Avro's numbers could represent more, but consumers' calendars end: infinity, BC, and years above 9999 use the
escape field.
"""

from datetime import date

from bwtui.types.codec import Codec, Encode, InlineCode, Unholdable
from bwtui.types.varint import NULL, C, D, U, V, long, union_long

_EPOCH = date(1970, 1, 1).toordinal()
DAY = 86_400_000_000
HOUR = 3_600_000_000
_CACHED = 1 << 16


def days(text: bytes) -> int:
    """Return the days since 1970-01-01 of ``YYYY-MM-DD``. Raises Unholdable for values to escape."""
    try:
        return date.fromisoformat(text.decode("ascii")).toordinal() - _EPOCH
    except ValueError:
        if _beyond(text):
            raise Unholdable from None
        raise ValueError("not an ISO date") from None


def _beyond(text: bytes) -> bool:
    if text in (b"infinity", b"-infinity") or text.endswith(b" BC"):
        return True
    year, _, _ = text.partition(b"-")
    return len(year) > 4 and year.isdigit()


def time_of_day(text: bytes) -> int:
    """Return the microseconds since midnight of ``HH:MM:SS[.ffffff]``; ``24:00:00`` is a whole day."""
    clock, _, fraction = text.partition(b".")
    if len(clock) != 8 or len(fraction) > 6 or clock[2:3] != b":" or clock[5:6] != b":":
        raise ValueError("not an ISO time")
    seconds = int(clock[:2]) * 3600 + int(clock[3:5]) * 60 + int(clock[6:])
    return seconds * 1_000_000 + int(fraction.ljust(6, b"0"))


def micros(text: bytes) -> int:
    """Return the microseconds since 1970-01-01 00:00 of ``YYYY-MM-DD HH:MM:SS[.ffffff]``."""
    day, space, time = text.partition(b" ")
    if not space:
        days(text)
        raise ValueError("not an ISO timestamp")
    if text.endswith(b" BC"):
        raise Unholdable
    return days(day) * DAY + time_of_day(time)


class _Hours(dict[bytes, int]):
    """``YYYY-MM-DD HH`` to twice the microseconds; cleared when full, to limit its memory."""

    def __missing__(self, text: bytes) -> int:
        hour = int(text[11:])
        if text[10:11] != b" " or not 0 <= hour < 24:
            raise ValueError
        if len(self) >= _CACHED:
            self.clear()
        value = self[text] = 2 * (days(text[:10]) * DAY + hour * HOUR)
        return value


class _Dates(dict[bytes | None, bytes]):
    """``YYYY-MM-DD`` to the whole union; cleared when full."""

    def __missing__(self, text: bytes) -> bytes:
        if len(self) >= _CACHED:
            self.clear()
            self[None] = NULL
        value = self[text] = union_long(days(text))
        return value


# ``:MM:SS`` to twice the microseconds, complete: any other key raises KeyError.
CLOCK = {b":%02d:%02d" % (m, s): (m * 60 + s) * 2_000_000 for m in range(60) for s in range(60)}

# Twice the value of the last digit, by the length of the text without zone: 21 with one digit, 26 with six.
UNIT = (*(0,) * 21, 200_000, 20_000, 2000, 200, 20, 2)

# All sums are doubled, as zigzag encodes them. Groups of 14 bits cover 1970-01-26 to 3111; a loop writes the
# few other times.
_CODE = """\
if {f} is None: a{i} = NULL; b{i} = c{i} = d{i} = b""
else:
    z = HOURS[{f}[:13]] + CLOCK[{f}[13:19]]
    n = len({f})
%s
    if 4398046511104 <= z < 72057594037927936:
        a{i} = D[z & 16383]
        b{i} = C[z >> 14 & 16383]
        c{i} = C[z >> 28 & 16383]
        d{i} = V[z >> 42]
    else: a{i} = union_long(z >> 1); b{i} = c{i} = d{i} = b""
"""

_TIMESTAMP = _CODE % "    if n > 19: z += int({f}[20:]) * UNIT[n]"
_TIMESTAMPTZ = _CODE % (
    '    if {f}[-3:] != b"+00": raise ValueError\n    if n > 22: z += int({f}[20:-3]) * UNIT[n - 3]'
)

_NAMES = {
    "C": C,
    "D": D,
    "V": V,
    "NULL": NULL,
    "HOURS": _Hours(),
    "CLOCK": CLOCK,
    "UNIT": UNIT,
    "union_long": union_long,
    "DATES": _Dates({None: NULL}),
}


def encode_date(text: bytes) -> bytes:
    """Encode ``2024-05-06``."""
    return long(days(text))


def encode_timestamp(text: bytes) -> bytes:
    """Encode ``2024-05-06 07:08:09.12``."""
    return long(micros(text))


def encode_timestamptz(text: bytes) -> bytes:
    """Encode ``2024-05-06 07:08:09.12+00``."""
    if text.endswith(b"+00"):
        return long(micros(text[:-3]))
    if text.endswith(b"+00 BC") or text in (b"infinity", b"-infinity"):
        raise Unholdable
    raise ValueError("not an ISO timestamp in UTC")


DATE = Codec(
    {"type": "int", "logicalType": "date"},
    "date",
    encode_date,
    InlineCode("", ("DATES[{f}]",), _NAMES, compiled="date"),
    escapes=True,
)


def _timestamp_codec(logical: str, pg_type: str, encode: Encode, code: str, compiled: str) -> Codec:
    avro = {"type": "long", "logicalType": logical}
    inline = InlineCode(code, ("a{i}", "b{i}", "c{i}", "d{i}"), _NAMES, compiled=compiled)
    connect_name = "io.debezium.time.MicroTimestamp"
    return Codec(avro, pg_type, encode, inline, escapes=True, connect_name=connect_name)


TIMESTAMP = _timestamp_codec(
    "local-timestamp-micros", "timestamp without time zone", encode_timestamp, _TIMESTAMP, "timestamp"
)
TIMESTAMPTZ = _timestamp_codec(
    "timestamp-micros", "timestamp with time zone", encode_timestamptz, _TIMESTAMPTZ, "timestamptz"
)


# time → long time-micros; timetz, interval → string.
#
# time's 24:00:00 is a value that Avro's time of day and every consumer's lack: it uses the escape field.
# timetz
# is a time of day with its own zone, for which Avro has no type. An interval has separate months, days and
# microseconds, each with its own sign, which Avro's duration (unsigned, milliseconds) can't represent: so it
# is
# ISO 8601 text, ``P1Y2M3DT4H5M6.7S``.

# ``HH`` to twice the microseconds.
_HOURS = {b"%02d" % hour: hour * 7_200_000_000 for hour in range(24)}

# At most 2 * 86,400,000,000, which is three groups of 14 bits. The sums are doubled, as in zigzag.
_TIME_CODE = """\
if {f} is None: h{i} = NULL
else:
    z = HOURS24[{f}[:2]] + CLOCK[{f}[2:8]]
    n = len({f})
    if n > 8: z += int({f}[9:]) * UNIT[n + 11]
    if z < 16384: h{i} = U[z]
    elif z < 268435456: h{i} = D[z & 16383] + V[z >> 14]
    else: h{i} = D[z & 16383] + C[z >> 14 & 16383] + V[z >> 28]"""

_TIME_NAMES = {"NULL": NULL, "C": C, "D": D, "U": U, "V": V, "HOURS24": _HOURS, "CLOCK": CLOCK, "UNIT": UNIT}


def encode_time(text: bytes) -> bytes:
    """Encode ``07:08:09.12``."""
    micros = time_of_day(text)
    if micros >= DAY:
        raise Unholdable
    return long(micros)


TIME = Codec(
    {"type": "long", "logicalType": "time-micros"},
    "time without time zone",
    encode_time,
    InlineCode(_TIME_CODE, ("h{i}",), _TIME_NAMES),
    escapes=True,
    connect_name="io.debezium.time.MicroTime",
)
