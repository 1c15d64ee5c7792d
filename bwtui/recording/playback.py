"""Count what a transaction did."""

import heapq
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from bwtui.errors import UsageError
from bwtui.model.lsn import format_lsn, parse_lsn
from bwtui.recording.change import COUNTERS, Change
from bwtui.recording.view import OnProgress, RecordedTransaction, RecordingView, TableCounts


@dataclass(slots=True)
class TransactionCounts:
    """Counts over the changes of a transaction, or over the first of them."""

    #: Changes by table and operation.
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Messages by state, and changes without one by reason.
    messages: Counter[str] = field(default_factory=Counter)

    @property
    def by_table(self) -> dict[str, list[str]]:
        """The operations on each table as text: ``3 update``."""
        tables: dict[str, list[str]] = {}
        for (table, operation), count in self.changes.items():
            tables.setdefault(table, []).append(f"{count:,} {operation}")
        return tables


def counted(view: RecordingView, start: int, stop: int) -> TransactionCounts:
    """Count the changes at positions ``[start, stop)``. Raises DamagedRecording."""
    counts = TransactionCounts()
    for change in view.changes(start, stop):
        counts.changes[change.table, change.operation] += 1
        counts.messages.update(message.state for message in change.messages)
        if change.without:
            counts.messages[change.without] += 1
    return counts


# Select a bounded number of transactions to list, from any number in the recording.
#
# The segments' indexes have xid, commit, and start position of all transactions. Tables and bytes need a read
# of the changes, so they are looked up for one transaction at a time.

#: Maximum number of listed transactions: the newest, the largest, and those that took longest.
NEWEST, LARGEST, LONGEST = 500, 100, 100
#: Approximate maximum of the newest transactions to examine.
MOST = 3_000_000
#: Transactions between two calls of the progress function.
TRANSACTION_STEP = 5_000


class TransactionContents(NamedTuple):
    """Messages by table, and bytes, of the first ``read`` changes of a transaction."""

    tables: dict[str, int]
    bytes: int
    read: int


@dataclass
class TransactionFold:
    """The transactions up to a position that are worth listing; `advance` only moves forward."""

    #: Position from which transactions were examined.
    first: int = 0
    position: int = 0
    count: int = 0
    #: The transaction that is open at the position, if any.
    under_way: RecordedTransaction | None = None
    _next: int = 0
    _highest: int = 0
    _newest: deque[RecordedTransaction] = field(default_factory=lambda: deque(maxlen=NEWEST))
    _largest: list[tuple[int, int, RecordedTransaction]] = field(default_factory=list)
    _longest: list[tuple[int, int, RecordedTransaction]] = field(default_factory=list)

    def advance(
        self,
        view: RecordingView,
        position: int,
        cancelled: Callable[[], bool] = lambda: False,
        on_progress: OnProgress = lambda done, total: None,
    ) -> bool:
        """Add the transactions that end by ``position``; return False if cancelled."""
        if not self.position:
            self.first = self._next = view.newest_transactions(position, MOST)
        self.under_way = None
        for number, one in enumerate(view.transactions(self._next, position), 1):
            if one.stop > position:
                self.under_way = one
                break
            self._take(one)
            self._next = one.stop
            if number % TRANSACTION_STEP == 0:
                on_progress(one.stop - self.first, max(position - self.first, 1))
                if cancelled():
                    self.position = one.stop
                    return False
        self.position = position
        return True

    def _take(self, one: RecordedTransaction) -> None:
        # After a reconnect, a transaction may be recorded again.
        if one.lsn <= self._highest:
            one = one._replace(is_repeat=True)
        else:
            self._highest = one.lsn
        self.count += 1
        self._newest.append(one)
        _keep(self._largest, one.rows, one, LARGEST)
        if one.confirmed:
            _keep(self._longest, one.confirmed - one.received, one, LONGEST)

    def listed(self) -> list[RecordedTransaction]:
        """Return the transactions to list, oldest first."""
        by_start = {one.start: one for one in self._newest}
        by_start |= {one.start: one for heap in (self._largest, self._longest) for _, _, one in heap}
        return [by_start[start] for start in sorted(by_start)]


def _keep(
    heap: list[tuple[int, int, RecordedTransaction]], value: int, one: RecordedTransaction, most: int
) -> None:
    if len(heap) < most:
        heapq.heappush(heap, (value, one.start, one))
    elif value > heap[0][0]:
        heapq.heapreplace(heap, (value, one.start, one))


def contents(view: RecordingView, one: RecordedTransaction, most: int) -> TransactionContents:
    """Read at most ``most`` changes of a transaction. Raises DamagedRecording."""
    tables: Counter[str] = Counter()
    size = read = 0
    for change in view.changes(one.start, min(one.stop, one.start + most)):
        tables.update({table: len(change.messages) or 1 for table in change.tables})
        size += change.message_bytes
        read += 1
    return TransactionContents(dict(tables), size, read)


# The changes around a position that a screen shows, all or those that match a query.

#: Changes on each side of the position.
SIZE = 150
#: Bytes of rows on each side; one change is always taken, however large.
WEIGHT = 4 << 20
#: Changes between two calls of the progress function.
STEP = 1_000
#: Maximum number of changes to read at once when searching backward.
_STRETCH = 20_000

Matches = Callable[[Change], bool]


@dataclass(frozen=True)
class WindowBounds:
    """The visible part of a recording: ``[start, stop)``."""

    start: int
    stop: int


@dataclass(frozen=True)
class ChangeWindow:
    """Changes in order; it includes every match in ``[low, high)``."""

    changes: tuple[Change, ...] = ()
    low: int = 0
    high: int = 0
    bounds: WindowBounds = field(default_factory=lambda: WindowBounds(0, 0))
    #: True if the search was cancelled before it found enough.
    cut: bool = False

    def covers(self, position: int, margin: int) -> bool:
        """Return whether there are ``margin`` changes on both sides of a position, or all that exist."""
        if not self.low <= position <= self.high:
            return False
        before = sum(change.position < position for change in self.changes)
        enough_before = before >= margin or self.low <= self.bounds.start
        enough_behind = len(self.changes) - before >= margin or self.high >= self.bounds.stop
        return enough_before and enough_behind


def window(
    view: RecordingView,
    position: int,
    bounds: WindowBounds,
    matches: Matches | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    on_progress: OnProgress = lambda done, total: None,
) -> ChangeWindow:
    """Return the changes around ``position`` within ``bounds``. Raises DamagedRecording."""
    position = min(max(position, bounds.start), bounds.stop)
    search = _Search(view, matches, cancelled, on_progress, bounds.stop - bounds.start)
    before, low = search.back(position, bounds.start)
    following, high = search.on(position, bounds.stop)
    return ChangeWindow((*before, *following), low, high, bounds, search.stopped)


@dataclass
class _Search:
    """Searches forward; and backward in stretches, since a recording can only be read forward."""

    view: RecordingView
    matches: Matches | None
    cancelled: Callable[[], bool]
    on_progress: OnProgress
    total: int
    read: int = 0
    stopped: bool = False
    _position: int = 0

    def on(self, start: int, end: int) -> tuple[list[Change], int]:
        """Return the first matches from ``start`` on, and the position up to which all changes were read."""
        changes: list[Change] = []
        weight = 0
        for change in self._matching(start, end):
            changes.append(change)
            weight += _weight(change)
            if len(changes) >= SIZE or weight > WEIGHT:
                return changes, change.position + 1
        return changes, self._position if self.stopped else end

    def back(self, stop: int, end: int) -> tuple[list[Change], int]:
        """Return the last matches before ``stop``, and the position from which on all changes were read."""
        changes: deque[tuple[Change, int]] = deque()
        stretch = SIZE
        while stop > end and len(changes) < SIZE:
            start = max(stop - stretch, end)
            part: deque[tuple[Change, int]] = deque()
            weight, cut = sum(w for _, w in changes), False
            for change in self._matching(start, stop):
                part.append((change, _weight(change)))
                weight += part[-1][1]
                while len(part) > 1 and (len(part) + len(changes) > SIZE or weight > WEIGHT):
                    weight -= part.popleft()[1]
                    cut = True
            if self.stopped:
                # The stretch was not read to its end.
                break
            changes = part + changes
            stop = changes[0][0].position if cut else start
            if cut or weight > WEIGHT:
                break
            stretch = min(4 * stretch, _STRETCH)
        return [change for change, _ in changes], stop

    def _matching(self, start: int, stop: int) -> Iterator[Change]:
        self._position = start
        if self.stopped or start >= stop:
            return
        for change in self.view.changes(start, stop):
            self._position = change.position + 1
            if self.matches is None or self.matches(change):
                yield change
            self.read += 1
            if self.read % STEP == 0:
                self.on_progress(self.read, self.total)
                if self.cancelled():
                    self.stopped = True
                    return


def _weight(change: Change) -> int:
    rows = (row for row in (change.before, change.after) if row is not None)
    fields = sum(len(field) for row in rows for field in row if isinstance(field, bytes))
    return fields + change.message_bytes


# Counts as of a moving position, derived from those of a nearby position where that is cheaper.

#: Maximum number of changes to read from one position's counts to another's.
NEAR = 1_500


class CountCache:
    """Caches the counts of the last requested position, and of one before it to step back to."""

    def __init__(self, view: RecordingView) -> None:
        self._view = view
        self._position = 0
        self._counts: dict[str, TableCounts] = {}
        #: A position with the counts that the recording itself returned.
        self._base: tuple[int, dict[str, TableCounts]] = (0, {})

    def at(self, position: int) -> dict[str, TableCounts]:
        """Return the counts of what was relayed before ``position``, by table."""
        distance = position - self._position
        if abs(distance) > NEAR or not self._position or not position:
            self._begin_at(position)
        elif distance < 0:
            # A change has no record of what its table's topic and schemas were before it.
            if not self._base[0] <= position <= self._base[0] + NEAR:
                self._begin_at(max(position - NEAR // 2, 0))
            self._position, self._counts = self._base
        self._add(self._view.changes(self._position, position))
        self._position = position
        return self._counts

    def _begin_at(self, position: int) -> None:
        self._position, self._counts = self._base = position, dict(self._view.counts(position))

    def _add(self, changes: Iterator[Change]) -> None:
        counts = dict(self._counts)
        for change in changes:
            for table in change.tables:
                counts[table] = _counted(counts.get(table, TableCounts()), change)
        self._counts = counts


def _counted(counts: TableCounts, change: Change) -> TableCounts:
    messages, name = change.messages, COUNTERS[change.operation]
    last = messages[-1] if messages else None
    return replace(
        counts,
        **{name: getattr(counts, name) + 1},
        topic=last.topic if last else counts.topic,
        messages=counts.messages + len(messages),
        bytes=counts.bytes + change.message_bytes,
        dropped=counts.dropped + (change.without == "dropped"),
        key_schema_id=last.key_schema_id if last and last.key else counts.key_schema_id,
        value_schema_id=last.value_schema_id if last and last.value else counts.value_schema_id,
        key_columns=change.key_columns if len(change.tables) == 1 else counts.key_columns,
    )


def by_table(changes: Iterator[Change], most: int) -> tuple[Counter[str], int]:
    """Count the changes of each table among the first ``most``, and the changes read."""
    counts: Counter[str] = Counter()
    read = 0
    for change in changes:
        counts.update(change.tables)
        read += 1
        if read >= most:
            break
    return counts, read


# Parse places in a recording: a time, an LSN, a transaction, a percentage, a position.

FORMS = "12:04[:05], 2026-01-31 12:04, +30s, -5m, 0/1A2B, xid 742, 45%, #1234 (a position), start or end"
MICROS = 1_000_000

Kind = Literal["time", "lsn", "xid", "change"]


class SeekTarget(NamedTuple):
    """A place: Unix microseconds, an LSN, a transaction id, or the number of changes before it."""

    kind: Kind
    value: int


class SeekContext(NamedTuple):
    """The context of a parsed place: the recording's first, last and current time, and number of changes."""

    first: int
    last: int
    now: int
    length: int


_UNITS = {"ms": 1_000, "s": MICROS, "m": 60 * MICROS, "h": 3600 * MICROS, "d": 86400 * MICROS}
_STEP = re.compile(r"([+-])\s*((?:\d+(?:\.\d+)?\s*(?:ms|s|m|h|d)\s*)+)")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d{1,6})?))?")
_XID = re.compile(r"xid\s*=?\s*(\d+)", re.IGNORECASE)
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_NUMBER = re.compile(r"#\s*(\d[\d,]*)")


def parse_target(text: str, within: SeekContext) -> SeekTarget:
    """Parse a place. Raises UsageError when ``text`` is not a place."""
    text = text.strip()
    named = {"start": 0, "end": within.length}
    if text.lower() in named:
        return SeekTarget("change", named[text.lower()])
    if match := _XID.fullmatch(text):
        return SeekTarget("xid", int(match[1]))
    if match := _NUMBER.fullmatch(text):
        return SeekTarget("change", _number(int(match[1].replace(",", "")), within))
    if match := _SHARE.fullmatch(text):
        return SeekTarget("time", _share(float(match[1]), within))
    if match := _STEP.fullmatch(text):
        amount = round(sum(float(n) * _UNITS[unit] for n, unit in _AMOUNT.findall(match[2])))
        moment = within.now + (amount if match[1] == "+" else -amount)
        return SeekTarget("time", min(max(moment, within.first), within.last))
    if "/" in text:
        try:
            return SeekTarget("lsn", parse_lsn(text))
        except ValueError as error:
            raise UsageError(f"{text!r} is not a valid LSN", "an LSN looks like 0/16B3748") from error
    return SeekTarget("time", _clock(text, within) if _CLOCK.fullmatch(text) else _date(text, within))


def _number(number: int, within: SeekContext) -> int:
    """Return the number of changes up to and including the one at position ``number``."""
    if number >= within.length:
        last = within.length - 1
        raise UsageError(
            f"there is no change at position {number:,}: "
            + (f"the last one is at {last:,}" if within.length else "the recording holds no changes"),
            f"give one from #0 to #{last:,}, or a percentage such as 50%" if within.length else "give a time",
        )
    return number + 1


def _share(percent: float, within: SeekContext) -> int:
    if percent > 100:
        raise UsageError("a recording ends at 100%", "give a percentage from 0% to 100%")
    return within.first + round((within.last - within.first) * percent / 100)


def _clock(text: str, within: SeekContext) -> int:
    """Return the occurrence of a time of day in the recording that is nearest to the current time."""
    match = _CLOCK.fullmatch(text)
    assert match is not None
    hour, minute, second = int(match[1]), int(match[2]), float(match[3] or 0)
    if hour > 23 or minute > 59 or second >= 60:
        raise UsageError(f"{text!r} is not a time of day", f"write {FORMS}")
    day = datetime.fromtimestamp(within.first / MICROS).replace(hour=0, minute=0, second=0, microsecond=0)
    end = datetime.fromtimestamp(within.last / MICROS)
    # A recording may cover years; the days around the current time are enough.
    now = datetime.fromtimestamp(within.now / MICROS)
    day = max(day, now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=2))
    times: list[int] = []
    while day <= end and len(times) < 5:
        moment = day + timedelta(hours=hour, minutes=minute, seconds=second)
        times.append(round(moment.timestamp() * MICROS))
        day += timedelta(days=1)
    # "12:04" means the whole minute, "12:04:05" the whole second.
    width = (60 if match[3] is None else 1 if "." not in match[3] else 0) * MICROS
    inside = [m for m in times if within.first - width < m <= within.last]
    if not inside:
        raise _outside(text, within)
    return max(min(inside, key=lambda m: abs(m - within.now)), within.first)


def _date(text: str, within: SeekContext) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a valid position in a recording", f"write {FORMS}") from None
    micros = round(moment.timestamp() * MICROS)
    whole_day = len(text) == 10
    if micros > within.last or micros + (86400 * MICROS if whole_day else 60 * MICROS) < within.first:
        raise _outside(text, within)
    return max(micros, within.first)


def _outside(text: str, within: SeekContext) -> UsageError:
    ends = [
        datetime.fromtimestamp(m / MICROS).strftime("%Y-%m-%d %H:%M:%S") for m in (within.first, within.last)
    ]
    return UsageError(f"{text!r} is not in the recording", f"the recording covers {ends[0]} to {ends[1]}")


# Plays a recording: position, speed, and all ways to move.
#
# At position P, the changes before P have happened. The player also has a time: during a pause in the
# recording, time advances and the position does not. It reads through a `RecordingView` and takes its clock
# as an argument, so nothing here ever waits.

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
#: Playing time of any longer stretch without changes, in microseconds.
IDLE = 2 * MICROS


class Player:
    """A position in a recording; starts at the end, where everything has happened."""

    def __init__(self, view: RecordingView, clock: Callable[[], float]) -> None:
        self._view = view
        self._clock = clock
        self._ticked = clock()
        self.position = view.length
        #: The current time, in Unix microseconds.
        self.time = view.last_time
        self.playing = False
        self.speed = 1.0
        #: Length of the idle stretch that is being shortened, in microseconds; otherwise 0.
        self.skipping = 0

    @property
    def at_end(self) -> bool:
        """Return whether everything was played."""
        return self.position >= self._view.length

    # Playing.

    def play(self) -> None:
        """Start playing; at the end, start from the beginning."""
        if self.at_end:
            self.seek(0)
        self._ticked = self._clock()
        self.playing = True

    def pause(self) -> None:
        """Stop playing."""
        self.playing = False
        self.skipping = 0

    def toggle(self) -> None:
        """Start or stop playing."""
        if self.playing:
            self.pause()
        else:
            self.play()

    def change_speed(self, steps: int) -> None:
        """Move up or down the `SPEEDS`."""
        self.advance()
        place = SPEEDS.index(self.speed) + steps
        self.speed = SPEEDS[min(max(place, 0), len(SPEEDS) - 1)]

    def advance(self) -> None:
        """Advance by the time that has passed on the clock since the last call."""
        now = self._clock()
        budget = round(max(now - self._ticked, 0.0) * self.speed * MICROS)
        self._ticked = now
        if not self.playing:
            return
        while budget > 0 and not self.at_end:
            budget -= self._move(budget)
        if self.at_end:
            self.time = (
                max(self.time, self._view.time_at(self._view.length - 1)) if self.position else self.time
            )
            self.pause()

    def _move(self, budget: int) -> int:
        """Advance by at most ``budget`` microseconds of playing time, and return how many were used."""
        view = self._view
        before = view.time_at(self.position - 1) if self.position else view.first_time
        following = view.time_at(self.position)
        gap = following - before
        if gap > IDLE and following > self.time:
            self.skipping = gap
            # Rounded up, so that it always advances.
            needed = -(-(following - self.time) * IDLE // gap)
            if needed > budget:
                self.time += budget * gap // IDLE
                return budget
            self.time = following
            self.position = view.at_time(following + 1)
            return needed
        self.skipping = 0
        step = min(budget, IDLE)
        self.time = max(self.time, before) + step
        self.position = max(view.at_time(self.time + 1), self.position)
        return step

    # Moving.

    def seek(self, position: int) -> None:
        """Move to after ``position`` changes."""
        self.position = min(max(position, 0), self._view.length)
        self.time = self._view.time_at(self.position - 1) if self.position else self._view.first_time
        self._settle()

    def seek_time(self, time: int) -> None:
        """Move to a time: everything recorded up to it has happened."""
        self.time = min(max(time, self._view.first_time), self._view.last_time)
        self.position = self._view.at_time(self.time + 1)
        self._settle()

    def step(self, changes: int) -> None:
        """Move by single changes, and stop playing."""
        self.pause()
        self.seek(self.position + changes)

    def step_transaction(self, direction: int) -> None:
        """Move to the end of the next transaction or of the previous one, and stop playing."""
        self.pause()
        if direction > 0 and not self.at_end:
            self.seek(self._view.transaction(self.position)[1])
        elif direction < 0 and self.position:
            self.seek(self._view.transaction(self.position - 1)[0])

    def seek_error(self, direction: int) -> None:
        """Move to the next or the previous error or warning. Raises UsageError when there is none."""
        times = sorted(round(e.time * MICROS) for e in self._view.errors(self._view.length))
        if direction > 0:
            time = next((t for t in times if t > self.time), None)
        else:
            time = next((t for t in reversed(times) if t < self.time), None)
        if time is None:
            where, opposite = ("after", "before") if direction > 0 else ("before", "after")
            raise UsageError(
                f"no error or warning {where} this position",
                f"look for one {opposite} it" if times else "the recording has none",
            )
        self.pause()
        self.seek_time(time)

    def seek_text(self, text: str) -> None:
        """Move to the place that ``text`` names. Raises UsageError when it is not in the recording."""
        view = self._view
        self.go(parse_target(text, SeekContext(view.first_time, view.last_time, self.time, view.length)))

    def go(self, target: SeekTarget) -> None:
        """Move to a place; for an LSN or a transaction, to after all its changes."""
        if target.kind == "time":
            self.seek_time(target.value)
        elif target.kind == "change":
            self.seek(target.value)
        elif target.kind == "lsn":
            self.seek(self._of_lsn(target.value))
        else:
            self.seek(self._of_xid(target.value))

    def _of_lsn(self, lsn: int) -> int:
        view = self._view
        if view.length and not view.first_lsn <= lsn <= view.last_lsn:
            ends = f"{format_lsn(view.first_lsn)} to {format_lsn(view.last_lsn)}"
            raise UsageError(f"{format_lsn(lsn)} is not in the recording", f"its commits go from {ends}")
        return view.at_lsn(lsn + 1)

    def _of_xid(self, xid: int) -> int:
        view = self._view
        # Search after this position first: after a restart the same transaction may be recorded again.
        position = view.of_xid(xid, self.position)
        if position is None:
            position = view.of_xid(xid)
        if position is None:
            raise UsageError(
                f"no transaction {xid} in the recording", "see the field xid of the recording's changes"
            )
        return view.transaction(position)[1]

    def _settle(self) -> None:
        self.skipping = 0
        self._ticked = self._clock()
