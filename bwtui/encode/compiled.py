"""The compiled twin of the generated encoders, where the package of packaging/compiled is installed.

It makes the same bytes as the encoders in Python, or none: what it does not know, it leaves to them. So it is
never needed; see docs/adr/0024-encode-in-python-with-an-optional-c-extension.md.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from bwtui.compiled import PACKAGE
from bwtui.encode.generate import Record, compile_both, compile_one
from bwtui.encode.lines import Both, Encoded, EncodedLines, Lines
from bwtui.types.codec import Encode, Inline

#: What the package knows, by its numbers; 0 is a function in Python.
_KINDS = (
    "",
    "integer",
    "boolean",
    "text",
    "decimal",
    "date",
    "timestamp",
    "timestamptz",
    "float4",
    "float8",
)
#: Messages, the frames that they were made of if somebody needs those, the bytes of both, and a frame that is
#: left.
Taken = tuple[list[Encoded], list[bytes], int, int, bytes | None]
#: By the identity of a frame: the frame, the size in bytes of its row's unchanged values, and each of these.
#: Python handles a row without values.
Values = dict[int, tuple[Any, ...]]
#: From a frame, those that follow, and more that the package's own text tells of ``Encoder.rows``.
Run = Callable[[bytes, Iterator[bytes], int, int, int, int, int, int, bool, Values], Taken]
#: What it takes the numbers for of a codec without a template.
_NONE = Inline("", (), {})


class Twin(NamedTuple):
    """What encodes the rows of one table: by their fields, as lines of COPY, and as pgoutput sends them."""

    both: Both
    lines: Lines
    run: Run


def twin(key: Record | None, value: Record, width: int, package: Any = PACKAGE) -> Twin | None:
    """Return what encodes rows of ``width`` columns; None: all in Python.

    A ``key`` of None makes none.
    """
    if package is None or width < 1:
        return None
    plain = _Plain(key, value, width)
    encoder = package.Encoder(None if key is None else _record(key), _record(value), width, plain)
    return Twin(encoder, partial(_lines, encoder.lines), encoder.rows)


def in_python(key: Record | None, value: Record, width: int) -> Both:
    """Return the function that is written for the table in Python."""
    if key is not None:
        return compile_both(key, value, width)
    encode_value = compile_one(value, width)
    return lambda fields: (None, encode_value(fields))


class _Plain:
    """The encoder in Python, made for the first row that needs it: a thousand columns take half a second."""

    def __init__(self, key: Record | None, value: Record, width: int) -> None:
        self._records = key, value, width
        self._both: Both | None = None

    def __call__(self, fields: Sequence[Any]) -> tuple[bytes | None, bytes]:
        if self._both is None:
            self._both = in_python(*self._records)
        return self._both(fields)


def _record(record: Record) -> tuple[bytes, tuple[tuple[int, int, int, Encode | None], ...], bool]:
    columns = []
    for plan in record.plans:
        inline = plan.codec.inline or _NONE
        kind = _KINDS.index(inline.compiled)
        columns.append((plan.index, kind, inline.scale, None if kind else plan.codec.encode))
    return record.head, tuple(columns), bool(record.tail)


def _lines(
    encode: Any, lines: list[bytes], timestamp: int, headers: list[tuple[str, bytes]] | None
) -> EncodedLines:
    messages, size, largest = encode(lines, timestamp, headers)
    holes = []
    if None in messages:
        holes = [number for number, message in enumerate(messages) if message is None]
    return EncodedLines(messages, holes, size, largest)
