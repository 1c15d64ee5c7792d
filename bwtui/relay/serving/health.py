"""The answers of /healthz and /readyz: is the relay alive, is it ready, and if not, why.

A relay is alive if its main thread makes progress; only a restart fixes a stuck main thread. It is ready if
it relays rows and topics equal tables, except for changes in flight.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bwtui.model.number_format import duration
from bwtui.relay.state.activity_clock import Activity, MainThreadActivity
from bwtui.relay.state.measures import Measures

#: A main thread that has been stuck for this long will not recover (seconds).
PATIENCE = 60.0
#: During these activities the main thread waits within one call, of libpq or of the system, for as long as it
#: takes; the verdict says what the call is blocked on.
WITHIN_ONE_CALL: frozenset[Activity] = frozenset(
    ("begin", "slot", "locks", "catalog", "connect", "copy", "scan", "ending", "state", "disk")
)


@dataclass(frozen=True, slots=True)
class HealthResult:
    """Yes or no, and why; ``body`` is the JSON object to answer with."""

    is_yes: bool
    body: dict[str, Any]


def health(turn: MainThreadActivity) -> HealthResult:
    """Return whether the main thread makes progress."""
    seconds, activity = turn.idle_seconds, turn.activity
    turns = seconds < PATIENCE or activity in WITHIN_ONE_CALL
    body: dict[str, Any] = {
        "healthy": turns,
        "activity": activity,
        "idle_seconds": round(seconds, 1),
    }
    if not turns:
        body["reason"] = f"the relay's main thread has made no progress for {duration(seconds)} ({activity})"
    return HealthResult(turns, body)


def readiness(measures: Measures) -> HealthResult:
    """Return whether the relay passes rows and topics equal tables; with every reason why not."""
    # Tables that are not proven don't count: rows pass, and a table may wait long until somebody compares it.
    status, reasons = measures.status, list(_reasons(measures))
    verdict = status.verdict
    body = {
        "ready": not reasons,
        "relay": status.name,
        "state": status.state,
        "condition": verdict.condition,
        "reasons": reasons,
        "verdict": verdict.sentence,
        "verdict_code": verdict.code,
        "hint": verdict.hint,
        "not_proven": [entry.to_json() for entry in status.not_proven],
    }
    return HealthResult(not reasons, body)


def _reasons(measures: Measures) -> Iterator[str]:
    status = measures.status
    verdict, phase = status.verdict, status.phase or status.state
    if measures.is_stopping:
        yield "the relay is stopping"
    if phase in ("stopped", "failed"):
        yield verdict.sentence or f"the relay has {phase}"
    elif phase == "starting":
        yield f"the relay is starting: {status.detail or verdict.sentence or 'no status yet'}"
    elif phase == "snapshot":
        yield f"the first snapshot is in progress: {status.detail or 'copying tables'}"
    if verdict.condition in ("stalled", "waiting"):
        yield verdict.sentence
    if status.first_snapshot is not None:
        yield status.first_snapshot.sentence
    if status.heal is not None:
        yield (f"topics may differ from tables, because the slot was lost: {status.heal.reason}")
    if not (alive := health(measures.turn)).is_yes:
        yield alive.body["reason"]
