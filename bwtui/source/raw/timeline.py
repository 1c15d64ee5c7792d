"""Identify a server, and determine how much WAL it shares with the previous one.

A promoted standby begins a timeline, which has its own history from one LSN on ("Timelines" in PostgreSQL's
documentation of continuous archiving). Two servers hold the same WAL up to the point where their histories
diverge.
"""

from dataclasses import dataclass

from psycopg import pq

from bwtui.model.lsn import parse_lsn
from bwtui.source.connection import Connection, query
from bwtui.source.raw.session import ServerError, execute_raw

#: Larger than any LSN.
ENDLESS = 1 << 64

# A WAL file's name begins with the timeline. The control file has the timeline of the last checkpoint, which
# is updated later.
TIMELINE = """case when not pg_catalog.pg_is_in_recovery() then ('x' || pg_catalog.left(
         pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::int end"""

#: Each timeline in order, with the LSN at which it ended.
Forks = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The server at the other end of a replication session."""

    system_identifier: str
    timeline: int
    #: The earlier timelines; None if the server has lost their history file.
    forks: Forks | None
    #: The end of its WAL, or, in recovery, of the replayed WAL.
    wal_end: int
    in_recovery: bool

    def common_end(self, timeline: int, forks: Forks) -> int | None:
        """Return the LSN up to which it shares the WAL of a server on ``timeline`` with history ``forks``.

        `ENDLESS` if nothing distinguishes the two; None if a history is missing.
        """
        if self.forks is None:
            return ENDLESS if self.timeline == timeline else None
        if timeline > 1 and not forks and timeline in [number for number, _ in self._timelines]:
            # The other server's forks were not recorded: take its timeline for the one with that number here,
            # and its history for what precedes that.
            forks = tuple(fork for fork in self.forks if fork[0] < timeline)
        end = 0
        theirs = (*forks, (timeline, ENDLESS))
        for (one, one_end), (other, other_end) in zip(self._timelines, theirs, strict=False):
            if one != other:
                return end
            if one_end != other_end:
                return min(one_end, other_end)
            end = one_end
        return end

    @property
    def _timelines(self) -> Forks:
        return (*(self.forks or ()), (self.timeline, ENDLESS))


def identify(connection: pq.abc.PGconn) -> ServerIdentity:
    """Return the server that a raw replication session has reached. Raises ServerError."""
    identifier, timeline, end, *_ = execute_raw(connection, "IDENTIFY_SYSTEM")[0]
    ((recovery,),) = execute_raw(connection, "select pg_catalog.pg_is_in_recovery()")
    number = int(timeline or 0)
    return ServerIdentity(
        identifier or "", number, _forks(connection, number), parse_lsn(end or "0/0"), recovery == "t"
    )


def primary_timeline(connection: Connection) -> int | None:
    """Return a primary's timeline, correct immediately after a promotion too; None for a standby."""
    return query(connection, f"select {TIMELINE}")[0][0]  # type: ignore[no-any-return]


def _forks(connection: pq.abc.PGconn, timeline: int) -> Forks | None:
    if timeline == 1:
        return ()
    try:
        ((_, history),) = execute_raw(connection, f"TIMELINE_HISTORY {timeline}")
    except ServerError:
        if connection.status != pq.ConnStatus.OK:
            raise
        return None
    return parse_history(history or "")


def parse_history(text: str) -> Forks:
    r"""Return the timelines in a history file: lines of ``number \t LSN \t reason``, and ``#`` comments."""
    lines = (line.split("\t") for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return tuple((int(line[0]), parse_lsn(line[1])) for line in lines)
