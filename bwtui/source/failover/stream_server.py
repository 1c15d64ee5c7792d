"""Ordinary sessions alongside the stream, always with the same server as the stream.

By now the connection string may lead elsewhere: it names several hosts, or a name whose address changes. A
former primary that came back also accepts sessions, but lacks new rows and holds old values.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg2
from psycopg import pq
from psycopg2.extensions import make_dsn

from bwtui.errors import ConnectionFailed
from bwtui.source.connection import Connection, connect, query, statement_failed
from bwtui.source.failover.hosts import complete, describe
from bwtui.source.raw.session import ServerError, execute_raw
from bwtui.source.raw.timeline import TIMELINE

# No other server starts in the same microsecond, not even a copy. A promotion does not change these values.
_IDENTITY_SQL = f"""
select system_identifier::text, pg_catalog.pg_postmaster_start_time()::text, {TIMELINE}
  from pg_catalog.pg_control_system()"""


@dataclass(frozen=True, slots=True)
class ReachedServer:
    """The server of one session."""

    #: Leads to this server and to no other host or address.
    dsn: str
    system_identifier: str
    started: str
    #: None for a standby.
    timeline: int | None
    #: Its host and port, by libpq's keywords.
    place: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[str, str, int | None]:
        """Identifies the server, and distinguishes a promoted one from the same server as a standby."""
        return self.system_identifier, self.started, self.timeline


def reached_server(connection: pq.abc.PGconn, dsn: str) -> ReachedServer:
    """Return the server that a raw session has reached by ``dsn``. Raises ConnectionFailed."""
    values = {option.keyword.decode(): os.fsdecode(option.val or b"") for option in connection.info}
    # `bwtui.source.failover.libpq_session` puts a second host after the one that it tries.
    place = {key: values[key].split(",")[0] for key in ("host", "hostaddr", "port") if values.get(key)}
    try:
        [(identifier, started, timeline)] = execute_raw(connection, _IDENTITY_SQL)
    except ServerError as error:
        raise ConnectionFailed(error.message, "check PostgreSQL's log") from error
    server_dsn = make_dsn(complete(dsn), target_session_attrs="any", **place)
    return ReachedServer(
        server_dsn, identifier or "", started or "", int(timeline) if timeline else None, place
    )


class StreamServer:
    """Opens ordinary sessions with the stream's server, in any thread."""

    def __init__(self, dsn: str) -> None:
        """Accept any server that ``dsn`` leads to until the first `follow`."""
        self._dsn = dsn
        self._reached: ReachedServer | None = None
        self._is_streaming = False
        #: Changes when sessions opened earlier may be with a different server.
        self.epoch = 0

    @property
    def dsn(self) -> str:
        """A connection string for the stream's server, while there is a stream; otherwise the configured
        one.
        """
        reached = self._reached
        return reached.dsn if reached is not None and self._is_streaming else self._dsn

    def lead(self, dsn: str) -> str:
        """Return ``dsn`` restricted to the stream's server, while there is a stream."""
        reached = self._reached
        if reached is None or not self._is_streaming:
            return dsn
        return make_dsn(dsn, target_session_attrs="any", **reached.place)

    def is_all(self, servers: Sequence[Sequence[Any]]) -> bool:
        """Return whether all ``servers`` are the stream's server, compared by `ReachedServer.identity`.

        The timeline is part of the identity: a standby may lack what the relay has read, and become the
        stream's server only when it is promoted.
        """
        reached = self._reached
        if reached is None or not self._is_streaming:
            return False
        return bool(servers) and all(tuple(one) == reached.identity for one in servers)

    def follow(self, reached: ReachedServer) -> None:
        """Accept only ``reached`` from now on: a stream from it begins."""
        self._reached, self._is_streaming = reached, True
        self.epoch += 1

    def leave(self) -> None:
        """Accept any server that may be the next one: of the same system, and not a former primary."""
        self._is_streaming = False
        self.epoch += 1

    def connect(self) -> Connection:
        """Open a session. Raises ConnectionFailed, also if a different server answers."""
        reached, is_streaming, dsn = self._reached, self._is_streaming, self.dsn
        connection = connect(dsn)
        if reached is None:
            return connection
        try:
            [(identifier, started, timeline)] = query(connection, _IDENTITY_SQL)
        except psycopg2.Error as error:
            connection.close()
            raise statement_failed(error) from error
        if is_streaming:
            is_accepted = (identifier, started) == (reached.system_identifier, reached.started)
        else:
            is_newest = timeline is None or reached.timeline is None or timeline >= reached.timeline
            is_accepted = identifier == reached.system_identifier and is_newest
        if not is_accepted:
            connection.close()
            raise ConnectionFailed(
                f"the server at {describe(dsn)} is not the server of the stream, or was restarted since",
                "the relay reads nothing from it and retries; -d/--postgres should lead to one primary",
            )
        return connection
