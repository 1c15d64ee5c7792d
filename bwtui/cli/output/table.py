"""Plain text tables and numbers for people; JSON has the same numbers unformatted."""

import time
from collections.abc import Callable, Sequence

from bwtui.console import say
from bwtui.errors import BwtuiError, ConnectionFailed, DifferencesFound, Interrupted, RefusedError
from bwtui.escaping import escape
from bwtui.model.backfill import BackfillStatus
from bwtui.model.backfill_texts import REASONS, progress_text, snapshot_command

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()
) -> list[str]:
    """Return rows under a head as lines, in columns as wide as their widest cell."""
    table = [[escape(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = []
    for row in table:
        cells = [
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def size(count: int | None) -> str:
    """Return a number of bytes in PostgreSQL's units (powers of 1024), like the screens; a dash for None."""
    if count is None:
        return "-"
    amount = float(count)
    for unit in _UNITS:
        if abs(amount) < 1024 or unit == _UNITS[-1]:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


_POLL_SECONDS = 0.3
#: Interval between two lines for one that makes progress (seconds).
_LINE_SECONDS = 5.0


def as_table(statuses: Sequence[BackfillStatus]) -> list[str]:
    """Return a line for each, oldest first."""
    rows = [(s.id, subject(s), s.state, progress_text(s) if s.state != s.detail else "") for s in statuses]
    return columns(("ID", "TABLE", "STATE", "PROGRESS"), rows)


def subject(status: BackfillStatus) -> str:
    """Return the table and the condition of a backfill."""
    condition = f" where {' '.join(status.where.split())}" if status.where else ""
    reason = REASONS.get(status.reason, status.reason)
    return f"{status.table}{condition}{f' ({reason})' if reason else ''}"


def wait_for(
    ids: Sequence[str], poll: Callable[[], Sequence[BackfillStatus]], *, relay: str, quiet: bool
) -> list[BackfillStatus]:
    """Wait until all are over, and return their states; report progress on stderr unless ``quiet``.

    ``relay`` is its name if a command has to name it. Raises Interrupted on Ctrl-C, which ends no backfill.
    """
    lines = _BackfillReporter(quiet)
    latest: dict[str, BackfillStatus] = {}
    try:
        while True:
            # The relay drops those that have ended, oldest first.
            latest |= {status.id: status for status in poll()}
            for id in ids:
                if id in latest:
                    lines.show(latest[id])
            if all(id not in latest or latest[id].is_over for id in ids):
                return [latest[id] for id in ids if id in latest]
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
