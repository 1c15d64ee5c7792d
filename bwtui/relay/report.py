"""What has happened so far: counters, errors and notes, written by the relay and read by other threads.

The relay's main thread alone writes counters. Other threads read them without a lock: an int is replaced
whole, and a status that is one batch old does no harm.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bwtui.blocking import check_stop
from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.model.delivery import Span
from bwtui.model.proof import NotProven
from bwtui.model.status import ErrorEntry, SchemaEntry, SnapshotWorker, State
from bwtui.relay.ack import Acknowledgements
from bwtui.relay.measured.latency import Latency
from bwtui.relay.measured.transactions import TransactionLog
from bwtui.relay.watch.account import Account
from bwtui.sink.base import Sink

_ERRORS_KEPT = 200
#: Of each subject so many schemas are kept; the registry has them all.
_VERSIONS_KEPT = 20


@dataclass(slots=True)
class TableCounters:
    """Mutable twin of `TableStatus`, for one table; it outlives changes of the table's schema."""

    topic: str = ""
    snapshot_rows: int = 0
    #: Of these, what earlier runs have sent.
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
    #: When its first row was asked for, by ``time.monotonic``.
    snapshot_began: float = 0.0
    key_columns: tuple[str, ...] = ()
    #: What follows from the table's present schema, and what has happened to it.
    schema_notes: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows read, in the snapshot, in the stream, and put into it."""
        return self.snapshot_rows - self.snapshot_before + self.backfill_rows + self.streamed

    @property
    def streamed(self) -> int:
        """Rows read in the stream."""
        return self.inserts + self.updates + self.deletes

    @property
    def snapshot_seconds_left(self) -> float | None:
        """How long its rows will take at their pace so far, by PostgreSQL's estimate; None: nobody knows."""
        estimate, rows = self.snapshot_estimate, self.snapshot_rows - self.snapshot_before
        if self.snapshot_state != "running" or not self.snapshot_began or estimate is None or rows <= 0:
            return None
        seconds = time.monotonic() - self.snapshot_began
        return round(max(0, estimate - self.snapshot_rows) * seconds / rows, 1)

    def begin_snapshot(self) -> None:
        """Note that rows of it are asked for."""
        if self.snapshot_state != "running":
            self.snapshot_state, self.snapshot_began = "running", time.monotonic()

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)


class Report:
    """The story of one run."""

    def __init__(self) -> None:
        self.state: State = "starting"
        self.detail = ""
        self.started = time.time()
        self.tables: dict[str, TableCounters] = {}
        self.schemas: dict[tuple[str, int], SchemaEntry] = {}
        self.transactions = 0
        self.rows_read = 0
        #: Of rows; the other two count what is sent beside the tables as well.
        self.messages = 0
        self.durable = 0
        self.confirmed_lsn = 0
        self.received_lsn = 0
        self.server_lsn = 0
        #: Commit time (Unix seconds) of the newest transaction that was read.
        self.commit_time = 0.0
        self.in_flight = 0
        #: Processes that take a snapshot, and the processor time of those that are gone.
        self.snapshot_workers: tuple[SnapshotWorker, ...] = ()
        self.workers_cpu_seconds = 0.0
        #: How often the stream was opened.
        self.sessions = 0
        self.latency = Latency()
        self.transaction_log = TransactionLog()
        self.account = Account()
        #: By ``time.monotonic``: when the stream last said anything and was last asked to, when deliveries
        #: were last looked at, and since when the oldest message in flight waits, and the recording's disk is
        #: waited for; 0: not so.
        self.heard_at = self.called_at = self.settled_at = self.oldest_since = self.ledger_since = 0.0
        #: When a part of a message came that is not whole yet.
        self.partial_at = 0.0
        #: Tables of the selection of which nothing is sent, since no publication of the stream has them.
        self.not_captured: tuple[str, ...] = ()
        #: Tables whose topic may differ from them; only a clean comparison removes one. Replaced whole.
        self.not_proven: tuple[NotProven, ...] = ()
        #: Topics of tables that Kafka says do not exist, though rows were sent to them. Replaced whole.
        self.missing_topics: tuple[str, ...] = ()
        #: Told of every error that is new; any thread may be the one that tells.
        self.on_error: Callable[[ErrorEntry], None] | None = None
        #: The error that ended the relay.
        self.fatal: BwtuiError | None = None
        #: How many there were of each kind, those of which `errors` keeps one entry included. Replaced whole.
        self.error_counts: dict[str, int] = {}
        #: How audits of the tables ended, by verdict, and when the last one did. Replaced whole.
        self.audits: dict[str, int] = {}
        self.audited_at = 0.0
        self._outage: str | None = None
        self._errors: deque[ErrorEntry] = deque(maxlen=_ERRORS_KEPT)
        self._lock = threading.Lock()

    def server_end(self, asked: int) -> int:
        """Return the newest end of the WAL (LSN) that is known; ``asked`` is what the server last answered.

        The stream may tell of a newer one, and so may what is confirmed, which lies before the end.
        """
        return max(asked, self.server_lsn, self.confirmed_lsn)

    def table(self, name: str) -> TableCounters:
        """Return the counters of table ``schema.table``."""
        counters = self.tables.get(name)
        if counters is None:
            # A new dict, so that a reader in another thread never sees one that changes size.
            counters = TableCounters()
            self.tables = {**self.tables, name: counters}
        return counters

    def schema(self, entry: SchemaEntry) -> None:
        """Keep a schema that was registered, and the few of its subject that were so last before."""
        which = (entry.subject, entry.id)
        kept = {key: old for key, old in self.schemas.items() if key != which}
        versions = [key for key in kept if key[0] == entry.subject]
        for key in versions[::-1][_VERSIONS_KEPT - 1 :]:
            del kept[key]
        # A new dict, as in `table`.
        self.schemas = {**kept, which: entry}

    def error(
        self, kind: str, error: BwtuiError, table: str | None = None, dependency: str = "", since: float = 0
    ) -> None:
        """Add an error to what the UI shows.

        The same one again only counts, and moves up; a notice stays where it is, so that what is said again
        and again pushes no error out of sight. What has a ``dependency`` lasts, from ``since`` (Unix seconds;
        0 is now), until that has `recovered`.
        """
        now = time.time()
        begun = since or now if dependency else None
        entry = ErrorEntry(now, kind, table, error.message, error.hint, 1, begun, None, dependency)
        with self._lock:
            same = next((old for old in self._errors if _same(old, entry)), None)
            if same is not None:
                if kind == "notice":
                    return
                self._errors.remove(same)
                since_before = same.since if same.until is None else entry.since
                entry = replace(entry, count=same.count + 1, since=since_before)
            self._errors.append(entry)
            self.error_counts = {**self.error_counts, kind: self.error_counts.get(kind, 0) + 1}
        if self.on_error is not None and entry.count == 1:
            self.on_error(entry)

    def recovered(self, dependency: str) -> None:
        """Note that ``dependency`` is as it should be: what was told of it is history."""
        now = time.time()
        with self._lock:
            if any(entry.dependency == dependency and entry.until is None for entry in self._errors):
                over = [
                    replace(entry, until=now)
                    if entry.dependency == dependency and entry.until is None
                    else entry
                    for entry in self._errors
                ]
                self._errors = deque(over, maxlen=_ERRORS_KEPT)

    def is_out(self, dependency: str) -> bool:
        """Whether something was told of ``dependency`` that is not over."""
        return any(entry.dependency == dependency and not entry.is_over for entry in self.errors())

    def audited(self, verdict: str) -> None:
        """Note how an audit of the tables ended; the control socket's thread alone does."""
        self.audits = {**self.audits, verdict: self.audits.get(verdict, 0) + 1}
        self.audited_at = time.time()

    def acknowledged(self, span: Span, now: float) -> None:
        """Note that all of a batch of the stream was acknowledged, ``now`` by the monotonic clock.

        A batch without a message has no latency, but transactions may end in it: of rows that made none, or
        with a COMMIT that came after their rows.
        """
        if span.parts:
            self.latency.take(span, now)
        self.transaction_log.acknowledged(span, now)

    def wait(self, sink: Sink, seconds: float, stop_requested: Callable[[], bool]) -> None:
        """Wait, and take deliveries meanwhile. Raises StopRequested."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sink.poll(0.1)
            self.take_deliveries(sink)
            check_stop(stop_requested)

    def take_deliveries(self, sink: Sink, acks: Acknowledgements | None = None) -> None:
        """Note how far deliveries are; called wherever they are waited for, and after each batch."""
        self.in_flight, self.durable = sink.queued(), sink.answered()
        if acks is not None:
            self.oldest_since, self.ledger_since = acks.oldest_since, acks.ledger_since
        else:
            # Between sessions nothing is confirmed, and so the recording's disk holds up nothing.
            self.ledger_since = 0.0
        self.settled_at = time.monotonic()

    def outage(self, sentence: str | None, service: str = "Kafka") -> None:
        """Note why nothing can be delivered, or None; it becomes an error once, when it begins."""
        if sentence is not None and self._outage is None:
            hint = "nothing is dropped: the relay waits and goes on"
            self.error("outage", ConnectionFailed(sentence, hint), dependency=service)
        elif sentence is None and self._outage is not None:
            self.recovered(service)
        self._outage = sentence

    def failed(self, error: BwtuiError) -> BwtuiError:
        """Note that ``error`` ends the relay, and return it."""
        self.error("fatal", error)
        self.fatal, self.state, self.detail = error, "failed", error.message
        return error

    def errors(self) -> tuple[ErrorEntry, ...]:
        """Return the newest errors, oldest first."""
        with self._lock:
            return tuple(self._errors)


def _same(a: ErrorEntry, b: ErrorEntry) -> bool:
    return (a.kind, a.table, a.message) == (b.kind, b.table, b.message)
