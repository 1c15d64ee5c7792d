"""The demo without screens: one line per second for a limited time."""

import time
from collections.abc import Callable
from typing import Any

from bwtui.demo.run import Demo
from bwtui.model.status import Status

_INTERVAL = 1.0


def run_for(demo: Demo, seconds: float, show: Callable[[str], None]) -> None:
    """Run the demo for ``seconds``, and ``show`` one line per second.

    Raises the error with which the relay or the workload ended before that.
    """
    start = time.monotonic()
    end = start + seconds
    due = start
    while due < end:
        due = min(due + _INTERVAL, end)
        time.sleep(max(0.0, due - time.monotonic()))
        demo.check()
        show(line(time.monotonic() - start, demo.writes, demo.status()))


def line(elapsed: float, writes: dict[str, Any], status: Status) -> str:
    """Return one line on the relay and the workload."""
    tables = status.tables.values()
    parts = [
        f"{elapsed:4.0f} s",
        status.state,
        f"{writes['committed']:,} transactions, {writes['rolled_back']:,} rolled back",
        f"{sum(table.messages for table in tables):,} messages",
        f"{sum(table.rows_per_second for table in tables):,.0f} rows/s",
        f"{status.wal_lag_bytes / 1e3:,.0f} kB behind",
    ]
    errors = sum(entry.count for entry in status.errors)
    if errors:
        parts.append(f"{errors:,} errors")
    return " · ".join(parts)
