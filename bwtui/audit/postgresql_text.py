"""Compare decoded values with PostgreSQL's texts, in the opposite direction of the relay.

The relay converts the text to Avro. Here the value is converted back to PostgreSQL's text (ISO dates in UTC,
`bytea_output` hex), or both are converted to numbers. Only the texts of arrays and hstore are parsed.
"""

import contextlib
import datetime
import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

from bwtui.audit.decoding import RowSchema

ESCAPED = "__escaped"
#: The entry of ESCAPED that names the columns which were not sent.
UNSENT = "unchanged TOAST"
# Possessive, because re keeps backtracking state for each character otherwise.
_QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_ELEMENT = re.compile(rf'{_QUOTED}|([^",{{}}]+)', re.DOTALL)
_double = struct.Struct("<d").pack
_U64 = struct.Struct("<Q")
#: The bits of a double that are zero halfway between two adjacent reals.
_BELOW_HALFWAY = (1 << 28) - 1
_PAIR = re.compile(f"{_QUOTED}=>(?:{_QUOTED}|NULL)", re.DOTALL)


def differing(
    schema: RowSchema, row: Mapping[str, Any], texts: Mapping[str, str | None], unsent: Sequence[str] = ()
) -> list[str]:
    """Return the columns in which a decoded row differs from PostgreSQL's texts."""
    escaped = row.get(ESCAPED) or {}
    wrong = []
    checked = set()
    for field, (column, kind) in schema.columns.items():
        if field == ESCAPED:
            # A table's column of this name has a different name in Avro.
            continue
        if column not in texts:
            if column not in unsent:
                wrong.append(column)
            continue
        checked.add(column)
        if field in escaped:
            if row.get(field) is not None or escaped[field] != texts[column]:
                wrong.append(column)
        elif not says(row.get(field), texts[column], kind):
            wrong.append(column)
    if len(checked) < len(texts):
        wrong += sorted(set(texts) - checked)
    return wrong + sorted(set(escaped) - {*schema.columns, UNSENT}) if escaped else wrong


def no_text(raw: bytes) -> str:
    r"""Return ``\x``, the bytes in hexadecimal, and a zero byte, which PostgreSQL's text never contains.

    A message's key has them in the same form.
    """
    return f"\\x{raw.hex()}\0"


def of_json(text: str) -> str:
    """Return a text, or `no_text` of the bytes that lone surrogates represent in JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        with contextlib.suppress(UnicodeEncodeError):
            return no_text(text.encode("utf-8", "surrogateescape"))
    return text


def says(value: Any, text: str | None, kind: str = "") -> bool:
    """Return whether PostgreSQL writes ``value`` as ``text``; ``kind`` is the column's type, if known."""
    if type(value) is str:
        # The recording does not mark bytes that are not text.
        return value.removesuffix("\0") == text
    if value is None or text is None:
        return value is None and text is None
    if isinstance(value, list):
        parts = elements(text, ";" if kind.startswith("box") else ",")
        if parts is None or len(parts) != len(value):
            return False
        return all(says(one, part, kind.removesuffix("[]")) for one, part in zip(value, parts, strict=True))
    if isinstance(value, dict):
        return value == {plain(key): None if item is None else plain(item) for key, item in pairs(text)}
    if isinstance(value, float):
        return _same_float(value, text, "real" in kind or "float4" in kind)
    if isinstance(value, Decimal) and kind.startswith("money"):
        return format(value, "f") == text.replace("$", "").replace(",", "")
    return written(value) == text


def written(value: Any) -> str | None:
    """Return a value as PostgreSQL writes it, or None for a type that Avro never returns."""
    write = _WRITTEN.get(type(value))
    return None if write is None else write(value)


def _same_float(value: float, text: str, is_single: bool) -> bool:
    try:
        number = real(text) if is_single else float(text)
    except (ValueError, OverflowError):
        return False
    if number != number or value != value:
        return number != number and value != value
    return _double(number) == _double(value)


def real(text: str) -> float:
    """Return the real that PostgreSQL parses from a text.

    This rounds the double nearest to the text, unless that may lie halfway between two reals: then the exact
    value of the text decides. Raises ValueError, or OverflowError beyond the range of real.
    """
    number = float(text)
    nearest, bits = struct.unpack("<fI", struct.pack("<f", number) * 2)
    if nearest == number or not math.isfinite(number) or _U64.unpack(_double(number))[0] & _BELOW_HALFWAY:
        return float(nearest)
    exact = Fraction(text)
    around = struct.unpack("<ff", struct.pack("<II", max(bits - 1, 0), bits + 1))
    nearest = min((nearest, *filter(math.isfinite, around)), key=lambda one: abs(Fraction(one) - exact))
    return float(nearest)


def _timestamp(value: datetime.datetime) -> str:
    if value.tzinfo is None:
        return _without_zeros(value.isoformat(" "))
    return _without_zeros(value.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(" ")) + "+00"


def _time(value: datetime.time) -> str:
    return _without_zeros(value.isoformat())


def _without_zeros(moment: str) -> str:
    """Return Python's text of a moment, with a fraction of six digits or none, as PostgreSQL writes it."""
    return moment.rstrip("0") if "." in moment else moment


#: Exactly the types that fastavro returns.
_WRITTEN: dict[type, Callable[[Any], str]] = {
    str: str,
    bool: lambda value: "t" if value else "f",
    int: str,
    Decimal: lambda value: format(value, "f"),
    bytes: lambda value: "\\x" + value.hex(),
    datetime.datetime: _timestamp,
    datetime.date: datetime.date.isoformat,
    datetime.time: _time,
    UUID: str,
}


def plain(text: str) -> str:
    """Return a quoted text without its backslashes, which precede only quotes and backslashes."""
    return text.replace('\\"', '"').replace("\\\\", "\\")


def elements(text: str, delimiter: str = ",") -> list[str | None] | None:
    """Return the elements of a one-dimensional array's text, or None if it is not one."""
    if len(text) < 2 or text[0] != "{" or text[-1] != "}":
        return None
    if delimiter != ",":
        # Only PostgreSQL's own type box has a different delimiter: nothing in it is quoted.
        body = text[1:-1]
        return [None if part == "NULL" else part for part in body.split(delimiter)] if body else []
    parsed: list[str | None] = []
    for match in _ELEMENT.finditer(text, 1, len(text) - 1):
        quoted, bare = match.groups()
        if quoted is not None:
            parsed.append(plain(quoted))
        else:
            parsed.append(None if bare == "NULL" else bare)
    return parsed


def pairs(text: str) -> list[tuple[str, str | None]]:
    """Return the pairs of an hstore's text, with their backslashes."""
    return [(match[1], match[2]) for match in _PAIR.finditer(text)]


def parse_row(text: str | None) -> dict[str, str | None]:
    """Return the texts of a row as the sealed recording stores them."""
    return {} if text is None else json.loads(text)
