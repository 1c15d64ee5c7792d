"""Output of a headless relay: statuses on stdout with --json, and plain lines on stderr without.

A line is written when something begins, and its hint on a line of its own; there are none for single rows.
All lines are also in the relay's log. The relay continues if nothing reads its output (ADR 20).
"""

import logging
from typing import Any

from bwtui.cli.output import streams
from bwtui.console import say
from bwtui.errors import BwtuiError
from bwtui.escaping import json_text
from bwtui.masking import mask_connection
from bwtui.model.events import event
from bwtui.model.gaps import TopicGap, gaps_of
from bwtui.model.number_format import duration
from bwtui.model.status import ErrorEntry, Status
from bwtui.relay.main import StatusListener, stalled_by, state_of
from bwtui.relay.process.log import JsonLogFormatter
from bwtui.settings import LogFormat

#: The error that ends the relay is reported by the command, and a stall is a state.
_OWN_LINES = frozenset({"fatal", "stalled"})
_INTERVAL_SECONDS = 0.2
_STATUS_INTERVAL_SECONDS = 1.0
_log = logging.getLogger("bwtui.cli.output.headless")


class LineWriter:
    """Writes lines to stderr and to the log: as text, or each as a JSON object."""

    def __init__(self, log_format: LogFormat) -> None:
        self._is_json = log_format == "json"

    def say(
        self, relay: str, text: str, extra: dict[str, Any], level: int = logging.INFO, prefix: str = ""
    ) -> None:
        """Write ``text`` about a relay, with the fields of `event`; in text, a hint has a line of its own.

        ``prefix`` is the beginning of a text line; in an object, the event has that information.
        """
        line = mask_connection(" ".join(text.split()))
        if self._is_json:
            record = _log.makeRecord(_log.name, level, "", 0, "%s", (line,), None, extra=extra)
            if _log.hasHandlers():
                # Without a log handler, Python would write the line to stderr on its own, as text.
                _log.handle(record)
            say(JsonLogFormatter(relay).format(record), err=True)
            return
        lines = [f"{prefix}{line}"]
        if hint := extra["details"].get("hint"):
            # Separate and complete: it may end with statements to paste.
            lines.append(mask_connection(f"hint: {' '.join(hint.split())}"))
        for one in lines:
            _log.info("%s: %s", relay, one, extra=extra)
            say(f"bwtui: {relay}: {one}", err=True)


def say_failed(relay: str, error: BwtuiError) -> None:
    """Write the error that ends a relay as an object."""
    extra = event("failed", exit_code=error.exit_code, hint=error.hint)
    LineWriter("json").say(relay, error.message, extra, logging.ERROR)


class HeadlessReporter:
    """Receives each status, and writes what is new; each distinct error and notice once."""

    def __init__(self, log_format: LogFormat = "text") -> None:
        self._teller = LineWriter(log_format)
        self._state = ""
        self._waited = ""
        #: What the most recently reported stall is blocked on.
        self._stalled_by = ""
        #: The start of the reported stall that is still in progress; 0: none.
        self._stalled_since = 0.0
        self._reported: set[tuple[str, str | None, str]] = set()
        #: Gaps that were reported and are still open, by key.
        self._open: dict[tuple[str, ...], TopicGap] = {}
        #: The folder of an abandoned recording; the last status no longer has a recording.
        self._given_up = ""

    def emit(self, status: Status) -> None:
        """Write what is new."""
        # Before there is a stream, nothing else explains why nothing happens.
        waits = status.state == "starting" and status.detail.startswith("waiting") and status.detail
        by = stalled_by(status)
        if status.state != self._state or (waits and waits != self._waited) or by != self._stalled_by:
            self._state, self._waited, self._stalled_by = status.state, waits or "", by
            self._teller.say(status.name, self._changed(status), state_of(status))
        self._report_gaps(status)
        if status.recording is not None and status.recording.state == "stopped":
            self._given_up = status.recording.path
        for entry in status.errors:
            self._tell(status, entry)
        # Entries that the status has dropped may be reported again; otherwise this would grow for months.
        self._reported &= {_identity(entry) for entry in status.errors}

    def _report_gaps(self, status: Status) -> None:
        """Report open gaps as soon as rows are relayed, and once there are none any more."""
        if status.state not in ("snapshot", "streaming"):
            return
        now = {gap.key: gap for gap in gaps_of(status)}
        for key, gap in now.items():
            if key not in self._open:
                extra = {**state_of(status), "details": {**state_of(status)["details"], "hint": gap.hint}}
                self._teller.say(status.name, f"not proven ({gap.says})", extra, logging.WARNING)
        if self._open and not now:
            self._teller.say(status.name, f"{status.state}: all tables are proven again", state_of(status))
        self._open = now

    def _changed(self, status: Status) -> str:
        """Return the line for a new state, in the words of the verdict if they say more."""
        verdict = status.verdict
        if status.state == "stalled":
            # Another cause is another line of the same stall.
            self._stalled_since = self._stalled_since or verdict.since or status.time
            return f"stalled ({verdict.sentence})"
        if self._stalled_since and status.state in ("snapshot", "streaming"):
            lasted, self._stalled_since = duration(status.time - self._stalled_since), 0.0
            return f"{status.state} again after {lasted}"
        if verdict.condition == "stopped":
            return verdict.sentence
        if status.state == "failed":
            # The command reports the reason and its hint right after this line, and logs both.
            return "failed"
        return status.state + (f" ({status.detail})" if status.detail else "")

    def emit_last(self, status: Status) -> None:
        """Write what is new at the end, and summaries that a user reading only now should not miss."""
        self.emit(status)
        dropped = sum(table.dead_letters for table in status.tables.values())
        if dropped:
            rows = "1 row was" if dropped == 1 else f"{dropped:,} rows were"
            message = f"{rows} dropped, see 'bwtui status {status.name}' and dead-letters.jsonl"
            self._teller.say(status.name, message, event("rows_dropped", rows=dropped), logging.ERROR)
        if self._given_up:
            message = f"the recording in {self._given_up} was abandoned, and lacks all later changes"
            self._teller.say(status.name, message, event("recording_given_up"), logging.ERROR)

    def _tell(self, status: Status, entry: ErrorEntry) -> None:
        identity = _identity(entry)
        if identity in self._reported or entry.kind in _OWN_LINES:
            return
        self._reported.add(identity)
        where = f"table {entry.table}: " if entry.table and entry.table not in entry.message else ""
        more = "; further rows like this are only counted" if entry.kind == "row" else ""
        about = {"kind": entry.kind, "table": entry.table, "hint": entry.hint}
        if entry.kind == "notice":
            extra, level = event("notice", **about), logging.WARNING
        else:
            extra, level = event("error", **about), logging.ERROR
        self._teller.say(status.name, f"{where}{entry.message}{more}", extra, level, f"{extra['event']}: ")


def _identity(entry: ErrorEntry) -> tuple[str, str | None, str]:
    # Errors about rows have as many different messages as there are values.
    return entry.kind, entry.table, "" if entry.kind == "row" else entry.message


class StatusStream:
    """Writes a status object per line to stdout, as long as there is a reader."""

    def __init__(self, log_format: LogFormat = "text") -> None:
        self._teller = LineWriter(log_format)
        #: Why the last status could not be written, if it couldn't.
        self.failure: streams.OutputFailed | None = None
        self._failure_reported = False
        self._reader_reported = False

    def emit(self, status: Status) -> None:
        """Write ``status``; report once if that is impossible, or there is no reader any more."""
        # The previous line may have been truncated.
        begin = "\n" if self.failure is not None else ""
        try:
            streams.write_at_once(begin + json_text(status.to_json()) + "\n")
            self.failure = None
        except streams.OutputFailed as failure:
            self.failure = failure
            if not self._failure_reported:
                self._failure_reported = True
                message, extra = f"{failure.message}; the relay continues", event("output_failed")
                self._teller.say(status.name, message, extra, logging.ERROR, "error: ")
        if streams.is_stdout_closed() and not self._reader_reported:
            self._reader_reported = True
            ask = f"'bwtui status {status.name}' shows its state"
            message = f"stdout has no reader any more; the relay continues, and {ask}"
            self._teller.say(status.name, message, event("reader_gone"), logging.WARNING, "notice: ")


def line_listener(log_format: LogFormat) -> StatusListener:
    """Return the listener that writes lines to stderr."""
    lines = HeadlessReporter(log_format)
    return StatusListener(lines.emit, _INTERVAL_SECONDS, lines.emit_last)


def status_listener(statuses: StatusStream) -> StatusListener:
    """Return the listener that writes ``statuses``."""
    return StatusListener(statuses.emit, _STATUS_INTERVAL_SECONDS, statuses.emit)
