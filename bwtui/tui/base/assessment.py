"""Judgements of the figures: which stage is slow, and what needs attention.

Every judgement has a mark as well as a tone, so that it can be read without colour.
"""

from typing import Literal, NamedTuple

from bwtui.model.number_format import count, size
from bwtui.model.service_views import GroupEntry, SlotEntry
from bwtui.model.status import ErrorEntry, StageStatus, Status, TableStatus
from bwtui.model.verdict import RelayVerdict as RelayVerdict
from bwtui.tui.base.figures import NONE

Tone = Literal["good", "warn", "bad", "muted", "plain"]
LAG_SECONDS = 10.0
LAG_BYTES = 1024**3
#: A slot that retains this much WAL needs attention.
KEPT_BYTES = 1024**3
#: A queue at least this full throttles the stages before it.
FULL = 0.6
MARKS: dict[Tone, str] = {"good": "✓", "warn": "▲", "bad": "✗", "muted": "·", "plain": " "}


class Assessment(NamedTuple):
    """A tone, and a word with the same meaning."""

    tone: Tone
    word: str

    @property
    def mark(self) -> str:
        """The sign that replaces the tone where there is no colour."""
        return MARKS[self.tone]


_STATES: dict[str, Assessment] = {
    "starting": Assessment("warn", "STARTING"),
    "snapshot": Assessment("good", "SNAPSHOT"),
    "streaming": Assessment("good", "STREAMING"),
    "stalled": Assessment("bad", "STALLED"),
    "paused": Assessment("warn", "PAUSED"),
    "stopped": Assessment("muted", "STOPPED"),
    "failed": Assessment("bad", "FAILED"),
}
#: Conditions that the state alone does not show.
_ENDS: dict[str, Assessment] = {
    "killed": Assessment("bad", "KILLED"),
    "suspended": Assessment("bad", "SUSPENDED"),
}
_SENTENCES: dict[str, Tone] = {
    "behind": "warn",
    "waiting": "warn",
    "not_proven": "warn",
    "stalled": "bad",
    "failed": "bad",
    "killed": "bad",
    "suspended": "bad",
}
_WAL: dict[str, Assessment] = {
    "reserved": Assessment("good", "reserved"),
    "extended": Assessment("warn", "extended"),
    "unreserved": Assessment("bad", "unreserved"),
    "lost": Assessment("bad", "lost"),
}


def of_state(state: str) -> Assessment:
    """Judge the relay's state."""
    return _STATES.get(state, Assessment("plain", state.upper()))


def of_wal_status(wal_status: str) -> Assessment:
    """Judge pg_replication_slots.wal_status."""
    return _WAL.get(wal_status, Assessment("muted", wal_status or "unknown"))


def retained(status: Status) -> str:
    """Return how much WAL the slot retains; unknown until the slot has been queried."""
    return size(status.retained_wal_bytes) if status.wal_status else NONE


def of_lag(status: Status) -> Assessment:
    """Judge the lag behind the server: it needs attention from 10 seconds or 1 GiB on.

    It is never "in time" while the relay stands still, because nothing reduces the lag then.
    """
    if status.wal_lag_seconds >= LAG_SECONDS or status.wal_lag_bytes >= LAG_BYTES:
        return Assessment("warn", "lagging")
    if status.verdict.stands_still:
        return Assessment("warn", "no progress")
    return Assessment("good", "in time")


def is_late(since: float, now: float) -> bool:
    """Return whether something that has waited since ``since`` needs attention."""
    return now - since >= LAG_SECONDS


def of_group(group: GroupEntry, now: float) -> Assessment:
    """Judge a consumer group in words."""
    if not group.unread:
        return Assessment("warn", "unknown") if group.uncommitted else Assessment("good", "caught up")
    if group.members == 0:
        return Assessment("warn", "not running")
    if group.unread_since is None or is_late(group.unread_since, now):
        return Assessment("warn", "behind")
    return Assessment("good", "in time")


def is_behind(group: GroupEntry, now: float) -> bool:
    """Return whether a group is known to be late."""
    return bool(group.unread) and of_group(group, now).tone != "good"


def unread_of(group: GroupEntry) -> str:
    """Return the group's unread messages, as a lower bound if a partition with messages lacks a commit."""
    return f"{'≥ ' if group.uncommitted else ''}{count(group.unread)}"


def of_slot(slot: SlotEntry) -> Assessment:
    """Judge a slot in words."""
    if slot.wal_status == "lost":
        return Assessment("bad", "lost its WAL")
    if slot.wal_status == "unreserved":
        return Assessment("bad", "is about to be lost")
    if slot.active:
        return Assessment("warn", "is far behind") if keeps_much(slot) else Assessment("good", "in use")
    return Assessment("warn", "not in use")


def keeps_much(slot: SlotEntry) -> bool:
    """Return whether a slot retains enough WAL to need attention."""
    return (slot.retained_wal_bytes or 0) >= KEPT_BYTES


def fullness(stage: StageStatus) -> float:
    """Return how full the queue in front of a stage is, 0 to 1; 0 if it is unbounded."""
    if not stage.capacity:
        return 0.0
    return min(stage.queue / stage.capacity, 1.0)


def of_status(status: Status) -> Assessment:
    """Judge the relay by its state, and by its verdict where that is more specific."""
    verdict = status.verdict
    if verdict.condition == "not_proven":
        return Assessment(tone_of(verdict), "NOT PROVEN")
    return _ENDS.get(verdict.condition) or of_state(status.state)


def tone_of(verdict: RelayVerdict) -> Tone:
    """Return the tone of the verdict's sentence."""
    return "bad" if verdict.needs_action else _SENTENCES.get(verdict.condition, "muted")


def slow_stage(status: Status) -> str | None:
    """Return the stage that slows the others down, according to the relay's verdict, or None."""
    return status.verdict.stage or None


def has_trouble(table: TableStatus) -> bool:
    """Return whether a table had errors or dead letters."""
    return bool(table.errors or table.dead_letters)


def is_warning(entry: ErrorEntry) -> bool:
    """Return whether an entry of the error list is only a warning."""
    kind = entry.kind.lower()
    return "warn" in kind or kind in {"notice", "info", "stalled"}


def stands(entry: ErrorEntry) -> bool:
    """Return whether an entry needs attention: an error or a warning that is not over."""
    return not entry.is_over and entry.kind.lower() not in {"notice", "info"}


def snapshot_share(table: TableStatus) -> float | None:
    """Return how much of a table's snapshot is done, 0 to 1, or None if unknown.

    The estimate may be too low, so a running snapshot never shows more than 99 %.
    """
    if table.snapshot_state == "done":
        return 1.0
    if table.snapshot_state == "pending":
        return 0.0
    if table.snapshot_state != "running" or not table.snapshot_estimate or table.snapshot_estimate < 0:
        return None
    return min(table.snapshot_rows / table.snapshot_estimate, 0.99)
