"""A list of keys of one table, stored as a file with one JSON value per line.

``["7", "abc"]`` is a row's key: the columns of the message's key, in its order, in PostgreSQL's text form.
``{"raw": "<base64>"}`` is the bytes of a message key that is in the topic without a row in the table, for a
tombstone.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from bwtui.durable_files import open_private, private_parent
from bwtui.errors import StateFailed
from bwtui.file_errors import file_failed

#: The columns of a key as texts, or the bytes of a message key.
Key = tuple[str, ...] | bytes

_CHUNK = 1 << 20


def write_keys(path: Path, keys: Iterable[Key]) -> int:
    """Write a list for `BackfillRequest.keys`, readable by its owner only; return the number of keys.

    The relay makes it durable when it takes the list. Raises StateFailed; a partial file is removed.
    """
    count = 0
    try:
        private_parent(path)
        with open(path, "w", encoding="utf-8", opener=open_private) as file:
            for key in keys:
                file.write(_line(key))
                count += 1
    except OSError as error:
        path.unlink(missing_ok=True)
        raise file_failed(f"the list of keys {path} can't be written", error) from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return count


def _line(key: Key) -> str:
    if isinstance(key, bytes):
        return f'{{"raw": "{base64.b64encode(key).decode("ascii")}"}}\n'
    return json.dumps(key) + "\n"


def read_keys(path: Path, done: int = 0) -> Iterator[Key]:
    """Yield the keys after the first ``done`` lines.

    Raises StateFailed if the list can't be read, or a line has an unknown format.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if number > done:
                    yield _key(path, number, line)
    except OSError as error:
        raise file_failed(f"the list of keys {path} can't be read", error) from error
    except UnicodeDecodeError as error:
        raise _damaged(path, "it is not valid UTF-8") from error


def _key(path: Path, number: int, line: str) -> Key:
    try:
        value = json.loads(line)
        if isinstance(value, dict) and set(value) == {"raw"}:
            key: Key = base64.b64decode(value["raw"], validate=True)
        elif isinstance(value, list) and value and all(isinstance(text, str) for text in value):
            key = tuple(value)
        else:
            raise ValueError
    except (ValueError, TypeError, RecursionError, binascii.Error) as error:
        raise _damaged(path, f"line {number} is not a key") from error
    # A torn line may be valid JSON by accident, like a number that was cut off.
    if not line.endswith("\n"):
        raise _damaged(path, f"line {number} is truncated")
    return key


def _damaged(path: Path, reason: str) -> StateFailed:
    return StateFailed(
        f"the list of keys {path} is damaged: {reason}",
        "submit the request again: 'bwtui verify --database' finds the keys that still differ",
    )


def count_keys(path: Path) -> int:
    """Return the number of lines of a list. Raises OSError."""
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK), b""))
