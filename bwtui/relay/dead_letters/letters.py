"""Dead letters: the log of actions on them, and their states, from it and the relay's tasks.

The action log has one JSON object per line, each for some dead letters, given by their ids::

    {"time": 1763900000.0, "what": "retry", "letters": ["3f9a01c2b7d4"], "by": "ann", "task": "4-orders",
     "requested": 1763900000.0, "place": 48213, "text": "", "new": []}

Entries are only ever added. The dead letters themselves stay unchanged in their own file, which only the
relay writes. Any number of commands may write the log. The last entry about a dead letter counts.
"""

import dataclasses
import fcntl
import json
import os
import pwd
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from bwtui.durable_files import open_private, private_parent, sync
from bwtui.errors import StateFailed
from bwtui.file_errors import file_failed
from bwtui.model.backfill import BackfillStatus
from bwtui.model.backfill_texts import progress_text
from bwtui.model.from_json import from_json_object
from bwtui.sink.dead_letters import DeadLetter, DeadLetterFile, DeadLetterWriter, keys_of
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


#: open: something is to be done; asked: the relay was asked to send the row; sent: it has sent the row in its
#: current state; refused: the row was rejected again, and its new dead letter is open; dropped: set aside.
State = Literal["open", "asked", "sent", "refused", "dropped"]

#: Operations that a dead letter of a backfilled row, or of a tombstone for a key without a row, carries.
_PUT_IN = ("backfill", "delete")
#: States of dead letters whose row is still to be sent.
_UNSENT = ("open", "asked")
#: Minimum seconds between two counts, and while rows are being dropped.
_COUNTED_SECONDS, _DROPPING_SECONDS = 5.0, 1.0


@dataclass(frozen=True, slots=True)
class DeadLetterState:
    """The state of one dead letter, and the text to show for it."""

    state: State = "open"
    detail: str = ""
    notes: tuple[DeadLetterAction, ...] = ()

    @property
    def is_open(self) -> bool:
        """True if the dead letter needs an action."""
        return self.state == "open"


def dead_letter_state(
    notes: Sequence[DeadLetterAction], tasks: Mapping[str, BackfillStatus] | None
) -> DeadLetterState:
    """Return the state of a dead letter with ``notes``; ``tasks`` are the relay's, by id.

    ``tasks`` is None if the relay does not report them. A dead letter is open if its row is not known to have
    been sent and its request is over: it does no harm to request the row again.
    """
    notes = tuple(notes)
    if not notes:
        return DeadLetterState()
    last = notes[-1]
    if last.what == "drop":
        return DeadLetterState("dropped", last.text, notes)
    if last.what == "sent":
        return DeadLetterState("sent", f"by {last.task}", notes)
    if last.what == "refused":
        return DeadLetterState("refused", f"its new dead letter: {', '.join(last.new)}", notes)
    if last.what == "failed":
        return DeadLetterState("open", f"{last.task}: {last.text}", notes)
    if tasks is None:
        return DeadLetterState("asked", f"as {last.task}; the relay does not report its progress", notes)
    task = _task(last, tasks)
    if task is None or task.is_over:
        return DeadLetterState("open", f"requested as {last.task}, whose result is unknown", notes)
    return DeadLetterState("asked", f"{last.task} {progress_text(task)}", notes)


def settled(
    letters: Iterable[DeadLetter],
    notes: Mapping[str, Sequence[DeadLetterAction]],
    tasks: Mapping[str, BackfillStatus],
    file: DeadLetterFile,
) -> list[DeadLetterAction]:
    """Return the log entries for ``letters`` whose rows were requested and whose tasks are over.

    ``file`` is the relay's own, and was read after ``tasks``: dead letters of a task's rows are written to it
    before the task is over. A topic may not have them yet.
    """
    ended: dict[str, tuple[DeadLetterAction, BackfillStatus, list[DeadLetter]]] = {}
    for letter in letters:
        last = notes[letter.id][-1] if notes.get(letter.id) else None
        task = _task(last, tasks) if last is not None and last.what == "retry" else None
        # Skip tasks if the file was not read back to that place: rows that were rejected again could be
        # missed.
        if last is not None and task is not None and task.is_over and last.place >= file.first:
            ended.setdefault(task.id, (last, task, []))[2].append(letter)
    actions: list[DeadLetterAction] = []
    for request, task, of_task in ended.values():
        actions += _notes(request, task, of_task, file.letters)
    return actions


def with_settled(
    notes: Mapping[str, Sequence[DeadLetterAction]], ended: Iterable[DeadLetterAction]
) -> dict[str, Sequence[DeadLetterAction]]:
    """Return ``notes`` with the entries of `settled` added, by dead letter."""
    every = dict(notes)
    for note in ended:
        every |= {id: (*every[id], note) for id in note.letters}
    return every


class OpenLetters:
    """Counts the dead letters that still need an action; its owner's thread calls it."""

    def __init__(self, relay: str, tasks: Callable[[], Iterable[BackfillStatus]]) -> None:
        self._tasks = tasks
        self._handled = DeadLetterActionLog(relay)
        self._file = DeadLetterFile(DeadLetterWriter(state_folder(relay)).path, lambda table: ())
        self._counted_at = 0.0
        self._dropped = 0
        self._open: int | None = None

    def count(self, dropped: int) -> int | None:
        """Return their number, or None if it is unknown; ``dropped`` is that of rows this run has dropped."""
        seconds = _COUNTED_SECONDS if dropped == self._dropped else _DROPPING_SECONDS
        if not self._counted_at or time.monotonic() - self._counted_at > seconds:
            self._open, self._counted_at, self._dropped = self._count(dropped), time.monotonic(), dropped
        return self._open

    def _count(self, dropped: int) -> int | None:
        # Before the letters: those of a task's rows are written before it is over.
        tasks = {task.id: task for task in self._tasks()}
        try:
            self._file.read()
            notes = self._handled.read()
        except (OSError, StateFailed):
            return None
        letters = self._file.letters
        every = with_settled(notes, settled(letters, notes, tasks, self._file))
        open_ids = {
            one.id for one in letters if dead_letter_state(every.get(one.id, ()), tasks).state in _UNSENT
        }
        # Older letters of a large file are not read.
        return max(dropped, len(open_ids)) if self._file.first else len(open_ids)


def _task(note: DeadLetterAction, tasks: Mapping[str, BackfillStatus]) -> BackfillStatus | None:
    task = tasks.get(note.task)
    return task if task is not None and task.requested == note.requested else None


def _notes(
    request: DeadLetterAction,
    task: BackfillStatus,
    of_task: Sequence[DeadLetter],
    letters: Sequence[DeadLetter],
) -> list[DeadLetterAction]:

    def note(
        action: What, letters: Sequence[DeadLetter], text: str = "", new: tuple[str, ...] = ()
    ) -> DeadLetterAction:
        ids = tuple(letter.id for letter in letters)
        return DeadLetterAction(action, ids, task=task.id, requested=task.requested, text=text, new=new)

    if task.state != "done":
        return [note("failed", of_task, task.error or task.state)]
    new_letters: dict[object, str] = {
        key: letter.id
        for letter in letters
        if letter.table == task.table
        and letter.operation in _PUT_IN
        and not letter.xid
        and (letter.place >= request.place or letter.time >= request.time)
        for key in keys_of(letter)
    }
    results = [
        (one, tuple(new_letters[key] for key in keys_of(one) if key in new_letters)) for one in of_task
    ]
    sent = [one for one, new in results if not new]
    actions = [note("sent", sent)] if sent else []
    return actions + [note("refused", [one], new=new) for one, new in results if new]
