"""The values in queries: numbers, times, and a text form of numbers that sorts correctly."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

#: Texts that are compared as numbers: those that PostgreSQL writes, and those that people write.
NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
#: The same with groups for the digits before the point, after the point, and the exponent.
NUMBER_PARTS = r"^[+-]?([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?\z"
#: Digits of a number's length in `sort_key`; no PostgreSQL text is longer.
LENGTH_DIGITS = 10

_number = re.compile(NUMBER).fullmatch
_parts = re.compile(NUMBER_PARTS.replace(r"\z", r"\Z")).match
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})[T ](?P<time>[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)"
    r" ?(?P<zone>[Zz]|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_RELATIVE = re.compile(r"-([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h|d|w)")
_UNITS = {
    "ms": 1_000,
    "s": 10**6,
    "m": 60 * 10**6,
    "h": 3600 * 10**6,
    "d": 86400 * 10**6,
    "w": 604800 * 10**6,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TURNED = str.maketrans("0123456789", "9876543210")
#: The range of times that every engine accepts as a timestamp.
_FIRST, _LAST = -62135596800 * 10**6, 253402300799 * 10**6


def as_number(text: str) -> Decimal | None:
    """Return ``text`` as an exact number, or None if it is not a number."""
    return Decimal(text) if _number(text) else None


def as_whole(text: str) -> int | None:
    """Return ``text`` as an integer, or None if it is not an integer."""
    return int(text) if _WHOLE.fullmatch(text) else None


def as_time(text: str, end: int | None) -> int:
    """Return the Unix microseconds of an ISO date and time (UTC by default), or of a time like ``-5m``.

    A relative time counts from ``end``. Raises ValueError with a plain sentence.
    """
    if match := _RELATIVE.fullmatch(text):
        if end is None:
            raise ValueError(
                f"{text!r} is relative to the end of a recording, but there is no recording here "
                "(give a date and time)"
            )
        return max(end - int(Decimal(match[1]) * _UNITS[match[2]]), _FIRST)
    try:
        return _iso(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text!r} is not a time (2026-01-31, 2026-01-31T10:15:00.5, with Z or +02:00, or -5m)"
        ) from error


def _iso(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        if not _DATE.fullmatch(text):
            raise ValueError(text)
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    else:
        moment = datetime.fromisoformat(f"{match['date']}T{match['time']}{_zone(match['zone'])}")
    return min(max((moment - _EPOCH) // timedelta(microseconds=1), _FIRST), _LAST)


def _zone(text: str | None) -> str:
    if text is None or text in ("Z", "z", "UTC"):
        return "+00:00"
    return text if len(text) != 3 else f"{text}:00"


def sort_key(text: str) -> str:
    """Return a text that sorts, byte by byte, as the number does.

    SQL has no unbounded numbers, so `sql` computes the same key of a column's value.
    """
    match = _parts(text)
    assert match is not None, text
    whole, fraction, exponent = match[1], match[2] or "", int(match[3] or 0)
    digits = "0" * max(-exponent, 0) + whole + fraction + "0" * max(exponent, 0)
    point = len(whole) + max(exponent, 0)
    whole, fraction = digits[:point].lstrip("0"), digits[point:].rstrip("0")
    key = f"{len(whole):0{LENGTH_DIGITS}d}{whole}.{fraction}"
    if text.startswith("-") and (whole or fraction):
        return f"0{key.translate(_TURNED)}~"
    return f"1{key}"
