"""Parse places in a recording: a time, an LSN, a transaction, a percentage, a position."""

import re
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from bwtui.errors import UsageError
from bwtui.model.lsn import parse_lsn

FORMS = "12:04[:05], 2026-01-31 12:04, +30s, -5m, 0/1A2B, xid 742, 45%, #1234 (a position), start or end"
MICROS = 1_000_000

Kind = Literal["time", "lsn", "xid", "change"]


class SeekTarget(NamedTuple):
    """A place: Unix microseconds, an LSN, a transaction id, or the number of changes before it."""

    kind: Kind
    value: int


class SeekContext(NamedTuple):
    """The context of a parsed place: the recording's first, last and current time, and number of changes."""

    first: int
    last: int
    now: int
    length: int


_UNITS = {"ms": 1_000, "s": MICROS, "m": 60 * MICROS, "h": 3600 * MICROS, "d": 86400 * MICROS}
_STEP = re.compile(r"([+-])\s*((?:\d+(?:\.\d+)?\s*(?:ms|s|m|h|d)\s*)+)")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d{1,6})?))?")
_XID = re.compile(r"xid\s*=?\s*(\d+)", re.IGNORECASE)
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_NUMBER = re.compile(r"#\s*(\d[\d,]*)")


def parse_target(text: str, within: SeekContext) -> SeekTarget:
    """Parse a place. Raises UsageError when ``text`` is not a place."""
    text = text.strip()
    named = {"start": 0, "end": within.length}
    if text.lower() in named:
        return SeekTarget("change", named[text.lower()])
    if match := _XID.fullmatch(text):
        return SeekTarget("xid", int(match[1]))
    if match := _NUMBER.fullmatch(text):
        return SeekTarget("change", _number(int(match[1].replace(",", "")), within))
    if match := _SHARE.fullmatch(text):
        return SeekTarget("time", _share(float(match[1]), within))
    if match := _STEP.fullmatch(text):
        amount = round(sum(float(n) * _UNITS[unit] for n, unit in _AMOUNT.findall(match[2])))
        moment = within.now + (amount if match[1] == "+" else -amount)
        return SeekTarget("time", min(max(moment, within.first), within.last))
    if "/" in text:
        try:
            return SeekTarget("lsn", parse_lsn(text))
        except ValueError as error:
            raise UsageError(f"{text!r} is not a valid LSN", "an LSN looks like 0/16B3748") from error
    return SeekTarget("time", _clock(text, within) if _CLOCK.fullmatch(text) else _date(text, within))


def _number(number: int, within: SeekContext) -> int:
    """Return the number of changes up to and including the one at position ``number``."""
    if number >= within.length:
        last = within.length - 1
        raise UsageError(
            f"there is no change at position {number:,}: "
            + (f"the last one is at {last:,}" if within.length else "the recording holds no changes"),
            f"give one from #0 to #{last:,}, or a percentage such as 50%" if within.length else "give a time",
        )
    return number + 1


def _share(percent: float, within: SeekContext) -> int:
    if percent > 100:
        raise UsageError("a recording ends at 100%", "give a percentage from 0% to 100%")
    return within.first + round((within.last - within.first) * percent / 100)


def _clock(text: str, within: SeekContext) -> int:
    """Return the occurrence of a time of day in the recording that is nearest to the current time."""
    match = _CLOCK.fullmatch(text)
    assert match is not None
    hour, minute, second = int(match[1]), int(match[2]), float(match[3] or 0)
    if hour > 23 or minute > 59 or second >= 60:
        raise UsageError(f"{text!r} is not a time of day", f"write {FORMS}")
    day = datetime.fromtimestamp(within.first / MICROS).replace(hour=0, minute=0, second=0, microsecond=0)
    end = datetime.fromtimestamp(within.last / MICROS)
    # A recording may cover years; the days around the current time are enough.
    now = datetime.fromtimestamp(within.now / MICROS)
    day = max(day, now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=2))
    times: list[int] = []
    while day <= end and len(times) < 5:
        moment = day + timedelta(hours=hour, minutes=minute, seconds=second)
        times.append(round(moment.timestamp() * MICROS))
        day += timedelta(days=1)
    # "12:04" means the whole minute, "12:04:05" the whole second.
    width = (60 if match[3] is None else 1 if "." not in match[3] else 0) * MICROS
    inside = [m for m in times if within.first - width < m <= within.last]
    if not inside:
        raise _outside(text, within)
    return max(min(inside, key=lambda m: abs(m - within.now)), within.first)


def _date(text: str, within: SeekContext) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a valid position in a recording", f"write {FORMS}") from None
    micros = round(moment.timestamp() * MICROS)
    whole_day = len(text) == 10
    if micros > within.last or micros + (86400 * MICROS if whole_day else 60 * MICROS) < within.first:
        raise _outside(text, within)
    return max(micros, within.first)


def _outside(text: str, within: SeekContext) -> UsageError:
    ends = [
        datetime.fromtimestamp(m / MICROS).strftime("%Y-%m-%d %H:%M:%S") for m in (within.first, within.last)
    ]
    return UsageError(f"{text!r} is not in the recording", f"the recording covers {ends[0]} to {ends[1]}")
