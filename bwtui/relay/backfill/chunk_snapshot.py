"""State of a slot's first snapshot by chunks: the tables that are not done yet.

The slot exists, and the stream runs, before any row of a table is sent. So the information that rows are
still missing must be on the disk before the slot is created: first the checkpoint with the slot's future LSN
(`bwtui.relay.history.slot_checkpoint`), then each table's task (`bwtui.relay.history.backfill_store`), then
a file that names the tasks, the LSN and the slot's identity. Only then is the slot created. A kill before
that leaves state without an owner: a start without a slot begins from scratch and removes it, and tasks that
no file names are never worked on. If another client created the slot meanwhile, it is ahead of the
checkpoint, and is refused.

Different servers and databases may have slots of the same name. So each has a file of its own, and a new
snapshot removes no other slot's file.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bwtui.durable_files import private_parent, sync, write_durably
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, StateFailed
from bwtui.file_errors import file_failed, remove
from bwtui.model.backfill import BackfillRequest, FirstSnapshot
from bwtui.model.lsn import format_lsn, parse_lsn
from bwtui.model.status import State
from bwtui.relay.history.backfill_store import FOLDER, BackfillStore, BackfillTask
from bwtui.relay.history.slot_checkpoint import slot_checkpoints
from bwtui.relay.process.lock import RelayLock
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.source.snapshot import KeyChanged, TableNotPublished, TableWithoutKey
from bwtui.source.sql_hints import exclude_option
from bwtui.state_folder import relay_names, state_folder

#: System identifier, database and slot.
Identity = tuple[str, str, str]
#: A table's name → its task, or "" once it is done.
_Tables = dict[str, str]


def chunk_snapshot_path(folder: Path, identity: Identity) -> Path:
    """Return the path of the file for a slot's first snapshot, in a relay's state folder."""
    which = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    return folder / f"first-{identity[2]}-{which}.json"


class ChunkSnapshot:
    """The first snapshot of one slot; the main thread calls all methods except `status`."""

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        store: BackfillStore,
        report: RunState,
        has_checked: Callable[[float], bool] | None = None,
    ) -> None:
        """Read the stored state of this slot; for ``has_checked`` see `JoinedTables.has_checked`.

        Raises StateFailed for a file that can't be read: missing rows must not be forgotten.
        """
        self._folder = folder
        self._path = chunk_snapshot_path(folder, identity)
        self._identity = identity
        self._store = store
        self._report = report
        self._lsn = ""
        self._tables: _Tables = {}
        if (remembered := _read(self._path)) is not None:
            self._lsn, self._tables = remembered
        #: True if the slot exists, so that the snapshot will be completed.
        self._is_begun = False
        #: Tasks of missing tables, and when that was noticed: they may have been renamed.
        self._missing_since: dict[str, float] = {}
        #: Without it no tables join, so that no check has to be waited for.
        self._has_checked = has_checked or (lambda moment: True)
        #: The text that this class has put into `RunState.detail`.
        self._reported_detail = ""

    # -- for any thread ------------------------------------------------------------------------------------

    def status(self) -> FirstSnapshot | None:
        """Return the progress; None if there is no snapshot, it is done, or its slot does not exist yet."""
        tables = self._tables if self._is_begun else {}
        done = sum(not id for id in tables.values())
        return FirstSnapshot(len(tables), done) if done < len(tables) else None

    @property
    def is_due(self) -> bool:
        """True if some tables are not done yet."""
        return any(self._tables.values())

    def files(self) -> dict[str, list[str]]:
        """Return the file of a snapshot that is not done, and its remaining tables."""
        remaining = [table for table, id in self._tables.items() if id] if self._is_begun else []
        return {self._path.name: remaining} if remaining else {}

    @property
    def phase(self) -> State:
        """State of a streaming relay."""
        return "snapshot" if self.is_due else "streaming"

    # -- at each start -------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Remove the stored state, because there is no slot that it could belong to. Raises StateFailed."""
        self._tables, self._is_begun = {}, False
        remove(self._path)
        self._store.forget_firsts(unfinished_task_ids(self._folder))

    def store_tasks(self, tables: Sequence[str]) -> None:
        """Store a task for each table durably; it is not worked on without `begin`. Raises StateFailed."""
        requests = (BackfillRequest(table, reason="first") for table in tables)
        self._tables = {request.table: self._store.submit(request) for request in requests}

    def begin(self, lsn: int) -> None:
        """Record durably that the slot about to be created at ``lsn`` has these tasks.

        Raises StateFailed.
        """
        if self._tables:
            self._lsn = format_lsn(lsn)
            self._write(self._tables)

    def note_slot_created(self) -> None:
        """Note that the slot was created."""
        self._is_begun = True

    def resume(self) -> None:
        """Resume an earlier run: tables not known to be done are sent. Raises StateFailed."""
        self._is_begun = True
        tables = dict(self._tables)
        for table, id in self._tables.items():
            task = self._store.task(id) if id else None
            if id and (task is None or task.state == "failed"):
                # Its file is missing or damaged, or it failed when the relay was killed and may fail again.
                task = self._store.task(self._store.submit(BackfillRequest(table, reason="first")))
                assert task is not None
                tables[table] = task.id
            if task is not None:
                counters = self._report.table(table)
                counters.snapshot_before = task.rows
                self._count(task)
        if tables != self._tables:
            self._write(tables)
        self._store.firsts = frozenset(filter(None, tables.values()))

    # -- while the relay streams ---------------------------------------------------------------------------

    def update(self) -> None:
        """Mark tables that are done, and report the progress. Raises StateFailed."""
        if not self._tables:
            return
        tables, running = dict(self._tables), ""
        for table, id in self._tables.items():
            if not id:
                continue
            task = self._store.task(id)
            if task is not None:
                self._count(task)
            if task is not None and self._may_be_renamed(task):
                running = running or f": checking whether {table} was renamed"
            elif task is None or task.is_over:
                tables[table] = ""
            elif not running and task.state == "running":
                running = f": {table}{f', {task.detail}' if task.detail else ''}"
        if tables != self._tables:
            self._write(tables)
        self._report_progress(running)

    def fails(self, task: BackfillTask, error: BwtuiError) -> bool:
        """Return whether ``error`` ends a task; False if the task starts again.

        Raises ``error`` if it ends the relay: without the rows of an existing table its topic stays
        incomplete, and the next start resumes them.
        """
        if task.request.reason != "first":
            return True
        if isinstance(error, TableNotPublished):
            self._missing_since[task.id] = time.monotonic()
            return True
        if isinstance(error, KeyChanged):
            task.after = task.key = None
            return False
        raise error

    def _may_be_renamed(self, task: BackfillTask) -> bool:
        """True if the rows of a missing table may still be sent under its new name.

        Until that is clear the task stays in the file, so that a kill does not lose the rows either.
        """
        noticed_at = self._missing_since.get(task.id)
        if noticed_at is None or not task.is_over:
            return False
        return not self._has_checked(noticed_at) or any(
            status.reason == "joined" and not status.is_over for status in self._store.statuses()
        )

    def _report_progress(self, running: str) -> None:
        report, status = self._report, self.status()
        if status is None:
            self._tables = {}
            if report.state == "snapshot":
                report.state = "streaming"
            progress = ""
        else:
            progress = (
                f"first snapshot while streaming, {status.done} of {status.tables} tables done{running}"
            )
        if report.detail in ("", self._reported_detail):
            report.detail = self._reported_detail = progress

    def _count(self, task: BackfillTask) -> None:
        counters = self._report.table(task.request.table)
        counters.snapshot_rows = task.rows
        counters.snapshot_estimate = task.estimate or counters.snapshot_estimate
        if task.state == "done":
            counters.snapshot_state = "done"
        elif task.is_over:
            counters.snapshot_state = "none"
            reason = task.error or "cancelled"
            counters.note(f"its first snapshot did not complete: {reason}")
        else:
            counters.snapshot_state = "running" if task.chunks or task.state == "running" else "pending"

    # -- the file ------------------------------------------------------------------------------------------

    def _write(self, tables: _Tables) -> None:
        """Replace the file, or remove it once all tables are done."""
        try:
            if any(tables.values()):
                private_parent(self._path)
                content = {"of": self._identity, "lsn": self._lsn, "tables": tables}
                write_durably(self._path, json.dumps(content))
            else:
                self._path.unlink(missing_ok=True)
                sync(self._path.parent)
        except OSError as error:
            raise file_failed(
                f"the progress of the first snapshot can't be written to {self._path}", error
            ) from error
        self._tables = tables


def _read(path: Path) -> tuple[str, _Tables] | None:
    """Return the content of a file: the LSN of its slot, and the tables. Raises StateFailed."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        lsn = format_lsn(parse_lsn(data["lsn"]))
        return lsn, {str(table): str(id) for table, id in data["tables"].items()}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise file_failed(f"{path} can't be read", error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateFailed(
            f"{path} can't be read: it lists the tables that the first snapshot has not completed",
            "remove it, and send the incomplete tables with 'bwtui snapshot TABLE'",
        ) from error


def unfinished_task_ids(folder: Path) -> frozenset[str]:
    """Return the unfinished tasks of all first snapshots in a relay's state folder. Raises StateFailed."""
    remembered = [_read(path) for path in folder.glob("first-*.json")]
    return frozenset(id for state in remembered if state is not None for id in state[1].values() if id)


def with_advice(task: BackfillTask, error: BwtuiError) -> BwtuiError:
    """Return the error of a table that can't be read, with a hint that suits a pending first snapshot."""
    if task.request.reason != "first" or isinstance(error, TableNotPublished | KeyChanged):
        return error
    without = f"exclude it with {exclude_option([task.request.table])}"
    if isinstance(error, TableWithoutKey):
        error.hint = f"add a primary key again, or {without}"
    elif "--exclude-table" not in error.hint:
        # A statement comes last in the hint, so that it can be pasted.
        error.hint = f"{without}, or {error.hint}"
    return error


def forget(identity: Identity) -> None:
    """Remove the first snapshot from all relays of this machine, because its slot is dropped.

    Raises StateFailed.
    """
    for name in relay_names():
        remove(chunk_snapshot_path(state_folder(name), identity))


def unfinished(identity: Identity, relay: str) -> Mapping[str, Sequence[str]]:
    """Return the relays of this machine with an unfinished first snapshot of the slot, and their tables.

    The one of ``relay`` itself always counts. That of a different relay does not count if any relay's
    checkpoint of the slot is further: then the slot was recreated since.
    """
    by_relay: dict[str, list[str]] = {}
    reached = {name: last.confirmed_lsn for name, last in slot_checkpoints(*identity).items()}
    for name in relay_names():
        with contextlib.suppress(BwtuiError):
            remembered = _read(chunk_snapshot_path(state_folder(name), identity))
            if remembered is None:
                continue
            lsn, tables = remembered
            lsn_of_relay = max(parse_lsn(lsn), reached.get(name, 0))
            is_void = name != relay and lsn_of_relay < max(reached.values(), default=0)
            remaining = [table for table, id in tables.items() if id]
            by_relay |= {name: remaining} if remaining and not is_void else {}
    return by_relay


def refuse_foreign_snapshot(identity: Identity, settings: RelaySettings) -> None:
    """Raise RefusedError if a different relay of this machine has not finished the slot's first snapshot."""
    relay = settings.relay_name
    for name, tables in unfinished(identity, relay).items():
        if name != relay:
            raise RefusedError(
                f"relay {name} has not finished the first snapshot of slot {identity[2]}: {len(tables)} "
                "tables are incomplete",
                f"start that relay again with --name {name}, or run '{settings.drop_command}' "
                "for a new snapshot",
            )


def chunk_snapshot_of(
    settings: RelaySettings,
    identity: Identity,
    store: BackfillStore,
    report: RunState,
    has_checked: Callable[[float], bool] | None,
    *,
    is_there: bool,
) -> ChunkSnapshot:
    """Return the stored state of a slot's first snapshot, which is resumed if the slot ``is_there``.

    Raises RefusedError for a snapshot of a different relay, and StateFailed.
    """
    first = ChunkSnapshot(state_folder(settings.relay_name), identity, store, report, has_checked)
    if not is_there:
        return first
    refuse_foreign_snapshot(identity, settings)
    if first.is_due and settings.exactly_once:
        raise RefusedError(
            "the first snapshot by chunks is incomplete, and --exactly-once needs a snapshot as "
            "of one moment",
            f"start once without --exactly-once, or run '{settings.drop_command}' for a new snapshot",
        )
    first.resume()
    return first


@contextlib.contextmanager
def offline_store(name: str, error: ConnectionFailed) -> Iterator[BackfillStore]:
    """Yield the tasks of a relay that does not run, and prevent it from starting in the meantime.

    Raises ``error`` if there is no such relay, and RefusedError if it is starting.
    """
    if name not in relay_names():
        raise error
    lock = RelayLock.acquire(name)
    try:
        store = BackfillStore(state_folder(name) / FOLDER)
        store.firsts = unfinished_task_ids(state_folder(name))
        yield store
    finally:
        lock.release()
