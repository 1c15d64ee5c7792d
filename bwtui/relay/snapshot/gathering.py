"""Rows as psycopg2 gives them, one a call, gathered to as many as make a batch."""

from collections.abc import Callable

from bwtui.relay.batch import BATCH_BYTES, BATCH_ROWS


def gathering(give: Callable[[list[bytes], int], None]) -> tuple[Callable[[bytes], None], Callable[[], None]]:
    """Return what takes one line after the other, and what is called when there are no more.

    ``give`` is called with lines and their bytes. A large line comes alone, or last.
    """
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
