"""The last status of a relay, for `bwtui status` after it was killed and could not write its outcome."""

import contextlib
import json
import time
from dataclasses import dataclass, replace

from bwtui.durable_files import write_atomically
from bwtui.errors import BwtuiError, Interrupted
from bwtui.model.gaps import with_gaps
from bwtui.model.lsn import format_lsn
from bwtui.model.proof import UnprovenTable
from bwtui.model.status import ErrorEntry, State, Status
from bwtui.model.verdict import ended, killed
from bwtui.relay.process import outcome
from bwtui.relay.process.log import log_path
from bwtui.state_folder import ledger_path, relay_names, state_folder

#: Minimum seconds between two writes.
EVERY = 5.0
_FILE_NAME = "last-status.json"


@dataclass(slots=True)
class LastStatus:
    """Writes the status of one run; a failing disk does no harm."""

    name: str
    _due: float = 0.0

    def keep(self, status: Status) -> None:
        """Write ``status``, unless one was written less than `EVERY` seconds ago."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + EVERY
        with contextlib.suppress(OSError):
            write_atomically(state_folder(self.name) / _FILE_NAME, json.dumps(status.to_json()))

    def forget(self) -> None:
        """Remove the file: a new run begins, or the outcome is stored and nothing writes the file again."""
        with contextlib.suppress(OSError):
            folder = state_folder(self.name)
            # A kill during a write leaves a partial file.
            for path in (folder / _FILE_NAME, *folder.glob(f"{_FILE_NAME}.*.partial")):
                path.unlink(missing_ok=True)


def read(name: str) -> Status | None:
    """Return the last status of a run without an outcome, as the status of a relay that failed."""
    status = _stored(name)
    if status is None:
        return None
    detail = f"{status.state} until it was killed"
    verdict = killed(status.state, str(log_path(name)))
    return _with_ledger(with_gaps(replace(status, state="failed", detail=detail, verdict=verdict)))


def _stored(name: str) -> Status | None:
    try:
        return Status.from_json(json.loads((state_folder(name) / _FILE_NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def of_ended(name: str) -> Status | None:
    """Return the last status of a relay that no longer runs, whether it wrote its outcome or not."""
    last = outcome.read(name)
    if last is None:
        return read(name)
    # On a full disk the outcome has only the reason: the last status has the rest.
    stored = _stored(name) if last.status is None else None
    status = at_the_end(stored, last.error(), last.exit_code, last.time) if stored else last.status
    return _with_ledger(status) if status else None


def _with_ledger(status: Status) -> Status:
    """Return ``status`` completed from the coverage ledger: a run may end before it has read the ledger."""
    if status.not_proven:
        return status
    try:
        data = json.loads(ledger_path(state_folder(status.name), status.slot).read_text(encoding="utf-8"))
        entries = tuple(
            UnprovenTable(
                table,
                entry["since_lsn"],
                f"it {entry['reason']}",
                entry["command"],
                entry.get("advice", ""),
            )
            for table, entry in sorted(data["not_proven"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # The next start refuses an unreadable ledger.
        return status
    # The verdict already covers the other gaps.
    only = replace(status, not_proven=entries, heal=None, backfills=(), not_captured=())
    return replace(status, not_proven=entries, verdict=with_gaps(only).verdict)


def at_the_end(status: Status, error: BwtuiError | None, code: int, at: float) -> Status:
    """Return the status of a relay that has ended, with its verdict, and the error that ended it.

    ``at`` is in Unix seconds.
    """
    is_failed = error is not None and not isinstance(error, Interrupted)
    state: State = "failed" if is_failed else "stopped"
    entries = status.errors
    if is_failed and error is not None and not any(entry.kind == "fatal" for entry in entries):
        # An unexpected exception, which the engine does not know.
        entries = (*entries, ErrorEntry(at, "fatal", None, error.message, error.hint))
    confirmed = format_lsn(status.confirmed_lsn) if status.confirmed_lsn else ""
    message, hint = (error.message, error.hint) if is_failed and error is not None else (None, None)
    unfinished = status.first_snapshot.remaining_work if status.first_snapshot else _unfinished_export(status)
    verdict = ended(message, hint, confirmed=confirmed, remaining_work=unfinished, at=at)
    return with_gaps(
        replace(
            status,
            state=state,
            phase=state,
            detail=message or "",
            verdict=verdict,
            errors=entries,
            exit_code=code,
        )
    )


def _unfinished_export(status: Status) -> str:
    """Return what happens to an incomplete first snapshot by 'export'; "" if there is none."""
    has_begun = any(table.snapshot_state != "none" for table in status.tables.values())
    # Its slot, which is created last, has a position as soon as it exists.
    if status.confirmed_lsn or not has_begun:
        return ""
    return "the first snapshot is incomplete, and the next start takes a new one"


def describe(status: Status) -> str:
    """Return what is known of a killed run, in one sentence."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.time))
    return (
        f"relay {status.name} (pid {status.pid}, slot {status.slot}) was killed, or its disk was "
        f"full, after {when}: see {log_path(status.name)}, and start it again with the same "
        f"settings; 'bwtui status {status.name} --json' shows its last status"
    )


def forget_end(name: str, slot: str) -> None:
    """Forget how the relay's last run with ``slot`` ended, because the slot was dropped."""
    status = of_ended(name)
    if status is not None and status.slot == slot:
        outcome.forget(name)
        LastStatus(name).forget()


def newest() -> Status | None:
    """Return the status of the run that was killed last, whatever its relay's name."""
    killed = filter(None, (read(name) for name in relay_names() if outcome.read(name) is None))
    return max(killed, key=lambda status: status.time, default=None)
