"""Load the C extension for per-row work, if the package of packaging/compiled is installed.

It does the same as the Python code, or leaves a case to it, so it is always optional; see
docs/adr/0024-encode-in-python-with-an-optional-c-extension.md.
"""

from collections.abc import Callable
from typing import Any

#: The version of the interface between bwtui and the package; a package of a different version is ignored.
SPEAKS = 9
#: The digest of all sources that belong to this version; a test fails if they have changed.
SOURCES = "6045ca2c1ea960b6"
#: Takes a list of cells, or of tuples and an index, and a maximum size in bytes; returns the cells' lengths
#: and all of them joined. None: left to Python.
Pack = Callable[[list[Any], int, int], tuple[bytes, bytes] | None]
#: Takes frames and an index; returns the byte at that index of each.
Tags = Callable[[list[bytes], int], bytes | None]
#: The buffers of an Arrow array: the validity bitmap, or None for all; offsets; data.
Buffers = tuple[bytes | None, bytes, bytes]
#: Takes Kafka's messages; returns their timestamps, keys and values. None: left to Python.
Columns = Callable[[list[Any]], tuple[bytes, Buffers, Buffers] | None]


def load() -> Any:
    """Return the package, or None if it is not installed, or of a different version."""
    try:
        import bwtui_compiled
    except ImportError:
        return None
    # An empty folder of that name can be imported, too.
    return bwtui_compiled if getattr(bwtui_compiled, "SPEAKS", None) == SPEAKS else None


PACKAGE = load()
