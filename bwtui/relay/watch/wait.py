"""Waits: what a relay is blocked on, and the sentence about it."""

from collections.abc import Sequence
from typing import NamedTuple

from bwtui.model.number_format import duration
from bwtui.model.verdict import Cause
from bwtui.relay.watch.observation import Observation, ServiceNames
from bwtui.source.lag import Blocker
from bwtui.source.slot import HEAL

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
