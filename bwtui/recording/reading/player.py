"""Plays a recording: position, speed, and all ways to move.

At position P, the changes before P have happened. The player also has a time: during a pause in the
recording, time advances and the position does not. It reads through a `RecordingView` and takes its clock as
an argument, so nothing here ever waits.
"""

from collections.abc import Callable

from bwtui.errors import UsageError
from bwtui.model.lsn import format_lsn
from bwtui.recording.reading.seek_target import MICROS, SeekContext, SeekTarget, parse_target
from bwtui.recording.view import RecordingView

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
