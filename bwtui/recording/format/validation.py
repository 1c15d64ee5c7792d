"""Validate values that were read from a file: types, ranges, names.

Every function returns its argument, or raises ValueError.
"""

import re
from pathlib import PurePosixPath
from typing import Any

#: The largest signed 64-bit number.
LARGEST = (1 << 63) - 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: Characters that no folder or file of a recording has in its name, because they have a special meaning.
_NO_NAME = re.compile(r"[\x00-\x1f\x7f*?\[\]\\]")


def number(value: Any, least: int = 0, most: int = LARGEST) -> int:
    """Check an integer and its range."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError("it is not a valid number")
    return value


def text(value: Any) -> str:
    """Check a text that can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise ValueError("it is not a text")
    value.encode()
    return value


def obj(value: Any) -> dict[str, Any]:
    """Check a JSON object."""
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    return value


def array(value: Any) -> list[Any]:
    """Check a JSON array."""
    if not isinstance(value, list):
        raise ValueError("it is not a list")
    return value


def sha256(value: Any) -> str:
    """Check a sha256 in hexadecimal."""
    if not _SHA256.fullmatch(text(value)):
        raise ValueError("it is not a sha256")
    return str(value)


def relative(value: Any) -> str:
    """Check a relative path that stays within its folder."""
    path = PurePosixPath(text(value))
    if (
        path.is_absolute()
        or ".." in path.parts
        or not path.parts
        or str(path) != value
        or _NO_NAME.search(value)
    ):
        raise ValueError("it is not a path within the folder")
    return str(value)


def identity(value: Any) -> tuple[int, int]:
    """Check the LSN and the ordinal of a change."""
    lsn, ordinal = array(value)
    return number(lsn, most=(1 << 64) - 1), number(ordinal)
