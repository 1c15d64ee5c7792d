"""date → int date; timestamp → long local-timestamp-micros; timestamptz → long timestamp-micros.

The text is ISO with the year first and the zone UTC, as the session pins it: ``2024-05-06 07:08:09.12+00``.
Avro's numbers could go on, but consumers' calendars end: infinity, BC, and years above 9999 take the
escape.
"""

from datetime import date

from bwtui.types.codec import Codec, Encode, Inline, Unholdable
from bwtui.types.varint import NULL, C, D, V, long, union_long

_EPOCH = date(1970, 1, 1).toordinal()
DAY = 86_400_000_000
_CACHED_DAYS = 32_768


def days(text: bytes) -> int:
    """Return the days since 1970-01-01 of ``YYYY-MM-DD``. Raises Unholdable for what the escape is for."""
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


class _Days(dict[bytes, int]):
    """``YYYY-MM-DD`` to microseconds; emptied when full, so that its memory is bounded."""

    def __missing__(self, text: bytes) -> int:
        if len(self) >= _CACHED_DAYS:
            self.clear()
        value = self[text] = date.fromisoformat(text.decode("ascii")).toordinal() * DAY - _EPOCH * DAY
        return value


class _Dates(dict[bytes | None, bytes]):
    """``YYYY-MM-DD`` to the whole union; emptied when full."""

    def __missing__(self, text: bytes) -> bytes:
        if len(self) >= _CACHED_DAYS:
            self.clear()
            self[None] = NULL
        value = self[text] = union_long(date.fromisoformat(text.decode("ascii")).toordinal() - _EPOCH)
        return value


# HH:MM: and SS to microseconds, both complete: anything else is a KeyError, and the row takes the plain
# encoder.
_MINUTES = {b"%02d:%02d:" % (h, m): (h * 60 + m) * 60_000_000 for h in range(24) for m in range(60)}
_SECONDS = {b"%02d" % s: s * 1_000_000 for s in range(60)}

# How much one unit of the last digit is worth, by the length of the whole text: 21 for one digit, 26 for six.
_UNIT = (*(0,) * 21, 100_000, 10_000, 1000, 100, 10, 1)

# The groups of 14 bits serve 1970-01-26 to 3111; the few other dates are written by a loop.
_CODE = """\
if {f} is None: h{i} = NULL; t{i} = b""
else:
    n = DAYS[{f}[:10]] + MINUTES[{f}[11:17]] + SECONDS[{f}[17:19]]
    n{i} = len({f})
%s
    z{i} = n + n
    if 4398046511104 <= z{i} < 72057594037927936:
        h{i} = D[z{i} & 16383] + C[z{i} >> 14 & 16383]
        t{i} = C[z{i} >> 28 & 16383] + V[z{i} >> 42]
    else: h{i} = union_long(n); t{i} = b""
"""

_TIMESTAMP = _CODE % "    if n{i} > 19: n += int({f}[20:]) * UNIT[n{i}]"
_TIMESTAMPTZ = _CODE % (
    '    if {f}[-3:] != b"+00": raise ValueError\n    if n{i} > 22: n += int({f}[20:-3]) * UNIT[n{i} - 3]'
)

_NAMES = {
    "C": C,
    "D": D,
    "V": V,
    "NULL": NULL,
    "DAYS": _Days(),
    "MINUTES": _MINUTES,
    "SECONDS": _SECONDS,
    "UNIT": _UNIT,
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
    Inline("", ("DATES[{f}]",), _NAMES),
    escapes=True,
)


def _timestamp_codec(logical: str, pg_type: str, encode: Encode, code: str) -> Codec:
    avro = {"type": "long", "logicalType": logical}
    return Codec(avro, pg_type, encode, Inline(code, ("h{i}", "t{i}"), _NAMES), escapes=True)


TIMESTAMP = _timestamp_codec(
    "local-timestamp-micros", "timestamp without time zone", encode_timestamp, _TIMESTAMP
)
TIMESTAMPTZ = _timestamp_codec(
    "timestamp-micros", "timestamp with time zone", encode_timestamptz, _TIMESTAMPTZ
)
