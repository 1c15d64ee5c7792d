"""The data of a recording's sparklines: changes per recorded second, computed a little at a time."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from bwtui.errors import BwtuiError, DamagedRecording
from bwtui.model.status import Status, TableStatus
from bwtui.recording.change import Change
from bwtui.recording.playback import MICROS, CountCache, Player, by_table
from bwtui.recording.view import RecordingView, TableCounts
from bwtui.tui.base import assessment
from bwtui.tui.base.actions import Kind
from bwtui.tui.sources.model import POINTS, Link, Model, Playhead, ScreenSnapshot

#: Maximum seconds of work per snapshot.
BUDGET = 0.03
#: Points of a table's sparkline.
TABLE_POINTS = 60
#: Seconds over which a table's present rate is averaged.
WINDOW = 3
#: Maximum changes per second that are read to count them by table; the counts are scaled up to the others.
MOST = 3_000
_KEPT = 4 * TABLE_POINTS

Points = Mapping[str, tuple[float, ...]]


class RecordedRates:
    """Changes per recorded second; missing seconds are added with the next snapshots."""

    def __init__(self, view: RecordingView) -> None:
        self._view = view
        #: Second → changes by table.
        self._rates: OrderedDict[int, dict[str, float]] = OrderedDict()
        self.complete = False

    def sample(self, now: int) -> tuple[Points, tuple[float, ...], Mapping[str, float]]:
        """Return the points of every table, the points of all tables together, and the tables' rates."""
        deadline = time.monotonic() + BUDGET
        last = now // MICROS - 1
        first = max(self._view.first_time // MICROS, last - TABLE_POINTS + 1)
        seconds: list[dict[str, float]] = []
        self.complete = True
        for second in range(last, first - 1, -1):
            if second not in self._rates and seconds and time.monotonic() > deadline:
                self.complete = False
                break
            seconds.append(self._of(second))
        seconds.reverse()
        tables = {table for second in seconds for table in second}
        points = {table: tuple(second.get(table, 0.0) for second in seconds) for table in tables}
        rates = {table: sum(p[-WINDOW:]) / len(p[-WINDOW:]) for table, p in points.items()}
        return points, self._totals(last), rates

    def _totals(self, last: int) -> tuple[float, ...]:
        """Return all changes per second, which follow from positions alone."""
        view = self._view
        first = max(view.first_time // MICROS, last - POINTS + 1)
        places = [view.at_time(second * MICROS) for second in range(first, last + 2)]
        return tuple(float(b - a) for a, b in pairwise(places))

    def _of(self, second: int) -> dict[str, float]:
        rates = self._rates.get(second)
        if rates is None:
            start, stop = (self._view.at_time(s * MICROS) for s in (second, second + 1))
            counts, read = by_table(self._view.changes(start, stop), MOST) if stop > start else ({}, 1)
            rates = {table: number * (stop - start) / read for table, number in counts.items()}
            self._rates[second] = rates
            if len(self._rates) > _KEPT:
                self._rates.popitem(last=False)
        return rates


T = TypeVar("T")
Command = Callable[[Player], None]
#: Called with the error of a finished command, or None.
Then = Callable[[BwtuiError | None], None]
#: Recorded seconds over which CPU use and WAL growth are averaged.
_WINDOW = 10


class RecordingSource:
    """Creates status snapshots as of the player's position, and answers queries about the recording."""

    def __init__(
        self, view: RecordingView, reopen: Callable[[], RecordingView], clock: Callable[[], float] = time.time
    ) -> None:
        self.name = view.name
        self.view = view
        self.reopen = reopen
        self.player = Player(view, clock)
        self._clock = clock
        self._commands: deque[tuple[Command, Then | None]] = deque()
        self._last_command = 0
        self._done = 0
        self._seconds = RecordedRates(view)
        self._tally = CountCache(view)
        self._pages = ThreadPoolExecutor(1, "player")
        self._searches = ThreadPoolExecutor(1, "search")
        self._second_view: RecordingView | None = None
        self._picture = ScreenSnapshot()
        #: The damage that prevents a new snapshot, and the first damage found at all.
        self.failure: BwtuiError | None = None
        self.damage: BwtuiError | None = None

    # Requests from the screens.

    def command(self, command: Command, then: Then | None = None) -> int:
        """Queue a command that the player runs before the next snapshot; return the command's number."""
        self._commands.append((command, then))
        self._last_command += 1
        return self._last_command

    @property
    def waiting(self) -> bool:
        """Whether commands are pending that no snapshot shows yet."""
        return bool(self._commands)

    @property
    def stands_still(self) -> bool:
        """True if the next snapshot would equal the last one."""
        return not self.player.playing and not self._commands and self._seconds.complete

    async def next_snapshot(self) -> tuple[ScreenSnapshot, list[Callable[[], None]]]:
        """Carry out the commands, play on, and return the snapshot and the callbacks of the commands.

        If the recording is damaged, set ``failure`` and ``damage`` and return the last snapshot.
        """
        return await self._run(self._pages, self._next_picture)

    async def search(self, question: Callable[[RecordingView], T]) -> T:
        """Run a quick query; such queries run one at a time. Raises DamagedRecording."""
        return await self._run(self._searches, lambda: self._noted(lambda: question(self._searched())))

    async def study(self, question: Callable[[RecordingView], T]) -> T:
        """Run a query that may take minutes, concurrently with all others. Raises DamagedRecording."""

        def ask() -> T:
            view = self.reopen()
            try:
                return question(view)
            finally:
                view.close()

        return await asyncio.to_thread(self._noted, ask)

    async def timeline(self, buckets: int) -> list[tuple[int, int]]:
        """Return the numbers of changes and errors in intervals of equal length."""
        return await self._run(
            self._pages, lambda: [(b.changes, b.errors) for b in self.view.timeline(buckets)]
        )

    async def transaction(self, position: int) -> tuple[int, int]:
        """Return where the transaction of a change begins and ends."""
        return await self._run(self._pages, lambda: self.view.transaction(position))

    # The rest runs in threads.

    @staticmethod
    async def _run(pool: ThreadPoolExecutor, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, function)

    def _searched(self) -> RecordingView:
        if self._second_view is None:
            self._second_view = self.reopen()
        return self._second_view

    def _next_picture(self) -> tuple[ScreenSnapshot, list[Callable[[], None]]]:
        answers = self._carry_out()
        self.failure = None
        try:
            self._play_on()
        except DamagedRecording as error:
            self.player.pause()
            self.failure = error
            self.damage = self.damage or error
        return self._picture, answers

    def _play_on(self) -> None:
        self.player.advance()
        last, now = self._picture.playhead, self._playhead(None)
        if last is None or replace(last, change=None, commands=0) != now or not self._seconds.complete:
            self._picture = self._paint()
        elif last.commands != self._done:
            self._picture = replace(self._picture, playhead=replace(last, commands=self._done))

    def _noted(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except DamagedRecording as error:
            self.damage = self.damage or error
            raise

    def _carry_out(self) -> list[Callable[[], None]]:
        answers: list[Callable[[], None]] = []
        while self._commands:
            command, then = self._commands.popleft()
            error: BwtuiError | None = None
            try:
                command(self.player)
            except BwtuiError as failed:
                error = failed
            self._done += 1
            if then is not None:
                answers.append(partial(then, error))
        return answers

    def _paint(self) -> ScreenSnapshot:
        view, player = self.view, self.player
        position = player.position
        change = next(view.changes(position - 1, position), None) if position else None
        rates, delivered, now = self._seconds.sample(player.time)
        status = status_at(view, position, player.time, self._tally.at(position), now)
        earlier = view.status(view.at_time(player.time - _WINDOW * MICROS)) if position else {}
        cpu, wal = _growth(earlier, status)
        return ScreenSnapshot(
            status=status,
            received=self._clock(),
            rates=rates,
            delivered=delivered,
            cpu=cpu,
            wal_rate=wal,
            schemas=tuple(view.schemas(position)),
            playhead=replace(self._playhead(change), commands=self._done),
        )

    def _playhead(self, change: Change | None) -> Playhead:
        view, player = self.view, self.player
        ends = (view.length, player.time, view.first_time, view.last_time)
        return Playhead(player.position, *ends, player.playing, player.speed, player.skipping, change)


class RecordedModel(Model):
    """The status snapshots of a recording, which are never stale."""

    kind: Kind = "recording"

    def __init__(self, source: RecordingSource, clock: Callable[[], float]) -> None:
        super().__init__(source.name, clock)
        self._source = source

    @property
    def link(self) -> Link:
        return "recorded" if self.live.status is not None else "connecting"

    async def sample_status(self) -> None:
        """Take the next snapshot; if the recording is damaged, set ``failure`` and keep the last snapshot."""
        snapshot, answers = await self._source.next_snapshot()
        self.failure = self._source.failure
        self.live = snapshot
        for answer in answers:
            answer()


def status_at(
    view: RecordingView,
    position: int,
    time: int,
    counts: Mapping[str, TableCounts],
    rates: Mapping[str, float],
) -> Status:
    """Return the relay's status as of a position; the tables' counts come from the recording itself."""
    recorded = view.status(position)
    source = view.source
    errors = view.errors(position)
    if recorded:
        status = Status.from_json({**recorded, "tables": {}, "errors": []})
    else:
        status = Status("starting", view.name, source.slot, detail="nothing has been recorded yet")
    troubled: dict[str | None, int] = {}
    for entry in errors:
        if not assessment.is_warning(entry):
            troubled[entry.table] = troubled.get(entry.table, 0) + entry.count
    tables = {
        name: _table(table, rates.get(name, 0.0), troubled.get(name, 0)) for name, table in counts.items()
    }
    return replace(
        status,
        name=view.name,
        slot=status.slot or source.slot,
        time=time / MICROS,
        publication=status.publication or source.publication,
        database=status.database or str(source.more.get("server", source.database)),
        broker=status.broker or source.broker,
        registry=status.registry or source.registry,
        server_version=status.server_version or source.server_version,
        tables=tables,
        errors=tuple(errors),
    )


def _table(counts: TableCounts, rate: float, errors: int) -> TableStatus:
    unkeyed = () if counts.key_columns else ("unkeyed: messages have no key",)
    return TableStatus(
        topic=counts.topic,
        snapshot_rows=counts.snapshot_rows,
        backfill_rows=counts.backfill_rows,
        inserts=counts.inserts,
        updates=counts.updates,
        deletes=counts.deletes,
        truncates=counts.truncates,
        messages=counts.messages,
        bytes=counts.bytes,
        rows_per_second=rate,
        errors=errors,
        dead_letters=counts.dropped,
        key_schema_id=counts.key_schema_id,
        value_schema_id=counts.value_schema_id,
        snapshot_state="done" if counts.snapshot_rows else "none",
        key_columns=counts.key_columns,
        notes=unkeyed,
    )


def _growth(earlier: dict[str, Any], status: Status) -> tuple[float | None, float | None]:
    """Return CPU use and WAL growth per second, averaged over the last recorded seconds."""
    if not earlier:
        return None, None
    before = Status.from_json({**earlier, "tables": {}, "errors": []})
    seconds = status.time - before.time
    if seconds < 1 or before.pid != status.pid:
        return None, None
    wal = float(status.server_lsn - before.server_lsn)
    return max(status.cpu_seconds - before.cpu_seconds, 0.0) / seconds, max(wal, 0.0) / seconds
