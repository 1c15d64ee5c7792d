"""The state of a run: counters, errors and notes, written by the relay and read by other threads.

Only the relay's main thread writes counters. Other threads read them without a lock: an int is replaced
whole, and a status that is one batch old does no harm.
"""

import resource
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from bwtui.blocking import check_stop
from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.model.delivery import DeliverySpan
from bwtui.model.proof import UnprovenTable
from bwtui.model.status import ErrorEntry, SchemaEntry, SnapshotWorker, State
from bwtui.relay.state.ack import Acknowledgements
from bwtui.relay.state.activity_clock import ActivityClock
from bwtui.relay.state.latency_tracker import LatencyTracker
from bwtui.relay.state.transaction_log import TransactionLog
from bwtui.sink.destination import Sink

_ERRORS_KEPT = 200
#: Maximum number of schemas kept per subject; the registry has all of them.
_VERSIONS_KEPT = 20


@dataclass(slots=True)
class TableCounters:
    """Mutable counterpart of `TableStatus`, for one table; it survives changes of the table's schema."""

    topic: str = ""
    snapshot_rows: int = 0
    #: Snapshot rows that earlier runs sent; they are included in ``snapshot_rows``.
    snapshot_before: int = 0
    backfill_rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    messages: int = 0
    bytes: int = 0
    errors: int = 0
    dead_letters: int = 0
    toast_fetched: int = 0
    toast_placeholders: int = 0
    toast_superseded: int = 0
    key_schema_id: int | None = None
    value_schema_id: int | None = None
    snapshot_state: str = "none"
    snapshot_estimate: int | None = None
    #: When its first row was requested, by ``time.monotonic``.
    snapshot_began: float = 0.0
    key_columns: tuple[str, ...] = ()
    #: Consequences of the table's present schema, and notes on events.
    schema_notes: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Number of rows read by this run: snapshot, stream and backfill."""
        return self.snapshot_rows - self.snapshot_before + self.backfill_rows + self.streamed

    @property
    def streamed(self) -> int:
        """Number of rows read from the stream."""
        return self.inserts + self.updates + self.deletes

    @property
    def snapshot_seconds_left(self) -> float | None:
        """Remaining snapshot time at the pace so far, by PostgreSQL's row estimate; None if unknown."""
        estimate, rows = self.snapshot_estimate, self.snapshot_rows - self.snapshot_before
        if self.snapshot_state != "running" or not self.snapshot_began or estimate is None or rows <= 0:
            return None
        seconds = time.monotonic() - self.snapshot_began
        return round(max(0, estimate - self.snapshot_rows) * seconds / rows, 1)

    def begin_snapshot(self) -> None:
        """Record that its rows are being requested."""
        if self.snapshot_state != "running":
            self.snapshot_state, self.snapshot_began = "running", time.monotonic()

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)


class RunState:
    """The state of one run."""

    def __init__(self) -> None:
        self.state: State = "starting"
        self.detail = ""
        #: True once a stop was requested.
        self.is_stopping = False
        self.started = time.time()
        self.tables: dict[str, TableCounters] = {}
        self.schemas: dict[tuple[str, int], SchemaEntry] = {}
        self.transactions = 0
        self.rows_read = 0
        #: Messages of rows; ``durable`` and ``in_flight`` also count messages that belong to no table.
        self.messages = 0
        self.durable = 0
        self.confirmed_lsn = 0
        self.received_lsn = 0
        self.server_lsn = 0
        #: Commit time (Unix seconds) of the newest transaction that was read.
        self.commit_time = 0.0
        self.in_flight = 0
        #: Snapshot worker processes, and the CPU time of those that have ended.
        self.snapshot_workers: tuple[SnapshotWorker, ...] = ()
        self.workers_cpu_seconds = 0.0
        #: Number of times that the stream was opened.
        self.sessions = 0
        self.latency = LatencyTracker()
        self.transaction_log = TransactionLog()
        self.clock = ActivityClock()
        #: By ``time.monotonic``; 0 if it does not apply. ``heard_at``: the stream last delivered something;
        #: ``called_at``: the server was last asked to answer; ``settled_at``: deliveries were last processed;
        #: ``oldest_since``: the oldest message in flight has waited since; ``ledger_since``: the relay has
        #: waited for the recording's disk since.
        self.heard_at = self.called_at = self.settled_at = self.oldest_since = self.ledger_since = 0.0
        #: When a part of an incomplete message last arrived.
        self.partial_at = 0.0
        #: Selected tables that are not relayed, because no publication of the stream includes them.
        self.not_captured: tuple[str, ...] = ()
        #: Tables whose topic may differ from them; only a clean comparison removes one. Replaced whole.
        self.not_proven: tuple[UnprovenTable, ...] = ()
        #: The tables that are compared, and the progress, or why the last comparison was not clean.
        self.comparison = ""
        #: Topics of tables that Kafka says do not exist, though rows were sent to them. Replaced whole.
        self.missing_topics: tuple[str, ...] = ()
        #: The error that ended the relay.
        self.fatal: BwtuiError | None = None
        #: Number of errors of each kind, including repeated ones, which `errors` merges. Replaced whole.
        self.error_counts: dict[str, int] = {}
        #: Number of audits of the tables by verdict, and the time of the last one. Replaced whole.
        self.audits: dict[str, int] = {}
        self.audited_at = 0.0
        self._listener: Callable[[ErrorEntry], None] | None = None
        self._outage: str | None = None
        self._errors: deque[ErrorEntry] = deque(maxlen=_ERRORS_KEPT)
        self._lock = threading.Lock()

    def server_end(self, polled: int) -> int:
        """Return the newest known end of the WAL (LSN); ``polled`` is the server's last answer.

        The stream may report a newer one, and so may the confirmed LSN, which lies before the end.
        """
        return max(polled, self.server_lsn, self.confirmed_lsn)

    def table(self, name: str) -> TableCounters:
        """Return the counters of table ``schema.table``."""
        counters = self.tables.get(name)
        if counters is None:
            # A new dict, so that a reader in another thread never sees one whose size changes.
            counters = TableCounters()
            self.tables = {**self.tables, name: counters}
        return counters

    def schema(self, entry: SchemaEntry) -> None:
        """Keep a registered schema, and only the newest earlier ones of its subject."""
        which = (entry.subject, entry.id)
        schemas = {key: old for key, old in self.schemas.items() if key != which}
        versions = [key for key in schemas if key[0] == entry.subject]
        for key in versions[::-1][_VERSIONS_KEPT - 1 :]:
            del schemas[key]
        # A new dict, as in `table`.
        self.schemas = {**schemas, which: entry}

    def error(
        self, kind: str, error: BwtuiError, table: str | None = None, dependency: str = "", since: float = 0
    ) -> None:
        """Add an error to those that the UI shows.

        A repeated error only increases the count and moves up. A repeated notice stays in its place until it
        is over, so that it never pushes errors out of sight. An error with a ``dependency`` lasts, from
        ``since`` (Unix seconds; 0 is now), until that dependency has `recovered`.
        """
        now = time.time()
        begun = since or now if dependency else None
        entry = ErrorEntry(now, kind, table, error.message, error.hint, 1, begun, None, dependency)
        with self._lock:
            same = next((old for old in self._errors if _same(old, entry)), None)
            if same is not None:
                if kind == "notice" and not same.is_over:
                    return
                self._errors.remove(same)
                since_before = same.since if same.until is None else entry.since
                entry = replace(entry, count=same.count + 1, since=since_before)
            self._errors.append(entry)
            self.error_counts = {**self.error_counts, kind: self.error_counts.get(kind, 0) + 1}
        if self._listener is not None and entry.count == 1:
            self._listener(entry)

    def listen(self, listener: Callable[[ErrorEntry], None] | None) -> None:
        """Call ``listener`` for every new error from now on, from any thread."""
        self._listener = listener

    def recovered(self, dependency: str) -> None:
        """Record that ``dependency`` works again: its errors are over."""
        self._end(lambda entry: entry.dependency == dependency)

    def end_notice(self, message: str, table: str | None) -> None:
        """Record that a notice is not true any more."""
        self._end(lambda entry: (entry.kind, entry.message, entry.table) == ("notice", message, table))

    def _end(self, is_meant: Callable[[ErrorEntry], bool]) -> None:
        now = time.time()
        with self._lock:
            for place, entry in enumerate(self._errors):
                if not entry.is_over and is_meant(entry):
                    since = entry.time if entry.since is None else entry.since
                    self._errors[place] = replace(entry, since=since, until=now)

    def is_out(self, dependency: str) -> bool:
        """Return whether an error of ``dependency`` is not over."""
        return any(entry.dependency == dependency and not entry.is_over for entry in self.errors())

    def audited(self, verdict: str) -> None:
        """Record how an audit of the tables ended; only the control socket's thread calls this."""
        self.audits = {**self.audits, verdict: self.audits.get(verdict, 0) + 1}
        self.audited_at = time.time()

    def acknowledged(self, span: DeliverySpan, now: float) -> None:
        """Record that a batch of the stream was acknowledged completely, ``now`` by the monotonic clock.

        A batch without messages has no latency, but transactions may end in it: those whose rows produced no
        messages, or whose COMMIT arrived after their rows.
        """
        if span.parts:
            self.latency.take(span, now)
        self.transaction_log.acknowledged(span, now)

    def wait(self, sink: Sink, seconds: float, stop_requested: Callable[[], bool]) -> None:
        """Wait, and process deliveries meanwhile. Raises StopRequested."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sink.poll(0.1)
            self.take_deliveries(sink)
            check_stop(stop_requested)

    def take_deliveries(self, sink: Sink, acks: Acknowledgements | None = None) -> None:
        """Record the progress of deliveries; called wherever they are waited for, and after each batch."""
        self.in_flight, self.durable = sink.queued(), sink.answered()
        if acks is not None:
            self.oldest_since, self.ledger_since = acks.oldest_since, acks.ledger_since
        else:
            # Between sessions nothing is confirmed, so nothing waits for the recording's disk.
            self.ledger_since = 0.0
        self.settled_at = time.monotonic()

    def outage(self, sentence: str | None, service: str = "Kafka") -> None:
        """Record why nothing can be delivered, or None; it becomes an error once, when it begins."""
        if sentence is not None and self._outage is None:
            hint = "nothing is dropped: the relay waits, then continues"
            self.error("outage", ConnectionFailed(sentence, hint), dependency=service)
        elif sentence is None and self._outage is not None:
            self.recovered(service)
        self._outage = sentence

    def failed(self, error: BwtuiError) -> BwtuiError:
        """Record that ``error`` ends the relay, and return it."""
        self.error("fatal", error)
        self.fatal, self.state, self.detail = error, "failed", error.message
        return error

    def errors(self) -> tuple[ErrorEntry, ...]:
        """Return the newest errors, oldest first."""
        with self._lock:
            return tuple(self._errors)


def proof_of(table: str) -> str:
    """Return the dependency of errors that last until ``table`` is proven."""
    return f"the proof of {table}"


def _same(a: ErrorEntry, b: ErrorEntry) -> bool:
    return (a.kind, a.table, a.message) == (b.kind, b.table, b.message)


def resident_bytes(*, with_files: bool = True) -> int:
    """Return this process's resident memory in bytes; its peak if /proc is not available.

    Without files: file-backed memory, mostly libraries, exists only once for all processes of a relay.
    """
    try:
        _, pages, of_files, *_ = map(int, Path("/proc/self/statm").read_text().split())
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (pages if with_files else pages - of_files) * resource.getpagesize()


def cpu_seconds() -> float:
    """Return the CPU seconds that this process has used so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return round(usage.ru_utime + usage.ru_stime, 3)
