"""The state of each dead letter, from the log of actions and the relay's tasks."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bwtui.errors import StateFailed
from bwtui.model.backfill import BackfillStatus
from bwtui.model.backfill_texts import progress_text
from bwtui.relay.dead_letters.action_log import DeadLetterAction, DeadLetterActionLog, What
from bwtui.sink.dead_letter_file import DeadLetter, DeadLetterFile, keys_of
from bwtui.sink.dead_letter_writer import DeadLetterWriter
from bwtui.state_folder import state_folder

#: open: something is to be done; asked: the relay was asked to send the row; sent: it has sent the row in its
#: current state; refused: the row was rejected again, and its new dead letter is open; dropped: set aside.
State = Literal["open", "asked", "sent", "refused", "dropped"]

#: Operations that a dead letter of a backfilled row, or of a tombstone for a key without a row, carries.
_PUT_IN = ("backfill", "delete")
#: States of dead letters whose row is still to be sent.
_UNSENT = ("open", "asked")
#: Minimum seconds between two counts.
_COUNTED_SECONDS = 5.0


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


def standing(
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
        self._open: int | None = None

    def count(self) -> int | None:
        """Return their number, or None while it is unknown, or nothing was done about any dead letter."""
        if not self._handled.size():
            return None
        if not self._counted_at or time.monotonic() - self._counted_at > _COUNTED_SECONDS:
            self._open, self._counted_at = self._count(), time.monotonic()
        return self._open

    def _count(self) -> int | None:
        # Before the letters: those of a task's rows are written before it is over.
        tasks = {task.id: task for task in self._tasks()}
        try:
            self._file.read()
            notes = self._handled.read()
        except (OSError, StateFailed):
            return None
        if self._file.first:
            # Older letters are not read.
            return None
        letters = self._file.letters
        every = with_settled(notes, settled(letters, notes, tasks, self._file))
        open_ids = {one.id for one in letters if standing(every.get(one.id, ()), tasks).state in _UNSENT}
        return len(open_ids)


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
        what: What, letters: Sequence[DeadLetter], text: str = "", new: tuple[str, ...] = ()
    ) -> DeadLetterAction:
        ids = tuple(letter.id for letter in letters)
        return DeadLetterAction(what, ids, task=task.id, requested=task.requested, text=text, new=new)

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
