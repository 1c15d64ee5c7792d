"""What a headless relay says: statuses on stdout with --json, and plain lines on stderr without.

A line is told when something begins, and its hint in one of its own; none for each row. All lines stand in
the relay's log as well. The relay goes on when nobody reads any of it (ADR 44).
"""

import logging

from bwtui.cli.output import streams
from bwtui.console import say
from bwtui.masking import mask_connection
from bwtui.model.figures import duration
from bwtui.model.status import ErrorEntry, Status
from bwtui.relay.process.main import Listener, stalled_by
from bwtui.shown import json_text

#: The error that ends the relay is the command's own, and a stall is a state.
_OWN_LINES = frozenset({"fatal", "stalled"})
_INTERVAL_SECONDS = 0.2
_STATUS_INTERVAL_SECONDS = 1.0
_log = logging.getLogger("bwtui.cli.output.headless")


class Lines:
    """Takes status after status, and tells what is new; each distinct error and notice once."""

    def __init__(self) -> None:
        self._state = ""
        self._waited = ""
        #: Whom the stall waits for that was told of last.
        self._stalled_by = ""
        #: When the stall began that was told of last, and goes on; 0: none does.
        self._stalled_since = 0.0
        self._reported: set[tuple[str, str | None, str]] = set()
        #: The folder of a recording that was given up; the last status knows of no recording any more.
        self._given_up = ""

    def emit(self, status: Status) -> None:
        """Tell what is new."""
        # Before there is a stream nothing else says why nothing happens.
        waits = status.state == "starting" and status.detail.startswith("waiting") and status.detail
        by = stalled_by(status)
        if status.state != self._state or (waits and waits != self._waited) or by != self._stalled_by:
            self._state, self._waited, self._stalled_by = status.state, waits or "", by
            _say(status, self._changed(status))
        if status.recording is not None and status.recording.state == "stopped":
            self._given_up = status.recording.path
        for entry in status.errors:
            self._tell(status, entry)
        # What the status has forgotten since may be told of again; else this would grow for months.
        self._reported &= {_identity(entry) for entry in status.errors}

    def _changed(self, status: Status) -> str:
        """Return the line of a state that is new, in the words of the verdict where they say more."""
        verdict = status.verdict
        if status.state == "stalled":
            # Another cause is another line of the same stall.
            self._stalled_since = self._stalled_since or verdict.since or status.time
            return f"stalled ({verdict.sentence})"
        if self._stalled_since and status.state in ("snapshot", "streaming"):
            lasted, self._stalled_since = duration(status.time - self._stalled_since), 0.0
            return f"{status.state} again, after {lasted}"
        if verdict.condition == "stopped":
            return verdict.sentence
        return status.state + (f" ({status.detail})" if status.detail else "")

    def emit_last(self, status: Status) -> None:
        """Tell what is new at the end, and what whoever looks now should not miss."""
        self.emit(status)
        dropped = sum(table.dead_letters for table in status.tables.values())
        if dropped:
            rows = "1 row was" if dropped == 1 else f"{dropped:,} rows were"
            _say(status, f"{rows} dropped, see 'bwtui status {status.name}' and dead-letters.jsonl")
        if self._given_up:
            _say(status, f"the recording in {self._given_up} was given up, and lacks what came after")

    def _tell(self, status: Status, entry: ErrorEntry) -> None:
        identity = _identity(entry)
        if identity in self._reported or entry.kind in _OWN_LINES:
            return
        self._reported.add(identity)
        where = f"table {entry.table}: " if entry.table and entry.table not in entry.message else ""
        more = "; more such rows are only counted" if entry.kind == "row" else ""
        kind = "notice" if entry.kind == "notice" else "error"
        _say(status, f"{kind}: {where}{entry.message}{more}")
        if entry.hint:
            # By itself and whole: it may end with statements to paste.
            _say(status, f"hint: {entry.hint}")


def _identity(entry: ErrorEntry) -> tuple[str, str | None, str]:
    # Rows that can't be relayed have as many messages as there are values.
    return entry.kind, entry.table, "" if entry.kind == "row" else entry.message


class Statuses:
    """Writes a status object a line to stdout, for as long as somebody reads it."""

    def __init__(self) -> None:
        #: Why the last status could not be written, if it couldn't.
        self.failure: streams.OutputFailed | None = None
        self._failure_reported = False
        self._reader_reported = False

    def emit(self, status: Status) -> None:
        """Write ``status``; say once when that can't be done, or nobody reads it any more."""
        # The line before may have been cut short.
        begin = "\n" if self.failure is not None else ""
        try:
            streams.write_at_once(begin + json_text(status.to_json()) + "\n")
            self.failure = None
        except streams.OutputFailed as failure:
            self.failure = failure
            if not self._failure_reported:
                self._failure_reported = True
                _say(status, f"error: {failure.message}; the relay goes on")
        if streams.reader_is_gone() and not self._reader_reported:
            self._reader_reported = True
            ask = f"'bwtui status {status.name}' says what it does"
            _say(status, f"notice: nobody reads stdout any more; the relay goes on, and {ask}")


def line_listener() -> Listener:
    """Return the listener that writes plain lines."""
    lines = Lines()
    return Listener(lines.emit, _INTERVAL_SECONDS, lines.emit_last)


def status_listener(statuses: Statuses) -> Listener:
    """Return the listener that writes ``statuses``."""
    return Listener(statuses.emit, _STATUS_INTERVAL_SECONDS, statuses.emit)


def _say(status: Status, text: str) -> None:
    line = mask_connection(" ".join(text.split()))
    _log.info("%s: %s", status.name, line)
    say(f"bwtui: {status.name}: {line}", err=True)
