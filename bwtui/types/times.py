"""time → long time-micros; timetz, interval → string.

time's 24:00:00 is a value that Avro's time of day and every consumer's lack: it uses the escape field. timetz
is a time of day with its own zone, for which Avro has no type. An interval has separate months, days and
microseconds, each with its own sign, which Avro's duration (unsigned, milliseconds) can't represent: so it is
ISO 8601 text, ``P1Y2M3DT4H5M6.7S``.
"""

from bwtui.types.codec import Codec, InlineCode, Unholdable
from bwtui.types.datetimes import CLOCK, DAY, UNIT, time_of_day
from bwtui.types.varint import NULL, C, D, U, V, long

# ``HH`` to twice the microseconds.
_HOURS = {b"%02d" % hour: hour * 7_200_000_000 for hour in range(24)}

# At most 2 * 86,400,000,000, which is three groups of 14 bits. The sums are doubled, as in zigzag.
_CODE = """\
if {f} is None: h{i} = NULL
else:
    z = HOURS24[{f}[:2]] + CLOCK[{f}[2:8]]
    n = len({f})
    if n > 8: z += int({f}[9:]) * UNIT[n + 11]
    if z < 16384: h{i} = U[z]
    elif z < 268435456: h{i} = D[z & 16383] + V[z >> 14]
    else: h{i} = D[z & 16383] + C[z >> 14 & 16383] + V[z >> 28]"""

_NAMES = {"NULL": NULL, "C": C, "D": D, "U": U, "V": V, "HOURS24": _HOURS, "CLOCK": CLOCK, "UNIT": UNIT}


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
    InlineCode(_CODE, ("h{i}",), _NAMES),
    escapes=True,
    connect_name="io.debezium.time.MicroTime",
)
