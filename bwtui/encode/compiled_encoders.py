"""The C extension's equivalent of the generated encoders, if packaging/compiled is installed.

It makes the same bytes as the encoders in Python, or none: they handle what it does not. So it is never
required (see docs/adr/0024-encode-in-python-with-an-optional-c-extension.md).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from bwtui.compiled import speedups
from bwtui.encode.encoder_generator import EncodedRowParts, compile_both, compile_one
from bwtui.encode.lines import Both, Encoded, EncodedLines, Lines
from bwtui.types.codec import Encode, InlineCode

#: The kinds of columns by the extension's numbers; 0 is a function in Python.
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
#: Messages, their frames if these are kept or if there are values, the bytes of both, and a frame that was
#: not handled.
Taken = tuple[list[Encoded], list[bytes], int, int, bytes | None]
#: Maps the id of a frame to the frame, the size of its row's unchanged values in bytes, and these values.
#: Python handles a row without values.
Values = dict[int, tuple[Any, ...]]
#: Arguments: a frame, the following frames, and those documented in the extension for ``Encoder.rows``.
Run = Callable[[bytes, Iterator[bytes], int, int, int, int, int, int, bool, Values], Taken]
#: A frame, its transaction's id, and the key of its row; without the key, Python must take the frame apart.
Lacking = tuple[bytes, int, dict[str, bytes]] | tuple[bytes, int]
#: Arguments: frames, and those documented in the extension for ``Encoder.lacking``.
FindLacking = Callable[
    [Iterable[bytes], Values, int, int, int, tuple[int, ...], tuple[tuple[int, str], ...], int], list[Lacking]
]
#: Used for a codec without a template.
_NONE = InlineCode("", (), {})


class CompiledEncoders(NamedTuple):
    """The encoders of one table's rows: from fields, from lines of COPY, and from pgoutput's frames.

    ``lacking`` finds the rows whose unchanged values must be fetched.
    """

    both: Both
    lines: Lines
    run: Run
    lacking: FindLacking


def twin(
    key: EncodedRowParts | None, value: EncodedRowParts, width: int, package: Any = speedups
) -> CompiledEncoders | None:
    """Return the encoders for rows of ``width`` columns, or None to use Python for all.

    With a ``key`` of None, keys are None.
    """
    if package is None or width < 1:
        return None
    plain = _LazyPythonEncoder(key, value, width)
    encoder = package.Encoder(None if key is None else _record(key), _record(value), width, plain)
    return CompiledEncoders(encoder, partial(_lines, encoder.lines), encoder.rows, encoder.lacking)


def in_python(key: EncodedRowParts | None, value: EncodedRowParts, width: int) -> Both:
    """Return the generated Python function of the table."""
    if key is not None:
        return compile_both(key, value, width)
    encode_value = compile_one(value, width)
    return lambda fields: (None, encode_value(fields))


class _LazyPythonEncoder:
    """The encoder in Python, compiled when a row first needs it: a thousand columns take half a second."""

    def __init__(self, key: EncodedRowParts | None, value: EncodedRowParts, width: int) -> None:
        self._records = key, value, width
        self._both: Both | None = None

    def __call__(self, fields: Sequence[Any]) -> tuple[bytes | None, bytes]:
        if self._both is None:
            self._both = in_python(*self._records)
        return self._both(fields)


def _record(record: EncodedRowParts) -> tuple[bytes, tuple[tuple[int, int, int, Encode | None], ...], bool]:
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
