"""Log of the actions on a relay's dead letters; entries are only ever added.

The log has one JSON object per line, each for some dead letters, given by their ids::

    {"time": 1763900000.0, "what": "retry", "letters": ["3f9a01c2b7d4"], "by": "ann", "task": "4-orders",
     "requested": 1763900000.0, "place": 48213, "text": "", "new": []}

The dead letters themselves stay unchanged in their own file, which only the relay writes. Any number of
commands may write this log. The last entry about a dead letter counts.
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

from bwtui.durable_files import open_private, private_parent, sync
from bwtui.file_errors import file_failed
from bwtui.model.from_json import from_json_object
from bwtui.state_folder import state_folder

#: retry: the rows were requested; sent: the relay has sent the row in its current state; refused: the row was
#: rejected again, and has a new dead letter; failed: the relay has not sent it, and the text says why; drop:
#: nothing is to be done.
What = Literal["retry", "sent", "refused", "failed", "drop"]

NAME = "dead-letters-handled.jsonl"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


@dataclass(frozen=True, slots=True)
class DeadLetterAction:
    """One action on dead letters. Times are Unix seconds."""

    what: What
    letters: tuple[str, ...]
    time: float = field(default_factory=time.time)
    #: The user of this machine who did it.
    by: str = field(default_factory=_user)
    #: The backfill task that sends the rows, and the time of the request: a new state folder reuses ids.
    task: str = ""
    requested: float = 0.0
    #: Size of the dead-letter file before the request. Dead letters of the task are stored after this place,
    #: whatever the clock says.
    place: int = 0
    #: The reason, in a user's own words or the relay's.
    text: str = ""
    #: The new dead letters of those that were rejected again.
    new: tuple[str, ...] = ()


class DeadLetterActionLog:
    """The log of one relay."""

    def __init__(self, relay: str) -> None:
        self.path = state_folder(relay) / NAME

    def read(self) -> Mapping[str, tuple[DeadLetterAction, ...]]:
        """Return the actions on each dead letter, by its id, oldest first. Raises StateFailed."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise file_failed("the action log of dead letters can't be read", error) from error
        actions: dict[str, tuple[DeadLetterAction, ...]] = {}
        # A line that a crash has torn was never reported as done.
        for note in filter(None, map(_note, lines)):
            for id in note.letters:
                actions[id] = (*actions.get(id, ()), note)
        return actions

    def size(self) -> int:
        """Return the size of the log in bytes, which shows whether it has grown."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def add(self, notes: Iterable[DeadLetterAction]) -> None:
        """Append entries; they are durable when this returns. Raises StateFailed."""
        lines = b"".join(json.dumps(dataclasses.asdict(note)).encode() + b"\n" for note in notes)
        if not lines:
            return
        try:
            private_parent(self.path)
            is_new = not self.path.exists()
            with open(self.path, "ab+", opener=open_private) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                    # Terminate the line that a crash has torn.
                    lines = b"\n" + lines
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                sync(self.path.parent)
        except OSError as error:
            raise file_failed("the action log of dead letters can't be written", error) from error


def _note(line: bytes) -> DeadLetterAction | None:
    try:
        entry: Any = json.loads(line)
        note: DeadLetterAction = from_json_object(DeadLetterAction, entry)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    texts = (*note.letters, *note.new, note.by, note.task, note.text)
    is_sound = (
        note.what in get_args(What)
        and all(isinstance(text, str) for text in texts)
        and all(isinstance(number, int | float) for number in (note.time, note.requested, note.place))
    )
    return note if is_sound else None
