"""Sentences about WAL that PostgreSQL has not sent, for a relay without work."""

from bwtui.model.number_format import duration, size
from bwtui.relay.watch.observation import Observation

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
