"""Gather rows, which psycopg2 delivers one per call, into batches."""

from collections.abc import Callable

from bwtui.compiled import PACKAGE
from bwtui.relay.batch import BATCH_BYTES, BATCH_ROWS

Give = Callable[[list[bytes], int], None]
Gathering = tuple[Callable[[bytes], None], Callable[[], None]]


def gathering(give: Give) -> Gathering:
    """Return a function that takes one line after another, and one to call at the end.

    ``give`` is called with lines and their size in bytes. A large line is given alone, or as the last one.
    """
    if PACKAGE is None:
        return in_python(give)
    gathered = PACKAGE.Gathering(give, BATCH_ROWS, BATCH_BYTES)
    return gathered, gathered.end


def in_python(give: Give) -> Gathering:
    """Return the same without the C extension."""
    lines: list[bytes] = []
    size = 0

    def take(line: bytes) -> None:
        nonlocal size
        lines.append(line)
        size += len(line)
        if size >= BATCH_BYTES or len(lines) >= BATCH_ROWS:
            end()

    def end() -> None:
        nonlocal lines, size
        gathered, length = lines, size
        lines, size = [], 0
        if gathered:
            give(gathered, length)

    return take, end
