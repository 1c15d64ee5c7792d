"""The verdict on a running relay: its condition, what it is blocked on, and since when.

The inputs are the main thread's activity and its start; when anything was last acknowledged, read or
answered; and PostgreSQL's view of the slot. A queue's length alone decides nothing: the cause is what the
relay is blocked on, and without work there is none. See
docs/adr/0021-blame-what-the-main-thread-waits-for.md.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from bwtui.model.number_format import duration, rate, size
from bwtui.model.verdict import FORESEEABLE_SECONDS, Cause, RelayVerdict, runway
from bwtui.relay.watch.activity_clock import Activity
from bwtui.relay.watch.bottleneck import busy, slowest
from bwtui.relay.watch.observation import Observation, ServiceNames
from bwtui.relay.watch.unsent_wal import BEHIND_SECONDS, FRESH_SECONDS, idle, missing_right
from bwtui.relay.watch.wait import (
    END_SENDER,
    HINTS,
    STALLED_SECONDS,
    TOPIC_GONE,
    UNANSWERED_SECONDS,
    Wait,
    dropped,
    ending,
    held_by,
    lost_slot,
    missing,
    sender,
    standby_slot,
)

#: Timeout for a longer query, or one that takes several turns.
_LONG_QUESTION_SECONDS = 5.0
#: Minimum duration of a wait that is reported, though it is not a stall yet.
_TOLD_SECONDS = 1.0
#: Minimum acknowledgement delay that is mentioned.
_SPOKEN_SECONDS = 0.1
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
_GAP_SECONDS, _GAP_TOLD_SECONDS = 2.5, 10.0
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
        self._looks: deque[Observation] = deque()
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
        self._stall_seen = 0.0
        self._passed: tuple[object, ...] = ()
        self._at: Activity = "read"
        #: When the last stall ended; shares of stages count from then on.
        self._stall_ended = 0.0

    def look(self, seen: Observation) -> RelayVerdict:
        """Return the current verdict."""
        self._remember(seen)
        behind = self._is_behind(seen)
        waits = sorted(self._waits(seen), key=lambda wait: (not wait.loss, not wait.is_explained, wait.since))
        stalled = self._stalled(seen, waits)
        begun = next(look for look in self._looks if look.now >= self._stall_ended)
        self.busy = busy(begun, seen, idle=not behind)
        if stalled:
            return self._waiting(seen, "stalled", stalled)
        long = [wait for wait in waits if seen.now - wait.since >= _TOLD_SECONDS]
        if long:
            return self._waiting(seen, "waiting", long)
        if seen.phase == "starting":
            return self._starting(seen)
        return self._behind(seen) if behind else self._healthy(seen)

    # -- progress ------------------------------------------------------------------------------------------

    def _remember(self, seen: Observation) -> None:
        looks = self._looks
        if looks:
            last = looks[-1]
            if seen.now - last.now >= _GAP_SECONDS:
                # The time in between is unknown, and nothing counted as a wait during it either.
                self._awake_since, self._slept = seen.now, seen.now - last.now
                looks.clear()
            for name in ("rows", "transactions", "sent_lsn"):
                if getattr(seen, name) != getattr(last, name):
                    self._moved[name] = seen.now
            if seen.transactions != last.transactions:
                self._streamed_at_commit = seen.streamed
        if seen.durable > self._most_durable:
            self._most_durable, self._moved["durable"] = seen.durable, seen.now
        for most in self._read_up:
            if not looks or seen.activity == "connect" or (seen.unread_bytes or 0) <= most:
                self._read_up[most] = seen.now
        looks.append(seen)
        while len(looks) > 2 and seen.now - looks[1].now >= _WINDOW_SECONDS:
            looks.popleft()

    def _stalled(self, seen: Observation, waits: list[Wait]) -> list[Wait]:
        """Return the waits that are a stall; one observation without them does not end it."""
        if seen.activity != "state":
            # The main thread also writes its state while it waits for an answer.
            self._at = "read" if seen.activity in _LOOP else seen.activity
        is_silent = bool(seen.asking_since) and seen.now - seen.asking_since >= UNANSWERED_SECONDS
        passed = (
            *(seen.rows, seen.transactions, seen.durable, seen.sent_lsn, seen.partial_at, seen.answered_at),
            *(is_silent, seen.ledger_since, seen.wal_status, seen.phase, self._at),
        )
        had = bool(self._stall)
        if passed != self._passed or seen.now - self._stall_seen >= _HELD_SECONDS:
            self._stall = []
        elif seen.heard_at > self._stall_seen:
            # A keepalive ends only the wait for an answer.
            self._stall = [wait for wait in self._stall if wait.patience != UNANSWERED_SECONDS]
        self._passed = passed
        begun = {(wait.cause, wait.says): wait.since for wait in self._stall}
        waits = [
            wait._replace(since=min(wait.since, begun.get((wait.cause, wait.says), wait.since)))
            for wait in waits
        ]
        stalled = [wait for wait in waits if seen.now - wait.since >= wait.patience]
        if stalled:
            self._stall, self._stall_seen = stalled, seen.now
        if had and not self._stall:
            self._stall_ended = seen.now
        return self._stall

    def _since(self, *moments: float) -> float:
        """Return the latest of ``moments``, or when the relay itself woke up if that was later."""
        return max(self._awake_since, *moments)

    def _is_behind(self, seen: Observation) -> bool:
        if seen.phase == "snapshot" or seen.in_flight >= _FULL * seen.capacity:
            return True
        waits_long = seen.backlog_seconds >= BEHIND_SECONDS and seen.backlog_bytes > _UNREADABLE_BYTES
        if not waits_long and seen.backlog_bytes < BEHIND_BYTES:
            return False
        # Nothing can be done about WAL that was read and not sent: it belongs to open transactions.
        is_read = seen.unread_bytes is not None and seen.unread_bytes <= _UNREADABLE_BYTES
        return not is_read or bool(seen.in_flight) or self._rate(seen) > 0

    def _rate(self, seen: Observation) -> float:
        first = self._looks[0]
        return (seen.rows - first.rows) / (seen.now - first.now) if seen.now > first.now else 0.0

    # -- what the relay is blocked on ----------------------------------------------------------------------

    def _waits(self, seen: Observation) -> Iterator[Wait]:
        """Yield the waits, each cause once."""
        causes: set[Cause] = set()
        for wait in (
            *self._lost(seen),
            *self._asked(seen),
            *self._kafka(seen),
            *self._disk(seen),
            *self._postgresql(seen),
            *self._relay(seen),
        ):
            if wait.cause not in causes:
                causes.add(wait.cause)
                yield wait

    def _lost(self, seen: Observation) -> Iterator[Wait]:
        """Yield PostgreSQL if it has removed WAL that the slot needs, in addition to any other wait."""
        if seen.wal_status == "lost":
            self._lost_since = self._lost_since or seen.now
            yield lost_slot(self.names, self._lost_since)
        else:
            self._lost_since = 0.0

    def _asked(self, seen: Observation) -> Iterator[Wait]:
        """Yield the service that the main thread calls and can't continue without."""
        names, since = self.names, self._since(seen.activity_since, seen.answered_at)
        reason = seen.detail.partition(": ")[2] if seen.detail.startswith("waiting for ") else ""
        because = f": {reason}" if reason else ""
        # An error as the reason may be a refusal, which is an answer.
        silent = "has kept the relay waiting" if reason else "has not answered"
        match seen.activity:
            case "registry":
                yield Wait(
                    "registry", names.registry, "encode", since, silent, because, is_explained=bool(reason)
                )
            case "topics":
                yield Wait("kafka", names.sink, "produce", since, silent, because, is_explained=bool(reason))
            case "readback":
                says = "has sent no record of a topic that the relay reads"
                yield Wait("kafka", names.sink, "acknowledge", since, says)
            case "ending":
                yield Wait("postgresql", names.postgresql, "read", since, "has not ended the stream")
            case "begin" | "catalog" if seen.blockers:
                says = "has not granted the relay a table lock"
                because, hint = held_by(seen), ending(seen.blockers)
                yield Wait("transactions", names.postgresql, "read", since, says, because, hint=hint)
            case "catalog" | "connect":
                yield Wait(
                    "postgresql", names.postgresql, "read", since, silent, because, is_explained=bool(reason)
                )
            case "slot" | "locks" if self._is_unanswered(seen):
                # It is unknown what a server that does not answer waits for.
                return
            case "slot" if seen.in_recovery and not seen.blockers:
                yield standby_slot(names, since)
            case "slot":
                says = "creates the slot only after open transactions end, and has waited"
                because, hint = held_by(seen), ending(seen.blockers) if seen.blockers else ""
                yield Wait("transactions", names.postgresql, "read", since, says, because, hint=hint)
            case "locks":
                says = "has not granted the locks on the snapshot's tables"
                because, hint = held_by(seen), ending(seen.blockers) if seen.blockers else ""
                yield Wait("transactions", names.postgresql, "read", since, says, because, hint=hint)

    def _kafka(self, seen: Observation) -> Iterator[Wait]:
        """Yield Kafka while messages are in flight that it does not acknowledge."""
        # While deliveries are not processed, the number in flight is unknown.
        begun = seen.oldest_since or (seen.activity_since if seen.activity == "settling" else 0.0)
        if not seen.in_flight or not begun or seen.now - seen.settled_at > _TOLD_SECONDS:
            return
        since = self._since(self._moved["durable"], begun + self.names.linger)
        because, hint = f": {seen.outage}" if seen.outage else "", ""
        if seen.missing_topics and not seen.outage:
            because, hint = missing(seen.missing_topics), TOPIC_GONE
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

    def _disk(self, seen: Observation) -> Iterator[Wait]:
        names, says = self.names, "has written nothing to its disk"
        if seen.activity in ("disk", "state"):
            where = names.state if seen.activity == "state" else names.recording
            yield Wait("disk", where, "", self._since(seen.activity_since), says)
        # While deliveries are not processed, it is unknown what the disk has by now.
        elif seen.ledger_since and seen.now - seen.settled_at <= _TOLD_SECONDS:
            yield Wait("disk", names.recording, "", self._since(seen.ledger_since), says)

    def _relay(self, seen: Observation) -> Iterator[Wait]:
        """Yield the relay itself if its main thread neither computes nor reports what it waits for."""
        if seen.activity not in ("work", "produce") or self._computes(seen):
            return
        since = self._since(seen.activity_since, self._moved["rows"])
        yield Wait("relay", "the relay's own main thread", "encode", since, "has made no progress")

    def _computes(self, seen: Observation) -> bool:
        first = self._looks[0]
        if first.cpu is None or seen.cpu is None:
            return False
        return seen.cpu - first.cpu > _COMPUTES * (seen.now - first.now)

    def _asking(self, seen: Observation) -> Iterator[Wait]:
        """Yield PostgreSQL while it has not answered a query, and has sent nothing else either."""
        if seen.asking_since and max(self._moved["rows"], seen.heard_at) <= seen.asking_since:
            since = self._since(seen.asking_since)
            patience = _LONG_QUESTION_SECONDS if seen.asking_is_long else UNANSWERED_SECONDS
            yield Wait("postgresql", self.names.postgresql, "read", since, "has not answered", "", patience)

    def _is_unanswered(self, seen: Observation) -> bool:
        return any(seen.now - wait.since >= wait.patience for wait in self._asking(seen))

    def _postgresql(self, seen: Observation) -> Iterator[Wait]:
        server = self.names.postgresql
        yield from self._asking(seen)
        if seen.activity in ("copy", "scan"):
            since = self._since(self._moved["rows"], seen.activity_since)
            says = f"has sent no row of {seen.detail.removeprefix('snapshot of ')}"
            # A server that hangs does not answer the queries sent meanwhile.
            is_filtered = seen.activity == "scan" and not seen.blockers
            because = ", and its row filter may match none" if is_filtered else held_by(seen)
            patience = math.inf if is_filtered else STALLED_SECONDS
            yield Wait("postgresql", server, "read", since, says, because, patience)
        # Before unsent WAL: the observations of unsent WAL start again whenever the server writes more.
        yield from self._called(seen)
        if seen.activity == "read" and seen.server_waits_for != "" and self._has_unread(seen):
            is_much = (seen.unread_bytes or 0) > _UNREADABLE_BYTES
            read_up = self._read_up[_UNREADABLE_BYTES if is_much else 0]
            moved = self._moved
            # Keepalives don't count: a walsender that waits for something answers them all the same.
            since = self._since(
                moved["rows"], moved["transactions"], moved["sent_lsn"], read_up, seen.partial_at
            )
            left = f", although {size(seen.unread_bytes or 0)} of WAL is unread{sender(seen)}"
            if is_much or seen.now - since >= _UNREADABLE_SECONDS:
                hint = _MISSING_STANDBY if seen.server_waits_for == _STANDBYS else ""
                yield Wait("postgresql", server, "read", since, "has sent nothing", left, hint=hint)

    def _called(self, seen: Observation) -> Iterator[Wait]:
        """Yield PostgreSQL while its walsender has not answered; one that decodes may answer later."""
        if seen.activity != "read" or seen.called_at <= seen.heard_at:
            return
        # A sample from before the request says nothing about a walsender that may have begun to decode since.
        was_before = seen.now - seen.lag_age < seen.called_at
        is_fresh = not was_before and seen.lag_age <= FRESH_SECONDS
        may_decode = was_before and seen.now - seen.called_at < FRESH_SECONDS
        if may_decode or (is_fresh and seen.server_waits_for == ""):
            return
        since = self._since(seen.called_at, self._moved["sent_lsn"])
        says, process, hint = "has not answered on the stream", "", ""
        if is_fresh and seen.sender_pid:
            process = sender(seen)
            # A walsender that writes waits for the network, or for this relay.
            hint = "" if seen.server_waits_for == _WRITES else END_SENDER.format(pid=seen.sender_pid)
        yield Wait(
            "postgresql", self.names.postgresql, "read", since, says, process, UNANSWERED_SECONDS, hint
        )

    def _has_unread(self, seen: Observation) -> bool:
        """Return whether the server is known to have WAL left to read."""
        return bool(seen.unread_bytes) and seen.lag_age <= FRESH_SECONDS

    # -- the sentences -------------------------------------------------------------------------------------

    def _verdict(self, seen: Observation, **more: object) -> RelayVerdict:
        oldest = round(seen.now - seen.oldest_since, 1) if seen.oldest_since and seen.in_flight else None
        values: dict[str, object] = {
            "oldest_in_flight_seconds": oldest,
            "safe_bytes": seen.safe_bytes,
            "safe_seconds": None if seen.safe_seconds is None else round(seen.safe_seconds, 1),
        }
        return RelayVerdict(**{**values, **more})  # type: ignore[arg-type]

    def _starting(self, seen: Observation) -> RelayVerdict:
        seconds = seen.now - self._since(seen.activity_since)
        told = f", for {duration(seconds)}" if seconds >= _TOLD_SECONDS else ""
        sentence = f"{seen.detail or 'starting'}{told}"
        return self._verdict(seen, condition="starting", sentence=sentence, seconds=round(seconds, 1))

    def _waiting(self, seen: Observation, condition: str, waits: list[Wait]) -> RelayVerdict:
        first = waits[0]
        seconds = seen.now - first.since
        sentence = "; also ".join(wait.sentence(seen.now) for wait in waits)
        verdict = self._verdict(
            seen,
            condition=condition,
            cause=first.cause,
            dependency=first.dependency,
            stage=first.stage,
            since=seen.time - seconds,
            seconds=round(seconds, 1),
        )
        parts = [sentence]
        if verdict.oldest_in_flight_seconds is not None:
            age = duration(verdict.oldest_in_flight_seconds)
            parts.append(f"the oldest message in flight has waited for {age}")
        if not first.loss:
            parts.append(runway(seen.safe_bytes, seen.safe_seconds, seen.wal_status))
        return replace(
            verdict, sentence="; ".join(filter(None, parts)), hint=first.hint or HINTS.get(first.cause, "")
        )

    def _behind(self, seen: Observation) -> RelayVerdict:
        stage, share = slowest(self.busy)
        if self._waits_for_kafka(seen):
            # The main thread may be busy all the same, handing over messages that are not acknowledged yet.
            stage, share = "acknowledge", 0.0
        cause, dependency, says = self._slow(seen, stage)
        is_known = bool(self.busy) or stage == "acknowledge"
        if not is_known or (stage == "read" and self._is_read_up(seen)):
            # Right after a stall, or once all WAL is read, there is no bottleneck.
            stage, cause, dependency, held_up = "", "", "", ""
        else:
            held = f"{says}, {share:.0%} of its time" if share >= 0.01 else says
            held_up = f"; the bottleneck is {held}"
        if seen.phase == "snapshot":
            head = f"{seen.detail or 'copying tables'} at {rate(self._rate(seen))} rows/s"
        else:
            # For WAL from before the relay's start, only the commit times show the delay.
            late = max(seen.backlog_seconds, seen.commit_age if self._rate(seen) > 0 else 0.0)
            away = f"{size(seen.backlog_bytes)} and {duration(late)} behind"
            head = f"catching up at {rate(self._rate(seen))} rows/s, {away}"
        sentence = f"{self._woke(seen)}{head}{self._transaction(seen)}{dropped(seen)}{held_up}"
        hint = missing_right(seen) if cause == "postgresql" else ""
        return self._verdict(
            seen,
            condition="behind",
            sentence=sentence,
            cause=cause,
            dependency=dependency,
            stage=stage,
            hint=hint,
        )

    def _is_read_up(self, seen: Observation) -> bool:
        """Return whether the server's last sample shows that it has sent all its WAL, and waits for more."""
        return (
            seen.phase != "snapshot"
            and seen.lag_age <= FRESH_SECONDS
            and seen.unread_bytes is not None
            and seen.unread_bytes <= _UNREADABLE_BYTES
            and seen.server_waits_for != ""
        )

    def _waits_for_kafka(self, seen: Observation) -> bool:
        """Return whether many messages have waited for Kafka longer than Kafka normally takes."""
        many = seen.in_flight >= _MANY * seen.capacity
        return (
            many
            and bool(seen.oldest_since)
            and seen.now - seen.oldest_since >= _TOLD_SECONDS + self.names.linger
        )

    def _slow(self, seen: Observation, stage: str) -> tuple[Cause, str, str]:
        """Return the cause of a slow stage, its dependency, and words about it."""
        names = self.names
        if stage == "read":
            is_busy = seen.server_waits_for == ""
            decodes = f"{names.postgresql}, which decodes its WAL" if is_busy else names.postgresql
            return "postgresql", names.postgresql, decodes
        if stage == "acknowledge":
            waits = seen.now - seen.oldest_since if seen.oldest_since else 0.0
            late = f", which takes {duration(waits)} to acknowledge" if waits >= _SPOKEN_SECONDS else ""
            return "kafka", names.sink, names.sink + late
        if stage == "":
            return "disk", names.recording, f"the disk of {names.recording}"
        return "relay", "", {"encode": "decoding and encoding"}.get(stage, "handing messages to Kafka")

    def _healthy(self, seen: Observation) -> RelayVerdict:
        moving = self._rate(seen)
        if seen.in_flight or moving >= 0.5:
            sentence = f"relaying {rate(moving)} rows/s, {duration(seen.backlog_seconds)} behind"
            sentence += self._transaction(seen)
        else:
            sentence = idle(seen)
        sentence += dropped(seen)
        if seen.safe_seconds is not None and seen.safe_seconds <= FORESEEABLE_SECONDS:
            safe = f"the slot would be safe for ≈ {duration(seen.safe_seconds)}"
            sentence += f"; if the relay stopped now, {safe}"
        return self._verdict(
            seen, condition="healthy", sentence=self._woke(seen) + sentence, hint=missing_right(seen)
        )

    def _woke(self, seen: Observation) -> str:
        if not self._slept or seen.now - self._awake_since > _GAP_TOLD_SECONDS:
            return ""
        return f"the relay itself did not run for {duration(self._slept)}; "

    def _transaction(self, seen: Observation) -> str:
        """Return a remark on a transaction that takes long to read, or ""."""
        rows = seen.streamed - self._streamed_at_commit
        long = seen.now - self._since(self._moved["transactions"]) >= _LONG_SECONDS
        moves = seen.streamed > self._looks[0].streamed
        return f", in one transaction of {rows:,} rows so far" if long and rows and moves else ""
