"""Encode many rows of a snapshot at once, as lines of COPY, with little work for each of them."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bwtui.errors import RowError
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.messages import Field

#: Like `bwtui.sink.destination.MessageTuple`: key, value, timestamp, headers.
Encoded = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes]] | None]
Both = Callable[[Sequence[Field]], tuple[bytes | None, bytes]]


class EncodedLines(NamedTuple):
    """The messages of some rows, or of the first of them, in order; None at the indexes in ``holes``."""

    messages: list[Encoded | None]
    holes: list[int]
    #: Total bytes of the keys and values of all messages, and of the largest.
    size: int
    largest: int


#: Arguments: lines, and the timestamp and the headers of all their messages.
Lines = Callable[[list[bytes], int, list[tuple[str, bytes]] | None], EncodedLines]


def encode_lines(
    both: Both,
    lines: list[bytes],
    timestamp: int,
    headers: list[tuple[str, bytes]] | None,
    enough: float = math.inf,
) -> EncodedLines:
    """Return the messages that ``both`` makes of all lines, or of the first that have ``enough`` bytes.

    A row without a message is a hole; calling ``both`` for it again raises the reason.
    """
    messages: list[Encoded | None] = []
    holes: list[int] = []
    size = largest = 0
    add = messages.append
    for line in lines:
        try:
            key, value = both(unescape_copy_line(line))
        except RowError:
            holes.append(len(messages))
            add(None)
            continue
        add((key, value, timestamp, headers))
        length = len(value) if key is None else len(value) + len(key)
        size += length
        if length > largest:
            largest = length
        if size >= enough:
            break
    return EncodedLines(messages, holes, size, largest)
