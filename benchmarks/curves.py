"""What a relay uses while it runs, second by second, and pictures of it: SVG, written by hand."""

import contextlib
import math
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psycopg2
from drawing import FAINT, LIMIT, LINE, MARK, canvas, path, steps, text

from bwtui.errors import BwtuiError
from bwtui.model.status import Status
from bwtui.relay.process.control import request

_LOOK_SECONDS = 0.5
#: So many samples are kept of a run, however long it was.
_KEPT = 400
_LAG_SQL = """
select pg_current_wal_lsn() - confirmed_flush_lsn, (pg_current_wal_lsn() - '0/0')::bigint,
       coalesce(pg_current_wal_lsn() - sent_lsn, 0), active_pid, coalesce(spill_bytes, 0)
  from pg_replication_slots
  left join pg_stat_replication_slots using (slot_name)
  left join pg_stat_replication on pid = active_pid
 where pg_replication_slots.slot_name = %s"""


class Curve:
    """Looks at a relay twice a second, from outside: the kernel's, PostgreSQL's and its own figures."""

    def __init__(self, dsn: str, slot: str, pid: int) -> None:
        """``pid`` is the relay's process."""
        self._dsn = dsn
        self._slot = slot
        self._pid = pid
        self._zero = time.monotonic()
        self._samples: list[dict[str, float]] = []
        #: What the relay said of itself, with the seconds at which it first said so, without its figures.
        self.said: dict[str, tuple[float, str]] = {}

    @contextlib.contextmanager
    def going_on(self) -> Iterator["Curve"]:
        """Look during the block."""
        ended = threading.Event()

        def watch() -> None:
            with contextlib.closing(psycopg2.connect(self._dsn)) as connection:
                connection.autocommit = True
                while not ended.wait(_LOOK_SECONDS):
                    self._look(connection)

        thread = threading.Thread(target=watch, name="curve", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()

    def zero(self, at: float | None = None) -> None:
        """Count seconds from now on, or from ``at`` by the monotonic clock."""
        self._zero = time.monotonic() if at is None else at

    def samples(self) -> list[dict[str, float]]:
        """Return what was seen, thinned out evenly, by seconds since `zero`."""
        every = math.ceil(len(self._samples) / _KEPT) or 1
        return [
            {**sample, "seconds": round(sample["seconds"] - self._zero, 2)}
            for sample in self._samples[::every]
        ]

    def most(self, name: str) -> float:
        """Return the largest value of all samples."""
        return max(sample[name] for sample in self._samples)

    def last(self, name: str) -> float:
        """Return the newest value, 0 before the first look."""
        return self._samples[-1][name] if self._samples else 0.0

    def _look(self, connection: "psycopg2.extensions.connection") -> None:
        with connection.cursor() as cursor:
            cursor.execute(_LAG_SQL, [self._slot])
            found: list[tuple[Any, ...]] = cursor.fetchall()
        status = status_of(self._slot)
        if not found or status is None:
            return
        ((lag, wal, unread, walsender, spilled),) = found
        now = time.monotonic()
        self._samples.append(
            {
                "seconds": now,
                "resident_mb": round(_resident(self._pid) / 1e6, 1),
                "walsender_mb": round(_resident(walsender, own=True) / 1e6, 1),
                "lag_mb": round(float(lag) / 1e6, 1),
                "wal_mb": round(float(wal) / 1e6, 1),
                "unread_mb": round(float(unread) / 1e6, 1),
                "spilled_mb": round(float(spilled) / 1e6, 1),
                "in_flight": status.stages["produce"].queue,
                "acknowledged": status.stages["acknowledge"].total,
            }
        )
        sentence = status.verdict.sentence
        shape = re.sub(r"[\d.]+\S*", "#", sentence)
        self.said.setdefault(shape, (now, sentence))


def status_of(slot: str) -> Status | None:
    """Return what the relay says of itself; None while it does not answer."""
    try:
        return Status.from_json(request(slot, {"request": "status"}))
    except BwtuiError:
        return None


def _resident(pid: int | None, *, own: bool = False) -> int:
    """Return resident memory in bytes, 0 for no process, or one that others may not look at."""
    if pid is None:
        return 0
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    # A server's shared buffers are nobody's own.
    return (int(resident) - own * int(shared)) * os.sysconf("SC_PAGE_SIZE")


# -- pictures ------------------------------------------------------------------------------------------------

_WIDTH, _LEFT, _RIGHT, _TOP, _PANEL, _GAP = 860, 76, 16, 64, 110, 34


class Panel(NamedTuple):
    """One curve: ``limit`` is what it must stay below, or None."""

    title: str
    values: Sequence[float]
    limit: float | None = None


def picture(
    title: str, seconds: Sequence[float], panels: Sequence[Panel], marks: Sequence[tuple[float, str]]
) -> str:
    """Return an SVG with a panel for each curve, one below the other, over the same seconds.

    ``marks`` are moments with a word each.
    """
    low, high = min(seconds), max(*seconds, min(seconds) + 1)

    def across(second: float) -> float:
        return _LEFT + (second - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    height = _TOP + len(panels) * (_PANEL + _GAP) + 18
    parts = [canvas(_WIDTH, height), text(_LEFT, 20, title, size=14)]
    bottom = _TOP + len(panels) * (_PANEL + _GAP) - _GAP
    for second in steps(low, high, 10):
        x = across(second)
        parts.append(path([(x, _TOP), (x, bottom)], FAINT, 0.5))
        parts.append(text(x, bottom + 16, f"{second:g}", anchor="middle"))
    parts.append(text(_WIDTH - _RIGHT, bottom + 32, "seconds", anchor="end"))
    for number, panel in enumerate(panels):
        parts += _panel(panel, [across(second) for second in seconds], _TOP + number * (_PANEL + _GAP))
    for second, word in marks:
        x = across(second)
        parts.append(path([(x, _TOP - 20), (x, bottom)], MARK, 1, dashes="2 3"))
        is_late = x > _WIDTH * 0.75
        beside = x - 4 if is_late else x + 4
        parts.append(text(beside, _TOP - 24, word, anchor="end" if is_late else "start", colour=MARK))
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, across: Sequence[float], top: float) -> Iterator[str]:
    largest = max(*panel.values, panel.limit or 0, 1e-9) * 1.05
    floor = top + _PANEL

    def up(value: float) -> float:
        return floor - value / largest * _PANEL

    for value in steps(0, largest, 4):
        yield path([(_LEFT, up(value)), (_WIDTH - _RIGHT, up(value))], FAINT, 0.5)
        yield text(_LEFT - 6, up(value) + 4, f"{value:,g}" if value < 1e6 else f"{value:,.0f}", anchor="end")
    if panel.limit is not None:
        yield path([(_LEFT, up(panel.limit)), (_WIDTH - _RIGHT, up(panel.limit))], LIMIT, 1, dashes="6 4")
    points = [(x, up(value)) for x, value in zip(across, panel.values, strict=True)]
    yield path(points, LINE, 1.5)
    yield text(_LEFT, top - 6, panel.title)
