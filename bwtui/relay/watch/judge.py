"""The verdict on a running relay: its condition, what it is blocked on, and since when.

The inputs are an `Observation` of the relay at one moment: the main thread's activity and its start; when
anything was last acknowledged, read or answered; and PostgreSQL's view of the slot. A queue's length alone
decides nothing: the cause is what the relay is blocked on (`Wait`), and without work there is none. See
docs/adr/0021-blame-what-the-main-thread-waits-for.md.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from bwtui.model.number_format import duration, rate, size
from bwtui.model.status import State
from bwtui.model.verdict import FORESEEABLE_SECONDS, Cause, RelayVerdict, runway
from bwtui.relay.state.activity_clock import Activity
from bwtui.source.lag import Blocker
from bwtui.source.slot import HEAL


@dataclass(frozen=True, slots=True)
class ServiceNames:
    """Display names, with addresses, of the services and files that a relay may be blocked on."""

    postgresql: str
    sink: str = "Kafka"
    registry: str = "the schema registry"
    recording: str = ""
    #: Seconds that the sink may hold a message back to batch it with others.
    linger: float = 0.0
    state: str = "the relay's state folder"
    slot: str = ""
    #: True if the relay recreates a lost slot, and compares topics with tables.
    heals: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation of a relay; ``now`` and fields that end in ``_since`` or ``_at`` are monotonic times."""

    now: float
    time: float
    phase: State
    detail: str = ""
    #: True once a stop was requested.
    is_stopping: bool = False
    activity: Activity = "read"
    activity_since: float = 0.0
    #: When the last of several answers arrived that the activity waits for.
    answered_at: float = 0.0
    totals: Mapping[Activity, float] = field(default_factory=dict)
    #: CPU seconds of the main thread, or None if the system does not report them.
    cpu: float | None = None
    rows: int = 0
    #: Changed rows among ``rows``; the others are rows of snapshots.
    streamed: int = 0
    transactions: int = 0
    durable: int = 0
    in_flight: int = 0
    capacity: int = 1
    oldest_since: float = 0.0
    ledger_since: float = 0.0
    settled_at: float = 0.0
    #: When the stream last delivered something, and when the server was last asked to answer.
    heard_at: float = 0.0
    called_at: float = 0.0
    #: When a part of an incomplete message last arrived.
    partial_at: float = 0.0
    outage: str | None = None
    #: Topics of the relay that Kafka says do not exist.
    missing_topics: tuple[str, ...] = ()
    backlog_bytes: int = 0
    backlog_seconds: float = 0.0
    #: Seconds since the commit of the newest transaction that was read.
    commit_age: float = 0.0
    #: The LSN up to which the server has read its WAL, and the unread rest; None if the role may not see it.
    sent_lsn: int | None = None
    unread_bytes: int | None = None
    #: The age of the last sample of the slot, and why there is no newer one.
    lag_age: float = 0.0
    lag_failure: str = ""
    asking_since: float = 0.0
    asking_is_long: bool = False
    server_waits_for: str | None = None
    #: The server's process that sends the stream.
    sender_pid: int | None = None
    #: Dropped rows whose dead letters are open, also those of earlier runs.
    dropped: int = 0
    blockers: tuple[Blocker, ...] = ()
    safe_bytes: int | None = None
    safe_seconds: float | None = None
    wal_status: str = ""
    #: True while only the temporary slot of a first snapshot exists.
    is_temporary: bool = False
    #: True if the server is a standby.
    in_recovery: bool = False


#: Maximum time without progress, despite work, before the relay counts as stalled; and how long PostgreSQL
#: may leave a query unanswered, which is sent once a second.
STALLED_SECONDS, UNANSWERED_SECONDS = 2.0, 1.5


class Wait(NamedTuple):
    """A dependency that blocks the relay; the sentence: ``dependency`` ``says`` for some time ``because``."""

    cause: Cause
    dependency: str
    stage: str
    since: float
    says: str
    because: str = ""
    #: After this many seconds the wait is a stall.
    patience: float = STALLED_SECONDS
    #: What to do, if it differs from the hint for its cause.
    hint: str = ""
    #: The complete sentence, if the duration does not matter; such a wait comes first.
    loss: str = ""
    #: True if ``because`` was reported by a service; such waits come before those on silent services.
    is_explained: bool = False

    def sentence(self, now: float) -> str:
        """Return the sentence about the wait."""
        if self.loss:
            return self.loss
        return f"{self.dependency} {self.says} for {duration(now - self.since)}{self.because}"


#: What to do about each cause.
HINTS: dict[Cause, str] = {
    "kafka": (
        "check that the brokers are running and reachable; nothing is lost: the relay waits and continues"
    ),
    "registry": ("check that the registry is running and reachable; the relay waits and continues"),
    "postgresql": "check that PostgreSQL is running and reachable; the relay waits and continues",
    "transactions": "end those transactions, or wait: the snapshot starts automatically",
    "disk": "check the disk; the relay confirms only what is on it",
    "relay": ("if this lasts, stop the relay and start it again: it continues from the slot's position"),
}


#: What to do while a stop waits for messages in flight; see `bwtui.relay.stream.session`.
STOP_ENDS = (
    "no action needed: the relay ends within seconds even without an answer, and its next start sends again "
    "what is not acknowledged"
)


#: What to do about a walsender that is blocked while its server answers.
END_SENDER = (
    "PostgreSQL answers, but its walsender {pid} does not: SELECT "
    "pg_terminate_backend({pid}) ends it, and the relay opens a new session"
)


#: What to do about a topic that was deleted while the relay sends to it.
TOPIC_GONE = (
    "no action needed, and the brokers answer: the relay recreates the topic and sends "
    "what differs from its table"
)


def missing(topics: Sequence[str]) -> str:
    """Return why Kafka acknowledges nothing if it reports that these topics do not exist."""
    more = f" and {len(topics) - 1} more" if len(topics) > 1 else ""
    noun, verb = ("topics", "do") if more else ("topic", "does")
    return f": {noun} {topics[0]}{more} {verb} not exist"


def standby_slot(names: ServiceNames, since: float) -> Wait:
    """Return the wait for a slot on a standby, which begins at the primary's next list of transactions."""
    says = (
        "is a standby, which creates the slot once its primary logs the running transactions, and has waited"
    )
    hint = (
        "run SELECT pg_log_standby_snapshot(); on the primary: an idle primary does not log "
        "them; a transaction that is open there also delays the slot"
    )
    return Wait("postgresql", names.postgresql, "read", since, says, hint=hint)


def lost_slot(names: ServiceNames, since: float) -> Wait:
    """Return the wait of a relay whose slot lacks unread WAL, so that it can't continue."""
    says = f"slot {names.slot} is lost: PostgreSQL removed WAL that it needs, so topics will lack changes"
    hint = (
        "no action needed: the relay recreates the slot and sends what differs from the tables"
        if names.heals
        else f"the relay ends at its next read; then {HEAL}"
    )
    return Wait("postgresql", names.postgresql, "read", since, "", patience=0.0, hint=hint, loss=says)


def sender(observation: Observation) -> str:
    """Return which process sends the stream, and its wait event."""
    process = f" {observation.sender_pid}" if observation.sender_pid else ""
    return (
        f" (its walsender{process} waits: {observation.server_waits_for})"
        if observation.server_waits_for
        else ""
    )


def ending(blockers: Sequence[Blocker]) -> str:
    """Return the hint for a wait for locks: the statements that end the sessions holding them."""
    statements = "; ".join(blocker.end for blocker in blockers)
    return f"end that session, or wait: the relay continues automatically; {statements}"


def dropped(observation: Observation) -> str:
    """Return a remark on dropped rows, which are not in Kafka."""
    rows = "1 row was" if observation.dropped == 1 else f"{observation.dropped:,} rows were"
    return f"; {rows} dropped and stored as dead letters" if observation.dropped else ""


def held_by(observation: Observation) -> str:
    """Return a remark on the sessions that hold the lock or transaction."""
    return f" (held by {'; '.join(map(str, observation.blockers))})" if observation.blockers else ""


#: A relay is behind when WAL has waited this long.
BEHIND_SECONDS = 3.0
#: Maximum age of a sample of the slot that still describes the present.
FRESH_SECONDS = 5.0


def _is_old(observation: Observation) -> bool:
    """Return whether there is WAL that should have been confirmed by now."""
    return observation.backlog_bytes > 0 and observation.backlog_seconds >= BEHIND_SECONDS


def idle(observation: Observation) -> str:
    """Return a sentence on what is known of the server's WAL, for a relay that has nothing to do."""
    here = "the relay has nothing to send"
    if observation.lag_age > FRESH_SECONDS:
        why = f": {observation.lag_failure}" if observation.lag_failure else ""
        return f"{here}; PostgreSQL has not reported on the slot for {duration(observation.lag_age)}{why}"
    if not _is_old(observation) or observation.unread_bytes == 0:
        return "all committed changes are confirmed"
    unread = size(observation.unread_bytes or observation.backlog_bytes)
    age = duration(observation.backlog_seconds)
    return f"{here}; PostgreSQL has not sent {unread} of WAL that was written {age} ago"


def missing_right(observation: Observation) -> str:
    """Return the grant without which it is unknown whether the server has WAL left to send, or ""."""
    if observation.server_waits_for is None or observation.sent_lsn is not None or not _is_old(observation):
        return ""
    return (
        "GRANT pg_read_all_stats TO the relay's role: without it PostgreSQL does not show "
        "whether this WAL belongs to an open transaction or could be sent"
    )


#: The stage of each activity; "" is the recording, outside of the pipeline. A COPY is split by its CPU time.
_STAGES: dict[Activity, str] = {
    "work": "encode",
    "registry": "encode",
    "catalog": "encode",
    "read": "read",
    "connect": "read",
    "slot": "read",
    "locks": "read",
    "produce": "produce",
    "topics": "produce",
    "room": "acknowledge",
    "settling": "acknowledge",
    "readback": "acknowledge",
    "ending": "read",
    "ledger": "",
    "disk": "",
}


class ActivityTotals(Protocol):
    """The activity clock's totals at one moment."""

    @property
    def now(self) -> float: ...
    @property
    def totals(self) -> Mapping[Activity, float]: ...
    @property
    def cpu(self) -> float | None: ...


def busy(first: ActivityTotals, last: ActivityTotals, *, idle: bool) -> dict[str, float]:
    """Return the shares (0 to 1) of stages in the time between two moments.

    ``idle``: there is nothing more to read, so waiting for the stream does not count as work.
    """
    seconds = last.now - first.now
    shares: dict[str, float] = {}
    if seconds <= 0:
        return shares
    spent = {name: last.totals.get(name, 0.0) - first.totals.get(name, 0.0) for name in last.totals}
    copying = spent.pop("copy", 0.0) + spent.pop("scan", 0.0)
    if copying > 0:
        # COPY's rows pass one by one through libpq and the encoder: time without CPU use is waiting.
        cpu = copying if first.cpu is None or last.cpu is None else min(copying, last.cpu - first.cpu)
        shares = {"encode": cpu / seconds, "read": (copying - cpu) / seconds}
    for activity, spent_on in spent.items():
        stage = _STAGES.get(activity)
        if stage is not None and not (idle and activity == "read"):
            shares[stage] = shares.get(stage, 0.0) + spent_on / seconds
    return {stage: round(min(max(share, 0.0), 1.0), 2) for stage, share in shares.items()}


def slowest(shares: Mapping[str, float]) -> tuple[str, float]:
    """Return the stage that takes most of the time, and its share."""
    stage = max(shares, key=lambda name: shares[name], default="encode")
    return stage, shares.get(stage, 0.0)


#: Timeout for a longer query, or one that takes several turns.
_LONG_QUESTION_SECONDS = 5.0
#: Minimum duration of a wait that is reported, though it is not a stall yet.
_REPORTED_SECONDS = 1.0
#: Minimum acknowledgement delay that is mentioned.
_MENTIONED_SECONDS = 0.1
#: The relay is behind when this much WAL waits, or its queue is this full.
BEHIND_BYTES, _FULL = 16 << 20, 0.6
#: Share of the in-flight capacity that counts as many messages.
_MANY = 0.05
#: A main thread that uses this share of a CPU's time is computing.
_COMPUTES = 0.2
#: PostgreSQL's wait event of a walsender whose data is not being received.
_WRITES = "WalSenderWriteData"
#: Wait event of a walsender that holds back changes that the standbys of synchronized_standby_slots lack.
_STANDBYS = "WaitForStandbyConfirmation"
_MISSING_STANDBY = "start the standby that lags, or remove its slot from synchronized_standby_slots"
#: While a transaction is open the server writes whole pages, whose last records can't be read to their end.
_UNREADABLE_BYTES = 64 << 10
#: The server writes the rest after at most this long: its standby snapshot, every 15 s, may be 10 s late.
_UNREADABLE_SECONDS = 40.0
#: Time window of shares and rates.
_WINDOW_SECONDS = 3.0
#: After a gap this long between two observations the relay itself did not run; and how long this is reported.
_GAP_SECONDS, _GAP_REPORTED_SECONDS = 2.5, 10.0
#: A stall lasts until something progresses, or until its cause has not been observed for this many seconds: a
#: single observation may find the main thread between two waits, or the server's process briefly awake.
_HELD_SECONDS = 2.0
#: Activities of the main loop, which alternate while nothing progresses.
_LOOP: frozenset[Activity] = frozenset({"work", "produce", "read", "room"})
#: Minimum duration of reading a transaction that is reported.
_LONG_SECONDS = 3.0


class Judge:
    """Judges successive observations, and keeps when each last changed. One thread at a time may call it."""

    def __init__(self, names: ServiceNames) -> None:
        self.names = names
        #: Shares of the relay's recent time by stage, 0 to 1.
        self.busy: dict[str, float] = {}
        self._observations: deque[Observation] = deque()
        self._awake_since = 0.0
        self._slept = 0.0
        self._moved = {"rows": 0.0, "durable": 0.0, "transactions": 0.0, "sent_lsn": 0.0}
        self._streamed_at_commit = 0
        self._most_durable = 0
        self._lost_since = 0.0
        #: When the server last had no more than this many bytes of WAL left to read, or had no session.
        self._read_up = {0: 0.0, _UNREADABLE_BYTES: 0.0}
        #: The waits of the current stall, when it was last observed, and the values whose change ends it.
        self._stall: list[Wait] = []
        self._stall_observed_at = 0.0
        self._passed: tuple[object, ...] = ()
        self._at: Activity = "read"
        #: When the last stall ended; shares of stages count from then on.
        self._stall_ended = 0.0

    def judge(self, observation: Observation) -> RelayVerdict:
        """Return the current verdict."""
        self._remember(observation)
        behind = self._is_behind(observation)
        waits = sorted(
            self._waits(observation), key=lambda wait: (not wait.loss, not wait.is_explained, wait.since)
        )
        stalled = self._stalled(observation, waits)
        begun = next(past for past in self._observations if past.now >= self._stall_ended)
        self.busy = busy(begun, observation, idle=not behind)
        if stalled:
            return self._waiting(observation, "stalled", stalled)
        long = [wait for wait in waits if observation.now - wait.since >= _REPORTED_SECONDS]
        if long:
            return self._waiting(observation, "waiting", long)
        if observation.phase == "starting":
            return self._starting(observation)
        return self._behind(observation) if behind else self._healthy(observation)

    # -- progress ------------------------------------------------------------------------------------------

    def _remember(self, observation: Observation) -> None:
        observations = self._observations
        if observations:
            last = observations[-1]
            if observation.now - last.now >= _GAP_SECONDS:
                # The time in between is unknown, and nothing counted as a wait during it either.
                self._awake_since, self._slept = observation.now, observation.now - last.now
                observations.clear()
            for name in ("rows", "transactions", "sent_lsn"):
                if getattr(observation, name) != getattr(last, name):
                    self._moved[name] = observation.now
            if observation.transactions != last.transactions:
                self._streamed_at_commit = observation.streamed
        if observation.durable > self._most_durable:
            self._most_durable, self._moved["durable"] = observation.durable, observation.now
        for most in self._read_up:
            if (
                not observations
                or observation.activity == "connect"
                or (observation.unread_bytes or 0) <= most
            ):
                self._read_up[most] = observation.now
        observations.append(observation)
        while len(observations) > 2 and observation.now - observations[1].now >= _WINDOW_SECONDS:
            observations.popleft()

    def _stalled(self, observation: Observation, waits: list[Wait]) -> list[Wait]:
        """Return the waits that are a stall; one observation without them does not end it."""
        if observation.activity != "state":
            # The main thread also writes its state while it waits for an answer.
            self._at = "read" if observation.activity in _LOOP else observation.activity
        is_silent = (
            bool(observation.asking_since)
            and observation.now - observation.asking_since >= UNANSWERED_SECONDS
        )
        passed = (
            *(
                observation.rows,
                observation.transactions,
                observation.durable,
                observation.sent_lsn,
                observation.partial_at,
                observation.answered_at,
            ),
            *(is_silent, observation.ledger_since, observation.wal_status, observation.phase, self._at),
        )
        was_stalled = bool(self._stall)
        if passed != self._passed or observation.now - self._stall_observed_at >= _HELD_SECONDS:
            self._stall = []
        elif observation.heard_at > self._stall_observed_at:
            # A keepalive ends only the wait for an answer.
            self._stall = [wait for wait in self._stall if wait.patience != UNANSWERED_SECONDS]
        self._passed = passed
        begun = {(wait.cause, wait.says): wait.since for wait in self._stall}
        waits = [
            wait._replace(since=min(wait.since, begun.get((wait.cause, wait.says), wait.since)))
            for wait in waits
        ]
        stalled = [wait for wait in waits if observation.now - wait.since >= wait.patience]
        if stalled:
            self._stall, self._stall_observed_at = stalled, observation.now
        if was_stalled and not self._stall:
            self._stall_ended = observation.now
        return self._stall

    def _since(self, *moments: float) -> float:
        """Return the latest of ``moments``, or when the relay itself woke up if that was later."""
        return max(self._awake_since, *moments)

    def _is_behind(self, observation: Observation) -> bool:
        if observation.phase == "snapshot" or observation.in_flight >= _FULL * observation.capacity:
            return True
        waits_long = (
            observation.backlog_seconds >= BEHIND_SECONDS and observation.backlog_bytes > _UNREADABLE_BYTES
        )
        if not waits_long and observation.backlog_bytes < BEHIND_BYTES:
            return False
        # Nothing can be done about WAL that was read and not sent: it belongs to open transactions.
        is_read = observation.unread_bytes is not None and observation.unread_bytes <= _UNREADABLE_BYTES
        return not is_read or bool(observation.in_flight) or self._rate(observation) > 0

    def _rate(self, observation: Observation) -> float:
        first = self._observations[0]
        return (
            (observation.rows - first.rows) / (observation.now - first.now)
            if observation.now > first.now
            else 0.0
        )

    # -- what the relay is blocked on ----------------------------------------------------------------------

    def _waits(self, observation: Observation) -> Iterator[Wait]:
        """Yield the waits, each cause once."""
        causes: set[Cause] = set()
        for wait in (
            *self._lost_waits(observation),
            *self._service_waits(observation),
            *self._kafka_waits(observation),
            *self._disk_waits(observation),
            *self._postgresql_waits(observation),
            *self._relay_waits(observation),
        ):
            if wait.cause not in causes:
                causes.add(wait.cause)
                yield wait

    def _lost_waits(self, observation: Observation) -> Iterator[Wait]:
        """Yield PostgreSQL if it has removed WAL that the slot needs, in addition to any other wait."""
        if observation.wal_status == "lost":
            self._lost_since = self._lost_since or observation.now
            yield lost_slot(self.names, self._lost_since)
        else:
            self._lost_since = 0.0

    def _service_waits(self, observation: Observation) -> Iterator[Wait]:
        """Yield the service that the main thread calls and can't continue without."""
        names, since = self.names, self._since(observation.activity_since, observation.answered_at)
        reason = (
            observation.detail.partition(": ")[2] if observation.detail.startswith("waiting for ") else ""
        )
        because = f": {reason}" if reason else ""
        # An error as the reason may be a refusal, which is an answer.
        silent = "has kept the relay waiting" if reason else "has not answered"
        match observation.activity:
            case "registry":
                yield Wait(
                    "registry", names.registry, "encode", since, silent, because, is_explained=bool(reason)
                )
            case "topics":
                yield Wait("kafka", names.sink, "produce", since, silent, because, is_explained=bool(reason))
            case "readback":
                condition = "has sent no record of a topic that the relay reads"
                yield Wait("kafka", names.sink, "acknowledge", since, condition)
            case "ending":
                yield Wait("postgresql", names.postgresql, "read", since, "has not ended the stream")
            case "begin" | "catalog" if observation.blockers:
                condition = "has not granted the relay a table lock"
                because, hint = held_by(observation), ending(observation.blockers)
                yield Wait("transactions", names.postgresql, "read", since, condition, because, hint=hint)
            case "catalog" | "connect":
                yield Wait(
                    "postgresql", names.postgresql, "read", since, silent, because, is_explained=bool(reason)
                )
            case "slot" | "locks" if self._is_unanswered(observation):
                # It is unknown what a server that does not answer waits for.
                return
            case "slot" if observation.in_recovery and not observation.blockers:
                yield standby_slot(names, since)
            case "slot":
                condition = "creates the slot only after open transactions end, and has waited"
                because, hint = (
                    held_by(observation),
                    ending(observation.blockers) if observation.blockers else "",
                )
                yield Wait("transactions", names.postgresql, "read", since, condition, because, hint=hint)
            case "locks":
                condition = "has not granted the locks on the snapshot's tables"
                because, hint = (
                    held_by(observation),
                    ending(observation.blockers) if observation.blockers else "",
                )
                yield Wait("transactions", names.postgresql, "read", since, condition, because, hint=hint)

    def _kafka_waits(self, observation: Observation) -> Iterator[Wait]:
        """Yield Kafka while messages are in flight that it does not acknowledge."""
        # While deliveries are not processed, the number in flight is unknown.
        begun = observation.oldest_since or (
            observation.activity_since if observation.activity == "settling" else 0.0
        )
        if (
            not observation.in_flight
            or not begun
            or observation.now - observation.settled_at > _REPORTED_SECONDS
        ):
            return
        since = self._since(self._moved["durable"], begun + self.names.linger)
        because, hint = f": {observation.outage}" if observation.outage else "", ""
        if observation.missing_topics and not observation.outage:
            because, hint = missing(observation.missing_topics), TOPIC_GONE
        yield Wait(
            "kafka",
            self.names.sink,
            "acknowledge",
            since,
            "has acknowledged nothing",
            because,
            hint=hint,
            is_explained=bool(because),
        )

    def _disk_waits(self, observation: Observation) -> Iterator[Wait]:
        names, condition = self.names, "has written nothing to its disk"
        if observation.activity in ("disk", "state"):
            where = names.state if observation.activity == "state" else names.recording
            yield Wait("disk", where, "", self._since(observation.activity_since), condition)
        # While deliveries are not processed, it is unknown what the disk has by now.
        elif observation.ledger_since and observation.now - observation.settled_at <= _REPORTED_SECONDS:
            yield Wait("disk", names.recording, "", self._since(observation.ledger_since), condition)

    def _relay_waits(self, observation: Observation) -> Iterator[Wait]:
        """Yield the relay itself if its main thread neither computes nor reports what it waits for."""
        if observation.activity not in ("work", "produce") or self._computes(observation):
            return
        since = self._since(observation.activity_since, self._moved["rows"])
        yield Wait("relay", "the relay's own main thread", "encode", since, "has made no progress")

    def _computes(self, observation: Observation) -> bool:
        first = self._observations[0]
        if first.cpu is None or observation.cpu is None:
            return False
        return observation.cpu - first.cpu > _COMPUTES * (observation.now - first.now)

    def _unanswered_waits(self, observation: Observation) -> Iterator[Wait]:
        """Yield PostgreSQL while it has not answered a query, and has sent nothing else either."""
        if (
            observation.asking_since
            and max(self._moved["rows"], observation.heard_at) <= observation.asking_since
        ):
            since = self._since(observation.asking_since)
            patience = _LONG_QUESTION_SECONDS if observation.asking_is_long else UNANSWERED_SECONDS
            yield Wait("postgresql", self.names.postgresql, "read", since, "has not answered", "", patience)

    def _is_unanswered(self, observation: Observation) -> bool:
        return any(
            observation.now - wait.since >= wait.patience for wait in self._unanswered_waits(observation)
        )

    def _postgresql_waits(self, observation: Observation) -> Iterator[Wait]:
        server = self.names.postgresql
        yield from self._unanswered_waits(observation)
        if observation.activity in ("copy", "scan"):
            since = self._since(self._moved["rows"], observation.activity_since)
            condition = f"has sent no row of {observation.detail.removeprefix('snapshot of ')}"
            # A server that hangs does not answer the queries sent meanwhile.
            is_filtered = observation.activity == "scan" and not observation.blockers
            because = ", and its row filter may match none" if is_filtered else held_by(observation)
            patience = math.inf if is_filtered else STALLED_SECONDS
            yield Wait("postgresql", server, "read", since, condition, because, patience)
        # Before unsent WAL: the observations of unsent WAL start again whenever the server writes more.
        yield from self._walsender_waits(observation)
        if (
            observation.activity == "read"
            and observation.server_waits_for != ""
            and self._has_unread(observation)
        ):
            is_much = (observation.unread_bytes or 0) > _UNREADABLE_BYTES
            read_up = self._read_up[_UNREADABLE_BYTES if is_much else 0]
            moved = self._moved
            # Keepalives don't count: a walsender that waits for something answers them all the same.
            since = self._since(
                moved["rows"], moved["transactions"], moved["sent_lsn"], read_up, observation.partial_at
            )
            unread = f", although {size(observation.unread_bytes or 0)} of WAL is unread{sender(observation)}"
            if is_much or observation.now - since >= _UNREADABLE_SECONDS:
                hint = _MISSING_STANDBY if observation.server_waits_for == _STANDBYS else ""
                yield Wait("postgresql", server, "read", since, "has sent nothing", unread, hint=hint)

    def _walsender_waits(self, observation: Observation) -> Iterator[Wait]:
        """Yield PostgreSQL while its walsender has not answered; one that decodes may answer later."""
        if observation.activity != "read" or observation.called_at <= observation.heard_at:
            return
        # A sample from before the request says nothing about a walsender that may have begun to decode since.
        was_before = observation.now - observation.lag_age < observation.called_at
        is_fresh = not was_before and observation.lag_age <= FRESH_SECONDS
        may_decode = was_before and observation.now - observation.called_at < FRESH_SECONDS
        if may_decode or (is_fresh and observation.server_waits_for == ""):
            return
        since = self._since(observation.called_at, self._moved["sent_lsn"])
        condition, process, hint = "has not answered on the stream", "", ""
        if is_fresh and observation.sender_pid:
            process = sender(observation)
            # A walsender that writes waits for the network, or for this relay.
            hint = (
                ""
                if observation.server_waits_for == _WRITES
                else END_SENDER.format(pid=observation.sender_pid)
            )
        yield Wait(
            "postgresql", self.names.postgresql, "read", since, condition, process, UNANSWERED_SECONDS, hint
        )

    def _has_unread(self, observation: Observation) -> bool:
        """Return whether the server is known to have WAL left to read."""
        return bool(observation.unread_bytes) and observation.lag_age <= FRESH_SECONDS

    # -- the sentences -------------------------------------------------------------------------------------

    def _verdict(self, observation: Observation, **more: object) -> RelayVerdict:
        oldest = (
            round(observation.now - observation.oldest_since, 1)
            if observation.oldest_since and observation.in_flight
            else None
        )
        values: dict[str, object] = {
            "oldest_in_flight_seconds": oldest,
            "safe_bytes": observation.safe_bytes,
            "safe_seconds": None if observation.safe_seconds is None else round(observation.safe_seconds, 1),
        }
        return RelayVerdict(**{**values, **more})  # type: ignore[arg-type]

    def _starting(self, observation: Observation) -> RelayVerdict:
        seconds = observation.now - self._since(observation.activity_since)
        for_time = f", for {duration(seconds)}" if seconds >= _REPORTED_SECONDS else ""
        sentence = f"{observation.detail or 'starting'}{for_time}"
        return self._verdict(observation, condition="starting", sentence=sentence, seconds=round(seconds, 1))

    def _waiting(self, observation: Observation, condition: str, waits: list[Wait]) -> RelayVerdict:
        first = waits[0]
        seconds = observation.now - first.since
        sentence = "; also ".join(wait.sentence(observation.now) for wait in waits)
        verdict = self._verdict(
            observation,
            condition=condition,
            cause=first.cause,
            dependency=first.dependency,
            stage=first.stage,
            since=observation.time - seconds,
            seconds=round(seconds, 1),
        )
        parts = [f"the relay is stopping, and waits: {sentence}" if observation.is_stopping else sentence]
        if verdict.oldest_in_flight_seconds is not None:
            age = duration(verdict.oldest_in_flight_seconds)
            parts.append(f"the oldest message in flight has waited for {age}")
        if not first.loss and not (observation.is_temporary and observation.safe_bytes is None):
            parts.append(runway(observation.safe_bytes, observation.safe_seconds, observation.wal_status))
        hint = first.hint or HINTS.get(first.cause, "")
        if observation.is_stopping and observation.activity == "settling":
            hint = STOP_ENDS
        return replace(verdict, sentence="; ".join(filter(None, parts)), hint=hint)

    def _behind(self, observation: Observation) -> RelayVerdict:
        stage, share = slowest(self.busy)
        if self._waits_for_kafka(observation):
            # The main thread may be busy all the same, handing over messages that are not acknowledged yet.
            stage, share = "acknowledge", 0.0
        cause, dependency, description = self._slow(observation, stage)
        has_bottleneck = observation.rows > 0 and (bool(self.busy) or stage == "acknowledge")
        if not has_bottleneck or (stage == "read" and self._is_read_up(observation)):
            # Before the first row, right after a stall, or once all WAL is read, there is no bottleneck.
            stage, cause, dependency, held_up = "", "", "", ""
        else:
            held = f"{description}, {share:.0%} of its time" if share >= 0.01 else description
            held_up = f"; the bottleneck is {held}"
        if observation.phase == "snapshot":
            head = f"{observation.detail or 'copying tables'} at {rate(self._rate(observation))} rows/s"
        else:
            # For WAL from before the relay's start, only the commit times show the delay.
            late = max(
                observation.backlog_seconds, observation.commit_age if self._rate(observation) > 0 else 0.0
            )
            away = f"{size(observation.backlog_bytes)} and {duration(late)} behind"
            head = f"catching up at {rate(self._rate(observation))} rows/s, {away}"
        sentence = (
            f"{self._woke(observation)}{head}{self._transaction(observation)}{dropped(observation)}{held_up}"
        )
        hint = missing_right(observation) if cause == "postgresql" else ""
        return self._verdict(
            observation,
            condition="behind",
            sentence=sentence,
            cause=cause,
            dependency=dependency,
            stage=stage,
            hint=hint,
        )

    def _is_read_up(self, observation: Observation) -> bool:
        """Return whether the server's last sample shows that it has sent all its WAL, and waits for more."""
        return (
            observation.phase != "snapshot"
            and observation.lag_age <= FRESH_SECONDS
            and observation.unread_bytes is not None
            and observation.unread_bytes <= _UNREADABLE_BYTES
            and observation.server_waits_for != ""
        )

    def _waits_for_kafka(self, observation: Observation) -> bool:
        """Return whether many messages have waited for Kafka longer than Kafka normally takes."""
        many = observation.in_flight >= _MANY * observation.capacity
        return (
            many
            and bool(observation.oldest_since)
            and observation.now - observation.oldest_since >= _REPORTED_SECONDS + self.names.linger
        )

    def _slow(self, observation: Observation, stage: str) -> tuple[Cause, str, str]:
        """Return the cause of a slow stage, its dependency, and words about it."""
        names = self.names
        if stage == "read":
            is_busy = observation.server_waits_for == ""
            decodes = f"{names.postgresql}, which decodes its WAL" if is_busy else names.postgresql
            return "postgresql", names.postgresql, decodes
        if stage == "acknowledge":
            waits = observation.now - observation.oldest_since if observation.oldest_since else 0.0
            late = f", which takes {duration(waits)} to acknowledge" if waits >= _MENTIONED_SECONDS else ""
            return "kafka", names.sink, names.sink + late
        if stage == "":
            return "disk", names.recording, f"the disk of {names.recording}"
        return "relay", "", {"encode": "decoding and encoding"}.get(stage, "handing messages to Kafka")

    def _healthy(self, observation: Observation) -> RelayVerdict:
        moving = self._rate(observation)
        if observation.in_flight or moving >= 0.5:
            sentence = f"relaying {rate(moving)} rows/s, {duration(observation.backlog_seconds)} behind"
            sentence += self._transaction(observation)
        else:
            sentence = idle(observation)
        sentence += dropped(observation)
        if observation.safe_seconds is not None and observation.safe_seconds <= FORESEEABLE_SECONDS:
            safe = f"the slot would be safe for ≈ {duration(observation.safe_seconds)}"
            sentence += f"; if the relay stopped now, {safe}"
        return self._verdict(
            observation,
            condition="healthy",
            sentence=self._woke(observation) + sentence,
            hint=missing_right(observation),
        )

    def _woke(self, observation: Observation) -> str:
        if not self._slept or observation.now - self._awake_since > _GAP_REPORTED_SECONDS:
            return ""
        return f"the relay itself did not run for {duration(self._slept)}; "

    def _transaction(self, observation: Observation) -> str:
        """Return a remark on a transaction that takes long to read, or ""."""
        rows = observation.streamed - self._streamed_at_commit
        long = observation.now - self._since(self._moved["transactions"]) >= _LONG_SECONDS
        moves = observation.streamed > self._observations[0].streamed
        return f", in one transaction of {rows:,} rows so far" if long and rows and moves else ""
