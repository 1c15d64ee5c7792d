"""The first snapshot of a slot by chunks: which of its tables are not through yet.

The slot is there, and the stream goes on, before any row of a table is sent. So what says that rows are still
missing must be on the disk before the slot is: first each table's task (`bwtui.relay.backfill.store`), then
the memory of where the slot will begin (`bwtui.relay.memory`), then a file that names the tasks, ``lsn`` and
whose it is; then the slot is made. What a kill leaves before that belongs to nobody: a start without a slot
begins anew and forgets it, and tasks that no file names are never worked on. A slot that somebody else has
made meanwhile stands further on than the memory has it, and is refused.

Any server and any database may have a slot of the same name. So each has a file of its own, and a beginning
removes no other's.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bwtui.durable import private_parent, sync, write_durably
from bwtui.errors import BwtuiError, RefusedError, StateFailed
from bwtui.file_errors import file_failed
from bwtui.model.backfill import BackfillRequest, FirstSnapshot
from bwtui.model.lsn import format_lsn, parse_lsn
from bwtui.model.status import State
from bwtui.relay.backfill.store import Store, Task
from bwtui.relay.memory import memories
from bwtui.relay.report import Report
from bwtui.settings import RelaySettings
from bwtui.source.chunks.reading import KeyChanged, NotThere, Unkeyed
from bwtui.source.printed import exclude_option
from bwtui.state_folder import known_relays, state_folder

#: System identifier, database and slot.
Identity = tuple[str, str, str]
#: A table's name → its task, or "" once it is through.
_Tables = dict[str, str]


def first_path(folder: Path, identity: Identity) -> Path:
    """Return where the first snapshot of a slot is remembered, in a relay's state folder."""
    which = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    return folder / f"first-{identity[2]}-{which}.json"


class First:
    """The first snapshot of one slot; the main thread calls, but for `status`."""

    def __init__(self, folder: Path, identity: Identity, store: Store, report: Report) -> None:
        """Read what is remembered of this very slot.

        Raises StateFailed for a file that can't be read: that rows are missing must not be forgotten.
        """
        self._folder = folder
        self._path = first_path(folder, identity)
        self._identity = identity
        self._store = store
        self._report = report
        self._lsn = ""
        self._tables: _Tables = {}
        if (remembered := _read(self._path)) is not None:
            self._lsn, self._tables = remembered
        #: Whether the slot is there, so that all of it comes.
        self._is_begun = False
        #: Tasks of tables that were not there, and when that was seen: they may have another name by now.
        self._gone: dict[str, float] = {}
        #: Says whether tables that have joined were looked for since then: see `Joined.has_looked`.
        self.has_looked: Callable[[float], bool] = lambda moment: True
        #: What `Report.detail` says by our doing.
        self._said = ""

    # -- for any thread ------------------------------------------------------------------------------------

    def status(self) -> FirstSnapshot | None:
        """Return how far it is; None: there is none, it is through, or its slot is not there yet."""
        tables = self._tables if self._is_begun else {}
        done = sum(not id for id in tables.values())
        return FirstSnapshot(len(tables), done) if done < len(tables) else None

    @property
    def is_due(self) -> bool:
        """Whether tables are not through yet."""
        return any(self._tables.values())

    @property
    def phase(self) -> State:
        """What a relay that streams is at."""
        return "snapshot" if self.is_due else "streaming"

    # -- the beginning, and each start ---------------------------------------------------------------------

    def forget(self) -> None:
        """Forget it: there is no slot, so that what is remembered belongs to none. Raises StateFailed."""
        self._tables, self._is_begun = {}, False
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise file_failed(f"{self._path} can't be removed", error) from error
        self._store.forget_firsts(named(self._folder))

    def ask(self, tables: Sequence[str]) -> None:
        """Have a task a table kept durably; without `begin` nobody works on them. Raises StateFailed."""
        asked = (BackfillRequest(table, reason="first") for table in tables)
        self._tables = {request.table: self._store.submit(request) for request in asked}

    def begin(self, lsn: int) -> None:
        """Note, durably, that the slot that is about to be made at ``lsn`` has these tasks.

        Raises StateFailed.
        """
        if self._tables:
            self._lsn = format_lsn(lsn)
            self._write(self._tables)

    def begun(self) -> None:
        """Take note that the slot was made."""
        self._is_begun = True

    def take_up(self) -> None:
        """Go on where an earlier run ended: what is not known to be through is sent. Raises StateFailed."""
        self._is_begun = True
        tables = dict(self._tables)
        for table, id in self._tables.items():
            task = self._store.task(id) if id else None
            if id and (task is None or task.state == "failed"):
                # Its file is gone or damaged; or it failed as the relay was killed, and does so again.
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

    def look(self) -> None:
        """Take note of what is through by now, and say how far all is. Raises StateFailed."""
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
                running = running or f": looking whether {table} has another name"
            elif task is None or task.is_over:
                tables[table] = ""
            elif not running and task.state == "running":
                running = f": {table}{f', {task.detail}' if task.detail else ''}"
        if tables != self._tables:
            self._write(tables)
        self._say(running)

    def fails(self, task: Task, error: BwtuiError) -> bool:
        """Return whether ``error`` ends a task; False: it begins anew.

        Raises ``error`` where it ends the relay: without the rows of a table that is there its topic stays
        in part, and the next start goes on with them.
        """
        if task.request.reason != "first":
            return True
        if isinstance(error, NotThere):
            self._gone[task.id] = time.monotonic()
            return True
        if isinstance(error, KeyChanged):
            task.after = task.key = None
            return False
        raise error

    def _may_be_renamed(self, task: Task) -> bool:
        """Whether the rows of a table that was not there may still come, under the name that it has now.

        Until then its task stays in the file, so that a kill does not lose them either.
        """
        seen = self._gone.get(task.id)
        if seen is None or not task.is_over:
            return False
        return not self.has_looked(seen) or any(
            one.reason == "joined" and not one.is_over for one in self._store.statuses()
        )

    def _say(self, running: str) -> None:
        report, status = self._report, self.status()
        if status is None:
            self._tables = {}
            if report.state == "snapshot":
                report.state = "streaming"
            said = ""
        else:
            said = f"first snapshot beside the stream, {status.done} of {status.tables} tables done{running}"
        if report.detail in ("", self._said):
            report.detail = self._said = said

    def _count(self, task: Task) -> None:
        counters = self._report.table(task.request.table)
        counters.snapshot_rows = task.rows
        counters.snapshot_estimate = task.estimate or counters.snapshot_estimate
        if task.state == "done":
            counters.snapshot_state = "done"
        elif task.is_over:
            counters.snapshot_state = "none"
            what = task.error or "cancelled"
            counters.note(f"its first snapshot was not taken to its end: {what}")
        else:
            counters.snapshot_state = "running" if task.chunks or task.state == "running" else "pending"

    # -- the file ------------------------------------------------------------------------------------------

    def _write(self, tables: _Tables) -> None:
        """Replace the file, or remove it once all tables are through."""
        try:
            if any(tables.values()):
                private_parent(self._path)
                said = {"of": self._identity, "lsn": self._lsn, "tables": tables}
                write_durably(self._path, json.dumps(said))
            else:
                self._path.unlink(missing_ok=True)
                sync(self._path.parent)
        except OSError as error:
            raise file_failed(
                f"how far the first snapshot is can't be written to {self._path}", error
            ) from error
        self._tables = tables


def _read(path: Path) -> tuple[str, _Tables] | None:
    """Return what a file says: where its slot was made, and the tables. Raises StateFailed."""
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
            f"{path} can't be read: it says which tables the first snapshot lacks",
            "remove it, and send the tables that are not whole with 'bwtui snapshot TABLE'; or begin anew "
            "after 'bwtui slots drop'",
        ) from error


def named(folder: Path) -> frozenset[str]:
    """Return the tasks that the first snapshots of a relay, in its state folder, lack. Raises StateFailed."""
    remembered = [_read(path) for path in folder.glob("first-*.json")]
    return frozenset(id for one in remembered if one is not None for id in one[1].values() if id)


def advised(task: Task, error: BwtuiError) -> BwtuiError:
    """Return why rows of a table can't be read, with what helps a first snapshot, which waits for them."""
    if task.request.reason != "first" or isinstance(error, NotThere | KeyChanged):
        return error
    without = f"leave it out with {exclude_option([task.request.table])}"
    if isinstance(error, Unkeyed):
        error.hint = f"give it a primary key again, or {without}"
    elif "--exclude-table" not in error.hint:
        # A statement stands last, to be pasted.
        error.hint = f"{without}, or {error.hint}"
    return error


def forget(identity: Identity) -> None:
    """Have all relays of this machine forget a first snapshot, whose slot is dropped for a new one."""
    for name in known_relays():
        first_path(state_folder(name), identity).unlink(missing_ok=True)


def unfinished(identity: Identity, relay: str) -> Mapping[str, Sequence[str]]:
    """Return which relays of this machine have not finished the slot's first snapshot, and their tables.

    That of ``relay`` itself counts in any case; another's not where a third one, or ``relay``, remembers the
    slot further on: it was made anew since.
    """
    found: dict[str, list[str]] = {}
    reached = {name: last.confirmed_lsn for name, last in memories(*identity).items()}
    for name in known_relays():
        with contextlib.suppress(BwtuiError):
            remembered = _read(first_path(state_folder(name), identity))
            if remembered is None:
                continue
            lsn, tables = remembered
            own = max(parse_lsn(lsn), reached.get(name, 0))
            is_void = name != relay and own < max(reached.values(), default=0)
            left = [table for table, id in tables.items() if id]
            found |= {name: left} if left and not is_void else {}
    return found


def refuse_other(identity: Identity, relay: str) -> None:
    """Raise RefusedError where another relay of this machine has begun with the slot, and is not through."""
    for name, left in unfinished(identity, relay).items():
        if name != relay:
            raise RefusedError(
                f"relay {name} has not finished the first snapshot of slot {identity[2]}: "
                f"{len(left)} tables are not through",
                f"start that one again with --name {name}, or run 'bwtui slots drop {identity[2]}' for a new "
                "snapshot",
            )


def first_of(
    settings: RelaySettings, identity: Identity, store: Store, report: Report, *, is_there: bool
) -> First:
    """Return what is known of a slot's first snapshot, which is gone on with where the slot ``is_there``.

    Raises RefusedError for another relay's, and StateFailed.
    """
    first = First(state_folder(settings.relay_name), identity, store, report)
    if not is_there:
        return first
    refuse_other(identity, settings.relay_name)
    if first.is_due and settings.exactly_once:
        raise RefusedError(
            "the first snapshot by chunks is not through, and --exactly-once takes one as of one moment",
            f"start once without it; or 'bwtui slots drop {identity[2]}', for a new snapshot",
        )
    first.take_up()
    return first
