"""Observes the relay twice a second, and keeps stalls as history."""

import logging
import threading
import time
from collections.abc import Callable

from bwtui.errors import ConnectionFailed
from bwtui.model.events import event
from bwtui.model.lsn import format_lsn
from bwtui.model.proof import UnprovenTable
from bwtui.model.verdict import Cause, RelayVerdict
from bwtui.relay.rows.batch import IN_FLIGHT_ROWS
from bwtui.relay.state.run_state import RunState, proof_of
from bwtui.relay.watch.judge import Judge, Observation, ServiceNames
from bwtui.source.lag import LagSampler

_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.5
#: Minimum duration of a stall that is kept as history; shorter ones are shown and then forgotten.
_KEPT_SECONDS = 5.0
#: The service name that the report uses for an outage of each cause.
_SERVICES: dict[Cause, str] = {
    "kafka": "Kafka",
    "registry": "the schema registry",
    "postgresql": "PostgreSQL",
}


class RelayWatch:
    """Judges a relay; any thread may request the verdict."""

    def __init__(
        self,
        report: RunState,
        lag: LagSampler,
        names: Callable[[], ServiceNames],
        outage: Callable[[], str | None],
        open_letters: Callable[[int], int | None],
    ) -> None:
        """``outage`` returns why nothing can be delivered at present, or None.

        ``open_letters`` takes the number of rows that this run has dropped; it returns the number of dead
        letters that need an action, or None if it is unknown.
        """
        self._report = report
        self._lag = lag
        self._names = names
        self._outage = outage
        self._open_letters = open_letters
        self._judge = Judge(names())
        self._lock = threading.Lock()
        #: The dependency of a current stall that is kept as history.
        self._stalled_by = ""
        #: Tables that the log reported as not proven, with the reason.
        self._not_proven: dict[str, UnprovenTable] = {}
        self._clock = _clock_of_main_thread()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> tuple[RelayVerdict, dict[str, float]]:
        """Return the current verdict, and the share of time spent in each stage."""
        with self._lock:
            self._judge.names = self._names()
            verdict = self._judge.judge(self._observe())
            self._keep(verdict)
            self._log_proof()
            return verdict, self._judge.busy

    def _observe(self) -> Observation:
        report, sampler = self._report, self._lag
        lag, asking, now = sampler.lag, sampler.pending, time.monotonic()
        activity, since = report.clock.current
        confirmed = report.confirmed_lsn
        server = report.server_end(lag.server_lsn)
        return Observation(
            now=now,
            time=time.time(),
            phase=report.state,
            detail=report.detail,
            is_stopping=report.is_stopping,
            activity=activity,
            activity_since=since,
            answered_at=report.clock.answered_at,
            totals=report.clock.totals(now),
            cpu=None if self._clock is None else time.clock_gettime(self._clock),
            rows=sum(table.rows for table in report.tables.values()),
            streamed=sum(table.streamed for table in report.tables.values()),
            transactions=report.transactions,
            durable=report.durable,
            in_flight=report.in_flight,
            capacity=IN_FLIGHT_ROWS,
            oldest_since=report.oldest_since,
            ledger_since=report.ledger_since,
            settled_at=report.settled_at,
            heard_at=report.heard_at,
            called_at=report.called_at,
            partial_at=report.partial_at,
            outage=self._outage(),
            missing_topics=report.missing_topics,
            backlog_bytes=max(0, server - confirmed) if confirmed else 0,
            backlog_seconds=sampler.seconds_behind(confirmed) if confirmed else 0.0,
            commit_age=max(0.0, time.time() + lag.clock_ahead - report.commit_time)
            if report.commit_time
            else 0.0,
            lag_age=sampler.age,
            lag_failure=sampler.failure,
            sent_lsn=lag.sent_lsn,
            unread_bytes=None if lag.sent_lsn is None else max(0, lag.server_lsn - lag.sent_lsn),
            asking_since=asking.since,
            asking_is_long=asking.is_long,
            server_waits_for=lag.waits_for,
            sender_pid=lag.sender_pid,
            dropped=self._dropped(),
            blockers=lag.blockers,
            safe_bytes=lag.safe_wal_bytes,
            safe_seconds=sampler.safe_seconds(),
            wal_status=lag.wal_status,
            is_temporary=lag.is_temporary,
            in_recovery=lag.in_recovery,
        )

    def _dropped(self) -> int:
        """Return the number of rows whose dead letters are open, also those of earlier runs."""
        dropped = sum(table.dead_letters for table in self._report.tables.values())
        still_open = self._open_letters(dropped)
        return dropped if still_open is None else still_open

    def _run(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            self.look()
        self._end_stall()

    def _keep(self, verdict: RelayVerdict) -> None:
        self._lag.reads_blockers = verdict.condition in ("starting", "waiting", "stalled")
        is_stalled = verdict.condition == "stalled"
        if self._stalled_by and not (is_stalled and verdict.dependency == self._stalled_by):
            self._end_stall()
        if is_stalled and verdict.seconds >= _KEPT_SECONDS and not self._stalled_by:
            service = _SERVICES.get(verdict.cause)
            if service is not None and self._report.is_out(service):
                # The outage was already reported, with its reason.
                return
            self._stalled_by = verdict.dependency
            error = ConnectionFailed(f"the relay stalled on {verdict.dependency}", verdict.hint)
            self._report.error("stalled", error, dependency=verdict.dependency, since=verdict.since or 0)

    def _log_proof(self) -> None:
        """Log tables that are not proven, and tables that are proven again."""
        now = {entry.table: entry for entry in self._report.not_proven}
        for table, entry in now.items():
            if self._not_proven.get(table) != entry:
                since, hint = format_lsn(entry.since_lsn), entry.command or None
                extra = event("not_proven", table=table, since_lsn=since, hint=hint)
                _log.warning("%s is not proven since %s: %s", table, since, entry.reason, extra=extra)
        for table in self._not_proven.keys() - now.keys():
            _log.warning("%s is proven again", table, extra=event("proven", table=table))
        # A comparison may also have ended between two looks.
        for error in self._report.errors():
            if error.table and error.table not in now and error.dependency == proof_of(error.table):
                self._report.recovered(error.dependency)
        self._not_proven = now

    def _end_stall(self) -> None:
        if self._stalled_by:
            self._report.recovered(self._stalled_by)
            self._stalled_by = ""


def _clock_of_main_thread() -> int | None:
    """Return the clock of the main thread's CPU time, or None if the system has none."""
    number = threading.main_thread().ident
    if number is None or not hasattr(time, "pthread_getcpuclockid"):
        return None
    return time.pthread_getcpuclockid(number)
