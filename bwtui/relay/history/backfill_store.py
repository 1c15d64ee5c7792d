"""Store backfill requests on the disk, so that a kill loses none of them.

Each request is a small JSON file, ``ID.json``, in a folder of the relay; its list of keys, if it has one, is
in ``ID.keys`` next to it until the request has ended. The main thread works on the tasks; any other thread
may submit, pause or cancel one. The main thread waits here for a file of a few hundred bytes at most, never
for a client.
"""

import base64
import binascii
import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from bwtui.durable_files import (
    open_private,
    private_file,
    private_folders,
    private_parent,
    sync,
    write_durably,
)
from bwtui.errors import Indeterminate, RefusedError, StateFailed
from bwtui.file_errors import file_failed
from bwtui.model.backfill import (
    UNKNOWN,
    BackfillCommand,
    BackfillReason,
    BackfillRequest,
    BackfillState,
    BackfillStatus,
)
from bwtui.model.backfill_texts import snapshot_command
from bwtui.options import nearest
from bwtui.relay.process.control import name_if_several
from bwtui.relay.state.run_state import RunState

#: The columns of a key as texts, or the bytes of a message key. A list of keys is a file with one JSON value
#: per line: ``["7", "abc"]`` is a row's key, the columns of the message's key, in its order, in PostgreSQL's
#: text form; ``{"raw": "<base64>"}`` is the bytes of a message key that is in the topic without a row in the
#: table, for a tombstone.
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
        raise _keys_damaged(path, "it is not valid UTF-8") from error


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
        raise _keys_damaged(path, f"line {number} is not a key") from error
    # A torn line may be valid JSON by accident, like a number that was cut off.
    if not line.endswith("\n"):
        raise _keys_damaged(path, f"line {number} is truncated")
    return key


def _keys_damaged(path: Path, reason: str) -> StateFailed:
    return StateFailed(
        f"the list of keys {path} is damaged: {reason}",
        "submit the request again: 'bwtui verify --database' finds the keys that still differ",
    )


def count_keys(path: Path) -> int:
    """Return the number of lines of a list. Raises OSError."""
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK), b""))


#: The request to a task that the main thread is working on, not carried out yet.
Wanted = Literal["", "pause", "cancel"]

#: The fields that describe a task's progress.
PROGRESS = (
    "state",
    "after",
    "key",
    "done_keys",
    "rows",
    "tombstones",
    "left_out",
    "dropped",
    "chunks",
    "ended",
)
#: The fields that distinguish it from a task with the same id, after the relay's state was lost.
_WHICH = ("requested",)

_PENDING = {"pause": "will pause", "cancel": "will be cancelled"}


@dataclass(slots=True)
class BackfillTask:
    """One request, and its progress.

    The main thread owns all but ``wanted`` and ``asked``, which `BackfillStore.control` sets from any thread.
    Times are Unix seconds.
    """

    id: str
    request: BackfillRequest
    state: BackfillState = "waiting"
    #: The last key of the last finished chunk, as PostgreSQL's texts; None to start from the beginning.
    after: tuple[str, ...] | None = None
    #: The columns of that key, in the order of their index.
    key: tuple[str, ...] | None = None
    #: For a list of keys, the number of finished lines.
    done_keys: int = 0
    detail: str = ""
    rows: int = 0
    tombstones: int = 0
    left_out: int = 0
    dropped: int = 0
    estimate: int | None = None
    chunks: int = 0
    again: int = 0
    requested: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    error: str = ""
    hint: str = ""
    is_gone: bool = False
    is_noted: bool = False
    wanted: Wanted = ""
    #: When ``wanted`` was requested.
    asked: float = 0.0

    @property
    def is_over(self) -> bool:
        """True if the task has ended."""
        return self.state in ("done", "failed", "cancelled")

    def status(self) -> BackfillStatus:
        """Return the current status."""
        pending = _PENDING.get(self.wanted, "") if self.state in ("waiting", "running") else ""
        fields = {name: getattr(self, name) for name in _SHOWN}
        fields |= {name: getattr(self.request, name) for name in ("table", "reason", "where")}
        return BackfillStatus(**fields | {"detail": pending or self.detail})

    def obey(self) -> None:
        """Carry out a pause or cancellation; only while no thread is working on the task."""
        if self.is_over or not self.wanted:
            return
        if self.wanted == "cancel":
            self.state, self.ended, self.detail = "cancelled", self.asked, ""
        else:
            self.state, self.detail = "paused", ""

    def after_chunk(
        self,
        sent: tuple[int, int, int, int],
        last: tuple[str, ...] | None,
        key: tuple[str, ...] | None,
        keys: Sequence[object] | None,
    ) -> "BackfillTask":
        """Return the task as it is once a chunk is done.

        ``sent`` are the counts of its rows, its tombstones, and what was left out and dropped; ``last`` is
        its last key, None at the end of the table, with the columns ``key``; ``keys`` are those of a list.
        """
        rows, tombstones, left_out, dropped = sent
        updated = dataclasses.replace(
            self,
            rows=self.rows + rows,
            tombstones=self.tombstones + tombstones,
            left_out=self.left_out + left_out,
            dropped=self.dropped + dropped,
            chunks=self.chunks + 1,
            detail="",
        )
        if keys is not None:
            # The next step finds that there are no more keys.
            updated.done_keys += len(keys)
        else:
            updated.after, updated.key = last, key
            if last is None:
                updated.state, updated.ended = "done", time.time()
        return updated

    def take(self, updated: "BackfillTask") -> None:
        """Take over the progress of ``updated``, which is this task after a chunk."""
        for name in PROGRESS:
            setattr(self, name, getattr(updated, name))
        self.detail = updated.detail

    def progress(self) -> dict[str, Any]:
        """Return the progress, for the transaction that holds the task's rows."""
        return {name: getattr(self, name) for name in (*_WHICH, *PROGRESS)}

    def is_behind(self, progress: Mapping[str, Any]) -> bool:
        """Return whether ``progress`` is of this task, and further than its own."""
        is_same = all(progress.get(name) == getattr(self, name) for name in _WHICH)
        return is_same and not self.is_over and progress.get("chunks", 0) > self.chunks

    def to_json(self) -> dict[str, Any]:
        """Return the content for `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> "BackfillTask":
        """Rebuild a task of an earlier run. Raises ValueError if the data is not a task."""
        if not isinstance(data, dict):
            raise ValueError("not an object")
        fields = {field.name: data[field.name] for field in dataclasses.fields(cls) if field.name in data}
        request = data.get("request")
        if not isinstance(request, dict):
            raise ValueError("without a request")
        for name in ("after", "key"):
            if isinstance(fields.get(name), list):
                fields[name] = tuple(fields[name])
        try:
            fields["request"] = BackfillRequest.from_json(request)
            task = cls(**fields)
            task._check()
        except TypeError as error:
            raise ValueError(str(error)) from error
        if not task.is_over:
            task.state = "paused" if task.wanted == "pause" else "waiting"
            task.detail = ""
            task.obey()
        return task

    def _check(self) -> None:
        """Raise ValueError if a field has an invalid value."""
        request = self.request
        request_texts = (request.table, request.where, request.keys, request.topic, request.spelling)
        texts = (self.id, self.detail, self.error, self.hint, *request_texts, *request.key_columns)
        sent = (self.rows, self.tombstones, self.left_out, self.dropped)
        counts = (*sent, self.chunks, self.again, self.done_keys)
        times = (self.requested, self.started, self.ended, self.asked)
        is_sound = (
            all(isinstance(text, str) for text in (*texts, *(self.after or ()), *(self.key or ())))
            and all(
                type(count) is int and count >= 0
                for count in (*counts, 0 if self.estimate is None else self.estimate)
            )
            and all(type(time) in (int, float) for time in times)
            and isinstance(self.after, tuple | None)
            and isinstance(self.key, tuple | None)
            and isinstance(request.unkeyed, bool)
            and self.state in get_args(BackfillState)
            and request.reason in get_args(BackfillReason)
            and self.wanted in get_args(Wanted)
        )
        if not is_sound or not self.id or not request.table:
            raise ValueError("a field has an invalid value")


#: Name of the folder within the relay's folder.
FOLDER = "backfills"
#: Number of finished tasks that are kept, and for how many seconds every other one is kept for its client.
KEPT, KEPT_SECONDS = 20, 60.0
#: Maximum letters of the table's name in an id.
_LETTERS = 12
_NAME = re.compile(r"(\d+)(-\w+)?\.json", re.ASCII)


@dataclass(slots=True)
class _StoredTask:
    number: int
    task: BackfillTask
    #: The content of its file.
    saved: dict[str, Any]


#: The fields of a task that its status has, too.
_SHOWN = {field.name for field in dataclasses.fields(BackfillTask)} & {
    field.name for field in dataclasses.fields(BackfillStatus)
}


class BackfillStore:
    """All requests of one relay, oldest first."""

    def __init__(self, folder: Path) -> None:
        """Load the tasks of earlier runs. A damaged file becomes a failed task. Raises StateFailed."""
        self._folder = folder
        #: Held for moments only, never while a file is written.
        self._lock = threading.Lock()
        #: Held while the file of a task is replaced. Code that needs both locks takes this one first.
        self._disk = threading.Lock()
        #: Held by the thread that submits. Taken before either of the others.
        self._submitting = threading.Lock()
        self._entries: dict[str, _StoredTask] = {}
        #: The task that the main thread is working on.
        self._in_hand = ""
        #: Tasks of the current first snapshot. Those of a different slot, or of an abandoned snapshot, are
        #: treated as missing.
        self.firsts: frozenset[str] = frozenset()
        #: Tables whose rows this run failed to send, with the reason; a later request may send them.
        self._unsent: dict[str, str] = {}
        try:
            self._take_up()
        except OSError as error:
            raise file_failed(
                f"the backfill requests in {folder} can't be read", error, name=str(folder)
            ) from error
        self._last_number = max((entry.number for entry in self._entries.values()), default=0)
        self._forget_oldest()

    # -- for any thread ------------------------------------------------------------------------------------

    def submit(self, request: BackfillRequest) -> str:
        """Store a request; it is durable when this returns its id.

        Its list of keys is linked or copied into the folder, and the original stays. Raises RefusedError if a
        request with the same table and reason has not ended, and StateFailed.
        """
        with self._submitting:
            self._refuse_second(request)
            self._last_number += 1
            number = self._last_number
            id = f"{number}-{letters}" if (letters := _letters(request.table)) else str(number)
            task = BackfillTask(id, request, requested=time.time())
            try:
                for _ in private_folders(self._folder):
                    pass
                if request.keys:
                    task.estimate = self._take_keys(Path(request.keys), id)
                    task.request = dataclasses.replace(request, keys=str(self._keys(id)))
                saved = task.to_json()
                write_durably(self._path(id), json.dumps(saved))
            except OSError as error:
                self._remove(id)
                raise file_failed(
                    f"the backfill request for {request.table} can't be stored",
                    error,
                    name=str(self._folder),
                ) from error
            with self._lock:
                self._entries[id] = _StoredTask(number, task, saved)
                if request.reason == "first":
                    self.firsts |= {id}
        return id

    def control(self, id: str, command: BackfillCommand) -> BackfillStatus:
        """Pause, resume or cancel a task; that is durable when this returns the task's status.

        The task that the main thread is working on does so at the end of its chunk. Raises RefusedError for
        an unknown id and for a task that has ended, and StateFailed.
        """
        with self._disk:
            entry = self._unfinished(id)
            pending = "" if command == "resume" else command
            if entry.task.wanted == "cancel" and pending != "cancel":
                raise RefusedError(
                    f"backfill {id} is being cancelled", "submit a new request once it has ended"
                )
            if entry.task.wanted != pending:
                # This excludes the progress that the main thread has made since: only `save` writes that.
                saved = {**entry.saved, "wanted": pending, "asked": time.time()}
                self._write(id, saved)
                with self._lock:
                    entry.saved = saved
                    entry.task.wanted, entry.task.asked = pending, saved["asked"]
                    if id != self._in_hand:
                        self._apply(entry.task)
            status = entry.task.status()
        self._clean_up(entry.task)
        return status

    def statuses(self) -> tuple[BackfillStatus, ...]:
        """Return the statuses of all tasks, oldest first; most finished ones are kept for one minute."""
        with self._lock:
            return tuple(_status_of(entry) for entry in self._sorted())

    def files(self) -> dict[str, tuple[str, ...]]:
        """Return the files of requests whose rows topics may lack, relative to the relay's folder.

        The tables are with them; none for a request whose table is unknown. Without tasks of a first
        snapshot: the file of the snapshot names these.
        """
        with self._lock:
            tasks = [entry.task for entry in self._sorted()]
            return {
                f"{FOLDER}/{task.id}.json": () if task.request.table == UNKNOWN else (task.request.table,)
                for task in tasks
                if task.request.reason != "first"
                and (not task.is_over or (task.status().lacks and not task.is_noted))
            }

    @property
    def has_due(self) -> bool:
        """True if a task has neither ended nor been paused."""
        with self._lock:
            tasks = [entry.task for entry in self._sorted()]
            return any(task.state in ("waiting", "running") and not task.wanted for task in tasks)

    def task(self, id: str) -> BackfillTask | None:
        """Return a stored task, or None; of finished tasks only the newest are stored."""
        with self._lock:
            entry = self._entries.get(id)
            return entry.task if entry is not None else None

    def unnoted(self) -> list[BackfillStatus]:
        """Return the requests with rows that a topic lacks and the coverage ledger does not record yet."""
        with self._lock:
            ended = (entry.task.status() for entry in self._sorted() if entry.task.is_over)
            return [status for status in ended if status.lacks and not status.is_noted]

    def note(self, id: str) -> None:
        """Mark durably that the coverage ledger records what a request did not send, or need not.

        Raises StateFailed.
        """
        with self._disk:
            with self._lock:
                entry = self._entries[id]
                saved = {**entry.task.to_json(), "is_noted": True}
            self._write(id, saved)
            with self._lock:
                entry.saved, entry.task.is_noted = saved, True

    def forget_firsts(self, remaining: Collection[str]) -> None:
        """Forget all tasks of a first snapshot except ``remaining``, and what other tasks did not send.

        Raises StateFailed.
        """
        for status in self.unnoted():
            self.note(status.id)
        with self._disk, self._lock:
            self.firsts = frozenset()
            entries = self._entries.values()
            first_ids = [entry.task.id for entry in entries if entry.task.request.reason == "first"]
            for id in (forgotten := [id for id in first_ids if id not in remaining]):
                del self._entries[id]
        try:
            for id in forgotten:
                self._path(id).unlink(missing_ok=True)
        except OSError as error:
            raise file_failed(f"a backfill request in {self._folder} can't be removed", error) from error

    # -- for the main thread -------------------------------------------------------------------------------

    def next(self) -> BackfillTask | None:
        """Return the first task that may run, or None; the same one until a request changes that.

        Tasks that have to pause or end are marked, and no more of such a task may be sent.
        """
        ended: list[BackfillTask] = []
        with self._lock:
            chosen = None
            for entry in self._sorted():
                task = entry.task
                if not task.is_over:
                    self._apply(task)
                    ended += [task] if task.is_over else []
                if chosen is None and task.state in ("waiting", "running"):
                    chosen = task
                elif task.state == "running":
                    # A task that was requested earlier continues, and this one after it.
                    task.state = "waiting"
            self._in_hand = chosen.id if chosen is not None else ""
        for task in ended:
            self._clean_up(task)
        return chosen

    def save(self, task: BackfillTask) -> None:
        """Write progress, or the end, durably. Raises StateFailed.

        A pause or cancellation that was requested meanwhile is preserved. A task that has ended stays that
        way.
        """
        with self._disk:
            with self._lock:
                entry = self._entries.get(task.id)
                saved = task.to_json()
            if entry is None or entry.saved["state"] in ("done", "failed"):
                return
            self._write(task.id, saved)
            with self._lock:
                entry.saved = saved
                if task.is_over and self._in_hand == task.id:
                    self._in_hand = ""
                if task.state == "done" and not (task.request.where or task.request.keys):
                    self._unsent.pop(task.request.table, None)
        self._clean_up(task)

    def failed(self, table: str, reason: str) -> None:
        """Note that rows of ``table`` were not sent."""
        self._unsent[table] = reason

    def unsent(self) -> Indeterminate | None:
        """Return the error for tables whose rows this run had to send and did not."""
        if not self._unsent:
            return None
        table, reason = next(iter(self._unsent.items()))
        several = len(self._unsent) > 1
        tables = f"{len(self._unsent)} tables" if several else f"table {table}"
        prefix = f"{table}: " if several else ""
        return Indeterminate(
            f"the relay has caught up, but requested rows of {tables} were not sent: {prefix}{reason}",
            f"fix the cause, then start the relay, and run: {self._command(*sorted(self._unsent))}",
        )

    def take(self, progress: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over the progress in Kafka if it is further than this store's: see `BackfillTask.progress`."""
        for id, progress_json in progress.items():
            with self._lock:
                entry = self._entries.get(id)
            if entry is not None and entry.task.is_behind(progress_json):
                entry.task.take(BackfillTask.from_json({**entry.task.to_json(), **progress_json}))
                self.save(entry.task)

    # -- the entries ---------------------------------------------------------------------------------------

    def _sorted(self) -> list[_StoredTask]:
        mine = (entry for entry in self._entries.values() if self._is_mine(entry.task))
        return sorted(mine, key=lambda entry: entry.number)

    def _is_mine(self, task: BackfillTask) -> bool:
        return task.request.reason != "first" or task.id in self.firsts

    @staticmethod
    def _apply(task: BackfillTask) -> None:
        task.obey()
        if task.state == "paused" and not task.wanted:
            task.state = "waiting"

    def _unfinished(self, id: str) -> _StoredTask:
        with self._lock:
            entry = self._entries.get(id)
            if entry is None:
                raise RefusedError(
                    f"there is no request {id}", f"'{self._command('--status')}' lists the existing ones"
                )
            if entry.task.is_over:
                raise RefusedError(
                    f"request {id} has already ended: {entry.task.state}",
                    "no action needed; or submit a new request",
                )
            return entry

    def _refuse_second(self, request: BackfillRequest) -> None:
        with self._lock:
            for entry in self._entries.values():
                existing = entry.task.request
                is_same = (existing.table, existing.reason) == (request.table, request.reason)
                if is_same and not entry.task.is_over and self._is_mine(entry.task):
                    id = entry.task.id
                    raise RefusedError(
                        f"table {request.table} already has an unfinished backfill: {id}",
                        f"wait until it is done, or cancel it with '{self._command('--cancel', id)}'",
                    )

    def _command(self, *options: str) -> str:
        relay = name_if_several(self._folder.parent.name)
        return " ".join([snapshot_command([], relay=relay), *options])

    # -- the files -----------------------------------------------------------------------------------------

    def _path(self, id: str) -> Path:
        return self._folder / f"{id}.json"

    def _keys(self, id: str) -> Path:
        return self._folder / f"{id}.keys"

    def _write(self, id: str, saved: dict[str, Any]) -> None:
        try:
            write_durably(self._path(id), json.dumps(saved))
        except OSError as error:
            raise file_failed(f"the backfill request {self._path(id)} can't be written", error) from error

    def _take_keys(self, source: Path, id: str) -> int:
        """Link or copy the list into the folder, durably; return the number of keys. Raises OSError."""
        target = self._keys(id)
        if source.exists() and not source.is_file():
            raise OSError(errno.EINVAL, "the list of keys is not a regular file", str(source))
        target.unlink(missing_ok=True)
        try:
            os.link(source.resolve(), target)
        except OSError:
            # It is on a different file system, or belongs to a different user. Create the copy as a private
            # file.
            private_file(target)
            shutil.copyfile(source, target)
        else:
            private_file(target)
        count = count_keys(target)
        sync(target)
        return count

    def _remove(self, id: str) -> None:
        for path in (self._path(id), self._keys(id)):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _clean_up(self, task: BackfillTask) -> None:
        """Remove the files that a finished task does not need any more; it is harmless if that fails."""
        if task.is_over:
            with contextlib.suppress(OSError):
                self._keys(task.id).unlink(missing_ok=True)
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Forget finished tasks except the newest ones.

        The newest always stay, so that ids are not reused. Tasks whose rows a topic lacks also stay until the
        coverage ledger records that.
        """
        with self._disk, self._lock:
            over = [entry.task for entry in self._sorted() if entry.task.is_over]
            since = time.time() - KEPT_SECONDS
            forgotten = [
                task.id
                for task in over[:-KEPT]
                if task.ended < since and (task.is_noted or not task.status().lacks)
            ]
            for id in forgotten:
                del self._entries[id]
        with contextlib.suppress(OSError):
            for id in forgotten:
                self._path(id).unlink(missing_ok=True)

    def _take_up(self) -> None:
        if not self._folder.is_dir():
            return
        for path in sorted(self._folder.iterdir()):
            if match := _NAME.fullmatch(path.name):
                self._entries[path.stem] = self._read(path, int(match[1]))
            elif path.suffix == ".partial":
                path.unlink(missing_ok=True)
        self._remove_keys(self._folder.glob("*.keys"))

    def _read(self, path: Path, number: int) -> _StoredTask:
        content = path.read_bytes()
        try:
            task = BackfillTask.from_json(json.loads(content))
            if task.id != path.stem:
                raise ValueError("another's")
        except (ValueError, RecursionError):
            # Report it once: at the next start it is an ordinary failed task.
            task = _damaged(path)
            path.replace(path.with_name(f"{path.name}.damaged"))
            write_durably(path, json.dumps(task.to_json()))
        if task.request.keys:
            # The folder may have moved.
            keys = self._keys(task.id)
            task.request = dataclasses.replace(task.request, keys=str(keys))
            if not task.is_over and not keys.exists():
                _fail(task, f"the list of keys of backfill {task.id} is missing: {keys}")
                write_durably(path, json.dumps(task.to_json()))
        return _StoredTask(number, task, task.to_json())

    def _remove_keys(self, paths: Iterable[Path]) -> None:
        """Remove lists of finished tasks, and of those that were never submitted."""
        for path in paths:
            entry = self._entries.get(path.stem)
            if entry is None or entry.task.is_over:
                path.unlink(missing_ok=True)


def _letters(table: str) -> str:
    return "".join(re.findall("[a-z0-9]+", table.rpartition(".")[2].lower()))[:_LETTERS]


def _status_of(entry: _StoredTask) -> BackfillStatus:
    """Return the status of a task; it has ended only once its end is durable."""
    status = entry.task.status()
    if status.state in ("done", "failed") and entry.saved["state"] != status.state:
        return dataclasses.replace(status, state="running", ended=0.0, error="", hint="")
    return status


def _damaged(path: Path) -> BackfillTask:
    task = BackfillTask(path.stem, BackfillRequest(UNKNOWN), requested=path.stat().st_mtime)
    _fail(task, f"backfill request {path.stem} can't be read: its file {path} is damaged")
    return task


def _fail(task: BackfillTask, message: str) -> None:
    task.state, task.ended, task.error = "failed", time.time(), message
    task.hint = "submit the request again; its remaining rows are not sent until then"


class BackfillRequests:
    """Takes backfill requests of other threads."""

    def __init__(self, store: BackfillStore, report: RunState) -> None:
        self._store = store
        self._report = report

    def submit(self, request: BackfillRequest) -> str:
        """Store the request, and return its id. Raises RefusedError and StateFailed.

        Until the relay's tables are determined, any table is accepted: a request for a table that the relay
        does not carry fails in its turn.
        """
        _check(request)
        captured = self._report.tables.keys() - set(self._report.not_captured)
        if captured and request.table not in captured:
            raise _not_carried(request.table, captured, is_selected=request.table in self._report.tables)
        return self._store.submit(request)

    def control(self, id: str, command: BackfillCommand) -> BackfillStatus:
        """Pause, resume or cancel a task. Raises RefusedError and StateFailed."""
        return self._store.control(id, command)


def _check(request: BackfillRequest) -> None:
    if request.reason == "first":
        raise RefusedError(
            "only the relay itself can request a first snapshot", "request the rows with 'bwtui snapshot'"
        )
    if request.where and request.keys:
        raise RefusedError("a condition and a list of keys are mutually exclusive", "ask for one of them")
    if request.where and (not request.where.strip() or "\0" in request.where):
        raise RefusedError(
            "the condition is empty or contains a NUL byte",
            "give an SQL expression over the table's columns, or omit the condition",
        )


def _not_carried(table: str, captured: set[str], *, is_selected: bool) -> RefusedError:
    if is_selected:
        message = f"table {table} is not captured: no publication of the relay contains it"
        return RefusedError(message, "'bwtui doctor --relay NAME' says what to run")
    close = nearest(table, captured)
    return RefusedError(
        f"the relay does not capture table {table}",
        f"did you mean {close}?" if close else "'bwtui status' lists the captured tables",
    )
