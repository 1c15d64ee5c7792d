"""What a headless relay without --json says on stderr: one line when something begins, none for each row."""

import click

from bwtui.masking import mask_connection
from bwtui.relay.process import Listener
from bwtui.relay.status import ErrorEntry, Status

#: The error that ends the relay is the command's own.
_OWN_LINES = frozenset({"fatal"})
_INTERVAL_SECONDS = 0.2


class Lines:
    """Takes status after status, and tells what is new; each distinct error and notice once."""

    def __init__(self) -> None:
        self._state = ""
        self._told: set[tuple[str, str | None, str]] = set()
        #: The folder of a recording that was given up; the last status knows of no recording any more.
        self._given_up = ""

    def emit(self, status: Status) -> None:
        """Tell what is new."""
        if status.state != self._state:
            self._state = status.state
            _say(status, status.state + (f" ({status.detail})" if status.detail else ""))
        if status.recording is not None and status.recording.state == "stopped":
            self._given_up = status.recording.path
        for entry in status.errors:
            self._tell(status, entry)

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
        # Rows that can't be relayed have as many messages as there are values.
        which = (entry.kind, entry.table, "" if entry.kind == "row" else entry.message)
        if which in self._told or entry.kind in _OWN_LINES:
            return
        self._told.add(which)
        where = f"table {entry.table}: " if entry.table and entry.table not in entry.message else ""
        hint = f" ({entry.hint})" if entry.hint else ""
        more = "; more such rows are only counted" if entry.kind == "row" else ""
        kind = "notice" if entry.kind == "notice" else "error"
        _say(status, f"{kind}: {where}{entry.message}{hint}{more}")


def line_listener() -> Listener:
    """Return the listener that writes these lines."""
    lines = Lines()
    return Listener(lines.emit, _INTERVAL_SECONDS, lines.emit_last)


def _say(status: Status, text: str) -> None:
    line = mask_connection(" ".join(text.split()))
    click.echo(f"bwtui: {status.name}: {line}", err=True)
