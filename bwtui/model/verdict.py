"""The verdict on a relay: one sentence on how it is doing, what it is blocked on, and what is safe.

The engine makes it (`bwtui.relay.watch.judge`), or, after the engine has ended, any reader of the files that
it left (`ended`, `killed`, `suspended`). Command line, screens and reports show it and add no words of their
own.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from bwtui.model.from_json import from_json_object
from bwtui.model.number_format import duration, size

#: "starting", "healthy"; "behind": it is catching up, limited by ``stage``; "waiting": blocked for less time
#: than it takes to be stalled; "not_proven": rows pass, but topics may differ from tables
#: (`bwtui.model.proof`); "stalled": there is work, but no progress; and the ways in which it has ended.
Condition = Literal[
    "starting",
    "healthy",
    "behind",
    "waiting",
    "not_proven",
    "stalled",
    "stopped",
    "failed",
    "killed",
    "suspended",
]
#: ``verdict`` of ``status --json``, the worst first.
Word = Literal["failed", "stalled", "not_proven", "catching_up", "streaming", "stopped"]
WORDS: tuple[Word, ...] = get_args(Word)
_WORDS: dict[str, Word] = {
    "starting": "catching_up",
    "healthy": "streaming",
    "behind": "catching_up",
    "waiting": "catching_up",
    "stalled": "stalled",
    "stopped": "stopped",
    "failed": "failed",
    "killed": "failed",
    "suspended": "stalled",
}
#: The service or resource that blocks or slows down the relay; "" if none.
Cause = Literal["", "postgresql", "transactions", "kafka", "registry", "disk", "relay"]


@dataclass(frozen=True, slots=True)
class RelayVerdict:
    """The verdict on a relay; times in Unix seconds, durations in seconds, sizes in bytes."""

    condition: Condition = "starting"
    #: One plain sentence, without the state's own word: "Kafka at … has acknowledged nothing for 12 s; …".
    sentence: str = ""
    cause: Cause = ""
    #: The service it is blocked on, with the address: "Kafka at localhost:9092".
    dependency: str = ""
    #: The slowest stage, which holds up the others; one of `bwtui.model.status.STAGES`, or "".
    stage: str = ""
    #: When the condition began, and for how long it has lasted; None without a beginning.
    since: float | None = None
    seconds: float = 0.0
    #: Age of the oldest message that was read but is not acknowledged; None if there is none.
    oldest_in_flight_seconds: float | None = None
    #: WAL bytes until the slot is in danger, and the time that takes at the current rate; None if there is no
    #: limit, or no WAL is written.
    safe_bytes: int | None = None
    safe_seconds: float | None = None
    #: What to do; "" if nothing.
    hint: str = ""

    #: True if the condition lasts until the user follows the hint.
    needs_action: bool = False

    @property
    def stands_still(self) -> bool:
        """Return whether no row passes."""
        return self.condition in ("stalled", "failed", "killed", "suspended")

    @property
    def is_trouble(self) -> bool:
        """Return whether the user should investigate."""
        return self.stands_still or self.condition == "not_proven"

    @property
    def code(self) -> Word:
        """The condition as ``verdict`` of ``status --json``; an unknown one never counts as healthy."""
        return _WORDS.get(self.condition, "not_proven")

    @classmethod
    def from_json(cls, data: dict[str, Any] | str) -> "RelayVerdict":
        """Rebuild a verdict from ``dataclasses.asdict``, ignoring keys that this version does not know.

        ``data`` is a word if a status has only that.
        """
        verdict: RelayVerdict = from_json_object(cls, {} if isinstance(data, str) else data)
        return verdict


#: A longer time counts as unlimited: it means that very little is written at the moment.
FORESEEABLE_SECONDS = 365 * 86_400


def runway(safe_bytes: int | None, safe_seconds: float | None, wal_status: str) -> str:
    """Describe how long the slot is safe if nothing more is confirmed."""
    if wal_status == "lost":
        return "the slot is lost"
    if safe_bytes is None:
        return "the slot is safe while PostgreSQL's disk has room" if wal_status else ""
    if safe_bytes <= 0 or wal_status == "unreserved":
        return "THE SLOT IS IN DANGER: its WAL may be removed"
    room = f"{size(safe_bytes)} of WAL may still be written"
    if safe_seconds is None or safe_seconds > FORESEEABLE_SECONDS:
        return f"the slot is safe: {room}"
    return f"the slot is safe for ≈ {duration(safe_seconds)}: {room}"


def ended(
    message: str | None,
    hint: str | None,
    *,
    confirmed: str = "",
    remaining_work: str = "",
    at: float | None = None,
) -> RelayVerdict:
    """Return the verdict on a relay that recorded how it ended, ``at`` a time (Unix seconds).

    Without a ``message`` it was stopped; ``remaining_work`` describes the work left for its next start.
    """
    if message is not None:
        return RelayVerdict("failed", message, "relay", since=at, hint=hint or "")
    end = f"; everything up to {confirmed} is confirmed" if confirmed else ""
    return RelayVerdict(
        "stopped", f"stopped cleanly{end}{f'; {remaining_work}' if remaining_work else ''}", since=at
    )


def killed(state: str, log: str) -> RelayVerdict:
    """Return the verdict on a relay that ended without recording it; ``state`` is its last known state."""
    return RelayVerdict(
        "killed",
        f"the relay was killed, or its machine crashed, while it was {state}; nothing is lost",
        "relay",
        hint=f"start it again with the same settings; its last messages are in {log}",
    )


def suspended(name: str, pid: int, seconds: float, *, is_stopped: bool) -> RelayVerdict:
    """Return the verdict on a running relay that last responded ``seconds`` ago.

    ``is_stopped`` means that the operating system reports its process as stopped.
    """
    why = f"its process {pid} is suspended" if is_stopped else f"its process {pid} may be suspended"
    resume = f"resume it with 'kill -CONT {pid}'"
    return RelayVerdict(
        "suspended",
        f"relay {name} is running but does not respond: {why}; its last response was {duration(seconds)} ago",
        "relay",
        seconds=round(seconds, 1),
        hint=resume if is_stopped else f"{resume}, unless the machine is overloaded",
    )
