"""The compiled twin of what is done for each row, where the package of packaging/compiled is installed.

It does the same as what is written in Python, or leaves it to that. So it is never needed; see
docs/adr/0024-encode-in-python-with-an-optional-c-extension.md.
"""

from collections.abc import Callable
from typing import Any

#: What bwtui and the package say to each other; another package is as good as none.
SPEAKS = 8
#: The digest of all sources that this version is of; a test says when it is another one.
SOURCES = "eea9b1b22341c1c5"
#: From cells in a list, or in tuples at a place, and the most bytes that one may have: their lengths, and all
#: of them joined. None: left to Python.
Pack = Callable[[list[Any], int, int], tuple[bytes, bytes] | None]
#: From frames and a place, the byte of each there.
Tags = Callable[[list[bytes], int], bytes | None]
#: The buffers of an Arrow array: which cells are there, or None for all; offsets; data.
Buffers = tuple[bytes | None, bytes, bytes]
#: From Kafka's messages: their timestamps, keys and values. None: left to Python.
Columns = Callable[[list[Any]], tuple[bytes, Buffers, Buffers] | None]


def load() -> Any:
    """Return the package, or None where it is not installed, or is another version's."""
    try:
        import bwtui_compiled
    except ImportError:
        return None
    # An empty folder of that name can be imported, too.
    return bwtui_compiled if getattr(bwtui_compiled, "SPEAKS", None) == SPEAKS else None


PACKAGE = load()
