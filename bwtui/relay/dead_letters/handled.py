"""What was done about a relay's dead letters: a log beside them, from which nothing is removed.

One JSON object a line, each for some letters by their ids::

    {"time": 1763900000.0, "what": "retry", "letters": ["3f9a01c2b7d4"], "by": "ann", "task": "4-orders",
     "requested": 1763900000.0, "place": 48213, "text": "", "new": []}

The letters themselves stay as they are, in a file that only the relay writes. Any number of commands may
write this one. What stands last about a letter holds.
"""

import dataclasses
import fcntl
import json
import os
import pwd
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from bwtui.durable import private, private_parent, sync
from bwtui.file_errors import file_failed
from bwtui.model.from_json import made_of
from bwtui.state_folder import state_folder

#: Its rows were asked for; the relay has sent the row as it was by then; it was refused again, and has a new
#: letter; the relay has not sent it, and why; nothing is to be done about it.
What = Literal["retry", "sent", "refused", "failed", "drop"]

NAME = "dead-letters-handled.jsonl"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that was done about letters. Times are Unix seconds."""

    what: What
    letters: tuple[str, ...]
    time: float = field(default_factory=time.time)
    #: The user of this machine who did it.
    by: str = field(default_factory=_user)
    #: The relay's task that sends the rows, and when it was asked for: ids come again in a new state folder.
    task: str = ""
    requested: float = 0.0
    #: How large the file of letters was before that: the task's own stand after it, whatever the clock says.
    place: int = 0
    #: Why, in somebody's own words, or the relay's.
    text: str = ""
    #: The new letters of those that were refused again.
    new: tuple[str, ...] = ()


class Handled:
    """The log of one relay."""

    def __init__(self, relay: str) -> None:
        self.path = state_folder(relay) / NAME

    def read(self) -> Mapping[str, tuple[Note, ...]]:
        """Return what was done about each letter, by its id, oldest first. Raises StateFailed."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise file_failed("what was done about dead letters can't be read", error) from error
        found: dict[str, tuple[Note, ...]] = {}
        # A line that a crash has torn was told to nobody as done.
        for note in filter(None, map(_note, lines)):
            for id in note.letters:
                found[id] = (*found.get(id, ()), note)
        return found

    def size(self) -> int:
        """Return the bytes of the log, by which it is known whether there is more."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def add(self, notes: Iterable[Note]) -> None:
        """Write notes down; they are durable when this returns. Raises StateFailed."""
        lines = b"".join(json.dumps(dataclasses.asdict(note)).encode() + b"\n" for note in notes)
        if not lines:
            return
        try:
            private_parent(self.path)
            is_new = not self.path.exists()
            with open(self.path, "ab+", opener=private) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                    # The line that a crash has torn ends here.
                    lines = b"\n" + lines
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                sync(self.path.parent)
        except OSError as error:
            raise file_failed("what is done about dead letters can't be written down", error) from error


def _note(line: bytes) -> Note | None:
    try:
        found: Any = json.loads(line)
        note: Note = made_of(Note, found)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    texts = (*note.letters, *note.new, note.by, note.task, note.text)
    is_sound = (
        note.what in get_args(What)
        and all(isinstance(text, str) for text in texts)
        and all(isinstance(number, int | float) for number in (note.time, note.requested, note.place))
    )
    return note if is_sound else None
