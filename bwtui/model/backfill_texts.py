"""Texts about backfills that the command line and the screens share."""

import time
from collections.abc import Iterable

from bwtui.model.backfill import BackfillStatus
from bwtui.model.number_format import count, duration, rate

#: The reason of a request as shown next to its table.
REASONS = {"snapshot": ""} | {one: one for one in ("joined", "repair", "heal", "first")}
REASONS["retry"] = "dead letters"


def progress_text(status: BackfillStatus, now: float | None = None) -> str:
    """Describe a request's progress in one line, or why it failed."""
    sent = _sent(status)
    if status.state == "failed":
        return status.error
    if status.state == "waiting":
        return status.detail or (f"waiting, {sent}" if status.chunks else "waiting for its turn")
    if status.state == "done":
        seconds = duration(status.ended - status.started) if status.started else ""
        dropped = f"{status.dropped:,} dropped, see 'bwtui dead-letters list'" if status.dropped else ""
        return ", ".join(filter(None, (sent, _skipped(status), dropped, f"in {seconds}" if seconds else "")))
    if status.state in ("paused", "cancelled"):
        return f"{status.state}, {sent}"
    pace = f"{rate(status.rows_per_second)}/s" if status.rows_per_second else ""
    return ", ".join(filter(None, (sent, pace, _remaining_time(status, now), status.detail)))


def in_brief(status: BackfillStatus, now: float) -> str:
    """Describe the progress of a running request in about forty characters."""
    if status.state != "running" or not status.rows:
        return progress_text(status, now)
    done = share(status)
    parts = (
        "" if done is None else f"{done:.0%}",
        f"{count(status.rows)} rows sent",
        f"{rate(status.rows_per_second)}/s" if status.rows_per_second else "",
        _remaining_time(status, now),
    )
    return "  ".join(filter(None, parts))


def share(status: BackfillStatus) -> float | None:
    """Return the completed share (0 to 1), or None if unknown; it depends on an estimate."""
    if status.state == "done":
        return 1.0
    if not status.estimate:
        return None
    return min(0.99, _processed(status) / status.estimate)


def _processed(status: BackfillStatus) -> int:
    return status.rows + status.tombstones + status.left_out + status.dropped


def _sent(status: BackfillStatus) -> str:
    rows = f"{status.rows:,}" if status.rows < 100_000 else count(status.rows)
    # Once there are as many as estimated, the estimate says nothing about what is left.
    is_part = not status.is_over and _processed(status) < (status.estimate or 0)
    of = f" of about {count(status.estimate or 0)}" if is_part else ""
    tombstones = f" and {status.tombstones:,} tombstones" if status.tombstones else ""
    done = f" ({share(status) or 0:.0%})" if is_part else ""
    return f"{rows}{of} rows{tombstones} sent{done}"


def _skipped(status: BackfillStatus) -> str:
    return f"{status.left_out:,} skipped, because the stream had sent newer ones" if status.left_out else ""


def _remaining_time(status: BackfillStatus, now: float | None) -> str:
    """Return the remaining time at the current rate, as text."""
    done = share(status)
    now = time.time() if now is None else now
    if not done or not status.rows_per_second or not status.started or done >= 0.99:
        return ""
    remaining = ((status.estimate or 0) - _processed(status)) / status.rows_per_second
    return f"{duration(remaining)} left"


def snapshot_command(tables: Iterable[str], *, relay: str = "", unkeyed: bool = False) -> str:
    """Return the command that sends whole tables; set ``unkeyed`` if one of them has no key."""
    options = [*(["--relay", relay] if relay else []), *(["-u"] if unkeyed else [])]
    return " ".join(["bwtui snapshot", *options, *tables])
