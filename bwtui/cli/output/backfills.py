"""Backfills as a table, and as lines while a command waits for them."""

import time
from collections.abc import Callable, Sequence

from bwtui.cli.output.table import columns
from bwtui.console import say
from bwtui.errors import BwtuiError, ConnectionFailed, DifferencesFound, Interrupted, RefusedError
from bwtui.model.backfill import BackfillStatus
from bwtui.model.backfill_texts import REASONS, progress_text, snapshot_command

_POLL_SECONDS = 0.3
#: Interval between two lines for one that makes progress (seconds).
_LINE_SECONDS = 5.0


def as_table(statuses: Sequence[BackfillStatus]) -> list[str]:
    """Return a line for each, oldest first."""
    rows = [(s.id, subject(s), s.state, progress_text(s) if s.state != s.detail else "") for s in statuses]
    return columns(("ID", "TABLE", "STATE", "PROGRESS"), rows)


def subject(status: BackfillStatus) -> str:
    """Return the table and the condition of a backfill."""
    chosen = f" where {' '.join(status.where.split())}" if status.where else ""
    reason = REASONS.get(status.reason, status.reason)
    return f"{status.table}{chosen}{f' ({reason})' if reason else ''}"


def wait_for(
    ids: Sequence[str], look: Callable[[], Sequence[BackfillStatus]], *, relay: str, quiet: bool
) -> list[BackfillStatus]:
    """Wait until all are over, and return their states; report progress on stderr unless ``quiet``.

    ``relay`` is its name if a command has to name it. Raises Interrupted on Ctrl-C, which ends no backfill.
    """
    lines = _BackfillReporter(quiet)
    known: dict[str, BackfillStatus] = {}
    try:
        while True:
            # The relay drops those that have ended, oldest first.
            known |= {status.id: status for status in look()}
            for id in ids:
                if id in known:
                    lines.show(known[id])
            if all(id not in known or known[id].is_over for id in ids):
                return [known[id] for id in ids if id in known]
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"interrupted; the relay continues with {', '.join(ids)}",
            f"'{snapshot_command([], relay=relay)} --cancel {ids[0]}' cancels it; --status instead "
            "of --cancel ID shows its progress",
        ) from error
    except ConnectionFailed as error:
        raise ConnectionFailed(
            f"{error.message}; the remaining rows of {', '.join(ids)} are sent when it runs again", error.hint
        ) from error


class _BackfillReporter:
    """Prints a line when a state changes, and from time to time while there is progress."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._shown: dict[str, tuple[str, float, str]] = {}

    def show(self, status: BackfillStatus) -> None:
        if self._quiet or status.is_over:
            return
        now, line = time.monotonic(), f"{status.id}: {progress_text(status)}"
        state, at, last = self._shown.get(status.id, ("", 0.0, ""))
        if line != last and (status.state != state or now - at >= _LINE_SECONDS):
            self._shown[status.id] = status.state, now, line
            say(f"bwtui: {line}", err=True)


def ended_badly(statuses: Sequence[BackfillStatus], ids: Sequence[str]) -> BwtuiError | None:
    """Return the error of the first that failed or was cancelled, or None."""
    for status in statuses:
        if status.state == "failed":
            return RefusedError(f"{status.id}: {status.error}", status.hint)
        if status.state == "cancelled":
            return RefusedError(
                f"{status.id} was cancelled after {status.rows:,} rows were sent",
                "request it again if needed",
            )
    missing = set(ids) - {status.id for status in statuses}
    if missing:
        return RefusedError(
            f"the relay no longer has a record of how {', '.join(sorted(missing))} ended",
            "run 'bwtui verify --database' to compare tables and topics",
        )
    return None


def dropped(statuses: Sequence[BackfillStatus]) -> BwtuiError | None:
    """Return the error for backfills with rows that were refused and dropped, or None."""
    refused = [status for status in statuses if status.dropped]
    if not refused:
        return None
    counts = ", ".join(f"{status.dropped:,} of {status.table}" for status in refused)
    return DifferencesFound(
        f"some rows were dropped as dead letters: {counts}",
        "'bwtui dead-letters list' shows the reasons, and 'bwtui dead-letters retry' sends them again",
    )
