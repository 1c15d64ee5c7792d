"""Load the C extension for per-row work, if the package of packaging/compiled is installed.

It does the same as the Python code, or leaves a case to it, so it is always optional; see
docs/adr/0024-encode-in-python-with-an-optional-c-extension.md.
"""

from collections.abc import Callable
from typing import Any

#: The version of the interface between bwtui and the package; a package of a different version is ignored.
ABI_VERSION = 10
#: The digest of all sources that belong to this version; a test fails if they have changed.
SOURCES = "dc087869303a2e91"
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
    package = _installed()
    return package if getattr(package, "ABI_VERSION", None) == ABI_VERSION else None


def _installed() -> Any:
    try:
        import bwtui_compiled
    except ImportError:
        return None
    # An empty folder of that name can be imported, too.
    return bwtui_compiled if getattr(bwtui_compiled, "__file__", None) else None


def version_mismatch() -> tuple[str, str] | None:
    """Return a message and a hint if the installed package is ignored because of its version, or None."""
    package = _installed()
    version = getattr(package, "ABI_VERSION", "unknown")
    if package is None or version == ABI_VERSION:
        return None
    return (
        f"the C extension bwtui_compiled has ABI version {version}, but this bwtui requires {ABI_VERSION}: "
        "rows are encoded in Python, which takes about twice the CPU time",
        "rebuild it in the source folder of this bwtui: pip install './packaging/compiled[checksum]'",
    )


speedups = load()
