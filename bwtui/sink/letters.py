"""The dead letters of a relay as others read them: which there are, while it may write more, and each row."""

import datetime
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bwtui.kafka.letters import identity
from bwtui.sink.dead_letter import ENCODED

#: Of a larger file its end is read; and so many letters are kept, the newest ones.
_MOST_BYTES = 64 << 20
_MOST_LETTERS = 20_000
#: A larger letter is not shown.
_LARGEST = 8 << 20

#: A row's columns and their texts; None is NULL.
Row = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Letter:
    """One letter without its row."""

    #: Where in the file it begins, and its bytes.
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
    #: The key columns' texts by name; empty where the key is not known.
    key: tuple[tuple[str, str | None], ...] = ()
    #: The same of the row before, where the change was to give it another key.
    former_key: tuple[tuple[str, str | None], ...] = ()
    #: Its name for people: the same in the file and in the topic.
    id: str = ""
    #: The row is known no more, only the message that Kafka has refused.
    is_encoded: bool = False

    @property
    def identity(self) -> str:
        """Which change it is of; see `bwtui.kafka.letters`."""
        return identity(self.table, self.operation, self.commit_lsn, self.ordinal)


class Rows(NamedTuple):
    """A letter's row before and after; None where PostgreSQL said none, or the letter is cut."""

    before: Row | None
    after: Row | None


class LetterFile:
    """Reads a relay's dead letters, and goes on where it has read before."""

    def __init__(self, path: Path, key_columns: Callable[[str], Sequence[str]]) -> None:
        """``key_columns`` returns those of a table, or none where they are not known."""
        self.path = path
        self._key_columns = key_columns
        self._forget()

    def _forget(self) -> None:
        self.letters: list[Letter] = []
        #: Lines that are no letter, and bytes before the end that were left out.
        self.unreadable = self.left_out = 0
        #: Letters that were read, and are older than those that are kept.
        self.cut = 0
        #: Up to where it was read.
        self.end = 0
        self._file: tuple[int, int] | None = None

    @property
    def first(self) -> int:
        """From which byte on all letters are kept."""
        if self.cut and self.letters:
            return self.letters[0].place
        return self.left_out

    def size(self) -> int:
        """Return the file's bytes. Raises OSError."""
        return self._look()[1]

    def is_changed(self) -> bool:
        """Say whether there is something to read, by the file's size alone. Raises OSError."""
        return self._look() != (self._file, self.end)

    def read(self) -> None:
        """Read what is new. Raises OSError."""
        identity, size = self._look()
        if identity != self._file or size < self.end:
            self._forget()
            self._file = identity
        if identity is None or size == self.end:
            return
        with self.path.open("rb") as file:
            if not self.end and size > _MOST_BYTES:
                file.seek(size - _MOST_BYTES)
                file.readline()
                self.end = self.left_out = file.tell()
            file.seek(self.end)
            for line in file:
                if not line.endswith(b"\n"):
                    # It is being written, or was when its relay was killed.
                    break
                self._take(line)
                self.end += len(line)
        self.cut += max(0, len(self.letters) - _MOST_LETTERS)
        del self.letters[:-_MOST_LETTERS]

    def rows(self, letter: Letter) -> Rows | None:
        """Return the row of a letter; None when it is too large, or not there any more. Raises OSError."""
        if letter.size > _LARGEST:
            return None
        with self.path.open("rb") as file:
            file.seek(letter.place)
            found = _parsed(file.read(letter.size))
        return None if found is None else Rows(_row(found.get("before")), _row(found.get("after")))

    def line(self, letter: Letter) -> str:
        """Return a letter as it stands in the file, or nothing. Raises OSError."""
        with self.path.open("rb") as file:
            file.seek(letter.place)
            return file.read(min(letter.size, _LARGEST)).decode("utf-8", "replace").strip()

    def _look(self) -> tuple[tuple[int, int] | None, int]:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None, 0
        return (status.st_dev, status.st_ino), status.st_size

    def _take(self, line: bytes) -> None:
        found = _parsed(line)
        letter = None if found is None else self._letter(found, len(line))
        if letter is None:
            self.unreadable += 1
        else:
            self.letters.append(letter)

    def _letter(self, found: dict[str, Any], size: int) -> Letter | None:
        try:
            table = str(found["table"])
            before, after = _row(found.get("before")), _row(found.get("after"))
            # Older letters do not say it themselves, or not of a table that is refused as a whole.
            named = found.get("key")
            columns = list(map(str, named)) if isinstance(named, list) else []
            columns = columns or list(self._key_columns(table))
            key, former = _key(after or before, columns), _key(before, columns)
            return Letter(
                self.end,
                size,
                _seconds(str(found.get("time", ""))),
                table,
                str(found.get("topic", "")),
                str(found["operation"]),
                str(found["commit_lsn"]),
                int(found["ordinal"]),
                int(found.get("xid") or 0),
                str(found.get("error", "")),
                str(found.get("reason", "")),
                key,
                former if former != key and all(value is not None for _, value in former) else (),
                letter_id(found),
                set(ENCODED) <= (after or {}).keys(),
            )
        except (KeyError, TypeError, ValueError):
            return None


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _row(given: object) -> Row | None:
    if not isinstance(given, dict):
        return None
    return {str(name): None if value is None else str(value) for name, value in given.items()}


def _key(row: Row | None, columns: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    """Return the key of a row, in the order of the table's columns; nothing where not all of it is there."""
    if not row or not columns or not all(name in row for name in columns):
        return ()
    return tuple((name, value) for name, value in row.items() if name in columns)


def letter_id(found: Mapping[str, Any]) -> str:
    """Return what a letter is called on the command line, wherever it stands, and with or without its row."""
    about = [found.get(name) for name in ("time", "table", "operation", "commit_lsn", "ordinal", "xid")]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]


def keys_of(letter: Letter) -> list[tuple[tuple[str, str | None], ...]]:
    """Return the keys whose rows a letter is about: its row's, and the one that the row had before."""
    return [key for key in (letter.key, letter.former_key) if key]


def printed_name(table: str) -> str:
    """Return a table's name as an expression for ``--table`` of a printed command, quoted if need be."""
    return table if re.fullmatch(r"[\w.]+", table, re.ASCII) else shlex.quote(re.escape(table))


def _seconds(text: str) -> float:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
