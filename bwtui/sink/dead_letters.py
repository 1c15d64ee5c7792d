"""Read the dead letters of a relay, also while it writes: an index of all, and single rows."""

import datetime
import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bwtui.durable_files import open_private
from bwtui.kafka.dead_letter_topic import identity
from bwtui.model.lsn import format_lsn
from bwtui.pgoutput.messages import Field

#: Only the end of a larger file is read (bytes); and the maximum number of letters kept, the newest ones.
_MOST_BYTES = 64 << 20
_MOST_LETTERS = 20_000
#: Maximum size of a letter that is shown.
_LARGEST = 8 << 20

#: A row's columns and their texts; None is NULL.
Row = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter without its row."""

    #: Its offset in the file, and its size in bytes.
    place: int
    size: int
    #: Unix seconds, or 0.
    time: float
    table: str
    topic: str
    operation: str
    commit_lsn: str
    ordinal: int
    xid: int
    error: str
    reason: str
    #: The key columns' texts by name; empty if the key is not known.
    key: tuple[tuple[str, str | None], ...] = ()
    #: The same for the row before, if the change assigned a different key.
    former_key: tuple[tuple[str, str | None], ...] = ()
    #: Its ID for users, the same in the file and in the topic.
    id: str = ""
    #: The row is not available any more, only the message that Kafka rejected.
    is_encoded: bool = False

    @property
    def identity(self) -> str:
        """The identity of its change; see `bwtui.kafka.dead_letter_topic`."""
        return identity(self.table, self.operation, self.commit_lsn, self.ordinal)


class DeadLetterRows(NamedTuple):
    """A letter's row before and after; None if PostgreSQL sent none, or the letter is truncated."""

    before: Row | None
    after: Row | None


class DeadLetterFile:
    """Reads a relay's dead letters incrementally."""

    def __init__(self, path: Path, key_columns: Callable[[str], Sequence[str]]) -> None:
        """Take ``key_columns``, which returns the key columns of a table, or none if they are not known."""
        self.path = path
        self._key_columns = key_columns
        self._forget()

    def _forget(self) -> None:
        self.letters: list[DeadLetter] = []
        #: Number of lines that are not valid letters, and bytes skipped at the start of the file.
        self.unreadable = self.skipped = 0
        #: Number of letters that were read, but are older than those that are kept.
        self.cut = 0
        #: The offset up to which the file was read.
        self.end = 0
        self._file: tuple[int, int] | None = None

    @property
    def first(self) -> int:
        """The offset from which on all letters are kept."""
        if self.cut and self.letters:
            return self.letters[0].place
        return self.skipped

    def size(self) -> int:
        """Return the file's size in bytes. Raises OSError."""
        return self._stat()[1]

    def is_changed(self) -> bool:
        """Return whether there is more to read, judged only by the file's identity and size. Raises
        OSError.
        """
        return self._stat() != (self._file, self.end)

    def read(self) -> None:
        """Read the new letters. Raises OSError."""
        identity, size = self._stat()
        if identity != self._file or size < self.end:
            self._forget()
            self._file = identity
        if identity is None or size == self.end:
            return
        with self.path.open("rb") as file:
            if not self.end and size > _MOST_BYTES:
                file.seek(size - _MOST_BYTES)
                file.readline()
                self.end = self.skipped = file.tell()
            file.seek(self.end)
            for line in file:
                if not line.endswith(b"\n"):
                    # The line is being written, or was when its relay was killed.
                    break
                self._take(line)
                self.end += len(line)
        self.cut += max(0, len(self.letters) - _MOST_LETTERS)
        del self.letters[:-_MOST_LETTERS]

    def rows(self, letter: DeadLetter) -> DeadLetterRows | None:
        """Return the row of a letter; None if it is too large, or not there any more. Raises OSError."""
        if letter.size > _LARGEST:
            return None
        with self.path.open("rb") as file:
            file.seek(letter.place)
            content = _parsed(file.read(letter.size))
        return (
            None
            if content is None
            else DeadLetterRows(_row(content.get("before")), _row(content.get("after")))
        )

    def line(self, letter: DeadLetter) -> str:
        """Return a letter as it is in the file, or "". Raises OSError."""
        with self.path.open("rb") as file:
            file.seek(letter.place)
            return file.read(min(letter.size, _LARGEST)).decode("utf-8", "replace").strip()

    def _stat(self) -> tuple[tuple[int, int] | None, int]:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None, 0
        return (status.st_dev, status.st_ino), status.st_size

    def _take(self, line: bytes) -> None:
        content = _parsed(line)
        letter = None if content is None else self._letter(content, len(line))
        if letter is None:
            self.unreadable += 1
        else:
            self.letters.append(letter)

    def _letter(self, content: dict[str, Any], size: int) -> DeadLetter | None:
        try:
            table = str(content["table"])
            before, after = _row(content.get("before")), _row(content.get("after"))
            # Older letters lack the key columns, or have none for a table that is rejected as a whole.
            named = content.get("key")
            columns = list(map(str, named)) if isinstance(named, list) else []
            columns = columns or list(self._key_columns(table))
            key, former = _key(after or before, columns), _key(before, columns)
            return DeadLetter(
                self.end,
                size,
                _seconds(str(content.get("time", ""))),
                table,
                str(content.get("topic", "")),
                str(content["operation"]),
                str(content["commit_lsn"]),
                int(content["ordinal"]),
                int(content.get("xid") or 0),
                str(content.get("error", "")),
                str(content.get("reason", "")),
                key,
                former if former != key and all(value is not None for _, value in former) else (),
                letter_id(content),
                set(ENCODED) <= (after or {}).keys(),
            )
        except (KeyError, TypeError, ValueError):
            return None


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _row(row: object) -> Row | None:
    if not isinstance(row, dict):
        return None
    return {str(name): None if value is None else str(value) for name, value in row.items()}


def _key(row: Row | None, columns: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    """Return the key of a row, in the order of the table's columns; empty if part of it is missing."""
    if not row or not columns or not all(name in row for name in columns):
        return ()
    return tuple((name, value) for name, value in row.items() if name in columns)


def letter_id(content: Mapping[str, Any]) -> str:
    """Return a letter's ID for the command line, the same in the file and the topic, with or without its
    row.
    """
    about = [content.get(name) for name in ("time", "table", "operation", "commit_lsn", "ordinal", "xid")]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]


def keys_of(letter: DeadLetter) -> list[tuple[tuple[str, str | None], ...]]:
    """Return the keys of the rows that a letter concerns: the present one, and the row's former one."""
    return [key for key in (letter.key, letter.former_key) if key]


def printed_name(table: str) -> str:
    """Return a table's name as a pattern for ``--table`` in a printed command, quoted if necessary."""
    return table if re.fullmatch(r"[\w.]+", table, re.ASCII) else shlex.quote(re.escape(table))


def _seconds(text: str) -> float:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


# The dead letters: rows dropped on purpose, each with the reason, fsynced before their LSN is confirmed.
#
# One JSON object per line, in a file that only its owner may read, since it contains row values::
#
#     {"time": "…", "table": "public.orders", "topic": "orders", "operation": "update",
#      "commit_lsn": "0/…", "ordinal": 3, "xid": 741, "error": "…", "reason": "…", "key": ["id"],
#      "before": {…} | null, "after": {…} | null}
#
# A row is its columns' text forms as PostgreSQL wrote them. null is NULL, a value that PostgreSQL did not
# send
# (unchanged TOAST) is omitted, and bytes that are not UTF-8 are lone surrogates (surrogateescape).

#: The columns of a dead letter whose row is not available any more: only the message that Kafka rejected is.
ENCODED = ("base64 of the message's key", "base64 of the message's value")


@dataclass(frozen=True, slots=True)
class ChangeIdentity:
    """Identifies a change: the commit's LSN, and the ordinal among its transaction's row changes.

    For a row of the snapshot the LSN is the consistent point, the ordinal counts the table's rows, and xid is
    0.
    """

    commit_lsn: int
    ordinal: int
    xid: int


@dataclass(frozen=True, slots=True)
class DroppedRow:
    table: str
    topic: str
    operation: str
    identity: ChangeIdentity
    columns: Sequence[str]
    before: Sequence[Field] | None
    after: Sequence[Field] | None
    #: The key's columns; empty if the table has no key.
    key: Sequence[str] = ()


class DeadLetterWriter:
    """Appends to the dead-letter file of one relay."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "dead-letters.jsonl"

    def letter(self, row: DroppedRow, error: str, reason: str) -> dict[str, Any]:
        """Return the dead letter for ``row``."""
        return {
            "time": datetime.datetime.now(datetime.UTC).isoformat(),
            "table": row.table,
            "topic": row.topic,
            "operation": row.operation,
            "commit_lsn": format_lsn(row.identity.commit_lsn),
            "ordinal": row.identity.ordinal,
            "xid": row.identity.xid,
            "error": error,
            "reason": reason,
            "key": list(row.key),
            "before": _texts(row.columns, row.before),
            "after": _texts(row.columns, row.after),
        }

    def keep(self, letter: dict[str, Any]) -> None:
        """Write ``letter`` durably. Raises OSError."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.path, "ab", opener=open_private) as file:
            file.write(json.dumps(letter).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the dead letters, oldest first."""
        if self.path.exists():
            with self.path.open("rb") as file:
                for line in file:
                    yield json.loads(line)


def _texts(columns: Sequence[str], fields: Sequence[Field] | None) -> dict[str, str | None] | None:
    if fields is None:
        return None
    return {
        name: None if field is None else field.decode("utf-8", "surrogateescape")
        for name, field in zip(columns, fields, strict=True)
        if field is None or isinstance(field, bytes)
    }
