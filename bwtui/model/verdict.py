"""The verdict on a relay: one sentence that says how it is, whom it waits for, and what is safe.

The engine makes it (`bwtui.relay.watch.judge`), or, once there is none, whoever reads what it left behind
(`ended`, `killed`, `suspended`). Command line, screens and reports show it, and have no words of their own.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from bwtui.model.figures import duration, size
from bwtui.model.from_json import made_of

#: "starting", "healthy"; "behind": it catches up, and ``stage`` holds it up; "waiting": for less time than
#: that it would be stalled; "not_proven": rows pass, and topics may differ from tables (`bwtui.model.proof`);
#: "stalled": there is work, and none of it is done; and how it has ended.
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
#: Whoever the relay waits for, or what holds it up; "" where nobody does.
Cause = Literal["", "postgresql", "transactions", "kafka", "registry", "disk", "relay"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a relay is; times in Unix seconds, durations in seconds, sizes in bytes."""

    condition: Condition = "starting"
    #: One plain sentence, without the state's own word: "Kafka at … has acknowledged nothing for 12 s; …".
    sentence: str = ""
    cause: Cause = ""
    #: Whoever is waited for, with the address: "Kafka at localhost:9092".
    dependency: str = ""
    #: The stage that holds the others up; one of `bwtui.model.status.STAGES`, or "".
    stage: str = ""
    #: Since when that is so, and for how long; None where it has no beginning.
    since: float | None = None
    seconds: float = 0.0
    #: Since when the oldest message waits that was read and is not acknowledged; None: none does.
    oldest_in_flight_seconds: float | None = None
    #: WAL that may be written before the slot is in danger, and how long that takes at the present rate;
    #: None: no limit is set, or no WAL is written.
    safe_bytes: int | None = None
    safe_seconds: float | None = None
    #: What to do; "" where there is nothing.
    hint: str = ""

    #: Whether the condition lasts until somebody does what the hint says.
    needs_action: bool = False

    @property
    def stands_still(self) -> bool:
        """Whether no row passes."""
        return self.condition in ("stalled", "failed", "killed", "suspended")

    @property
    def is_trouble(self) -> bool:
        """Whether somebody should look."""
        return self.stands_still or self.condition == "not_proven"

    @property
    def word(self) -> Word:
        """The condition as ``verdict`` of ``status --json``; a later version's is never green."""
        return _WORDS.get(self.condition, "not_proven")

    @classmethod
    def from_json(cls, data: dict[str, Any] | str) -> "Verdict":
        """Rebuild a verdict from ``dataclasses.asdict``, without keys that this version does not know.

        ``data`` is a word where a status has no more than that.
        """
        verdict: Verdict = made_of(cls, {} if isinstance(data, str) else data)
        return verdict


#: What would last longer counts as no bound: hardly anything is written then, and that does not stay so.
FORESEEABLE_SECONDS = 365 * 86_400


def runway(safe_bytes: int | None, safe_seconds: float | None, wal_status: str) -> str:
    """Say how long the slot is safe if nothing more is confirmed."""
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
    message: str | None, hint: str | None, *, confirmed: str = "", left: str = "", at: float | None = None
) -> Verdict:
    """Return the verdict on a relay that has said how it ended, ``at`` a time (Unix seconds).

    Without a ``message`` it was stopped; ``left`` is what it has left for its next start.
    """
    if message is not None:
        return Verdict("failed", message, "relay", since=at, hint=hint or "")
    end = f"; everything up to {confirmed} is confirmed" if confirmed else ""
    return Verdict("stopped", f"stopped cleanly{end}{f'; {left}' if left else ''}", since=at)


def killed(state: str, log: str) -> Verdict:
    """Return the verdict on a relay that ended without a word; ``state`` is what it was at last."""
    return Verdict(
        "killed",
        f"the relay was killed, or its machine went down, while it was {state}; nothing is lost",
        "relay",
        hint=f"start it again with the same settings; {log} has its last words",
    )


def suspended(name: str, pid: int, seconds: float, *, is_stopped: bool) -> Verdict:
    """Return the verdict on a relay that runs, and was last heard of ``seconds`` ago.

    ``is_stopped``: the system says that its process is stopped.
    """
    why = f"its process {pid} is suspended" if is_stopped else f"its process {pid} may be suspended"
    goes_on = f"'kill -CONT {pid}' goes on with it"
    return Verdict(
        "suspended",
        f"relay {name} runs, but does not answer: {why}; it was last heard of {duration(seconds)} ago",
        "relay",
        seconds=round(seconds, 1),
        hint=goes_on if is_stopped else f"{goes_on}, or the machine is overloaded",
    )
