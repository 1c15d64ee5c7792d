"""Read the replication stream raw: CopyBoth frames in, standby status updates out.

Frames are those of the "Streaming Replication Protocol": ``w`` XLogData, whose payload begins at byte
25, and ``k`` primary keepalive. psycopg2's replication cursor is not used because it confirms
transactions that its caller did not (docs/adr/0001-read-the-stream-through-libpq.md).
"""

import os
import select
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import psycopg2
from psycopg import pq
from psycopg2 import errorcodes
from psycopg2.extensions import make_dsn

from bwtui.errors import ConnectionFailed, RefusedError, SlotLost
from bwtui.model.lsn import format_lsn, parse_lsn
from bwtui.model.sql import quote_identifier
from bwtui.pgoutput.frames import PAYLOAD_OFFSET, POSTGRES_EPOCH_US, XLOG_DATA
from bwtui.pgoutput.transcode import Transcoder
from bwtui.settings import drop_command
from bwtui.source.connection import Connection, connect, query, statement_failed
from bwtui.source.hosts import complete, describe
from bwtui.source.raw_session import (
    ServerError,
    exec_logged,
    execute_raw,
    raw_decoder,
    server_error,
    use_server_encoding,
)
from bwtui.source.slot import HEAL

_KEEPALIVE = struct.Struct(">xQqB")
_STATUS = struct.Struct(">cQQQqB")
#: Minimum wal_sender_timeout (seconds). A row of some ten megabytes may take a second during which the relay
#: does nothing else. With a shorter timeout, the server would end every session at the same row.
_LEAST_SECONDS = 5


class ReplicationStream:
    """A started logical replication stream on a raw session, which it owns and closes."""

    def __init__(
        self,
        connection: pq.abc.PGconn,
        slot: str,
        publications: Sequence[str],
        options: dict[str, str] | None = None,
        start_lsn: int = 0,
        drop: str = "",
    ) -> None:
        """Start streaming from the confirmed LSN of ``slot``, or from ``start_lsn`` if that is later.

        ``options`` are further pgoutput options; ``drop`` is the command that drops the slot. Protocol
        version 1 is the default: the server sends a transaction only after it has committed. Raises SlotLost,
        RefusedError or ConnectionFailed.
        """
        self.connection = connection
        self._drop = drop or drop_command(slot)
        self._ahead: deque[bytes] = deque()
        #: When bytes last arrived, complete messages or not, by ``time.monotonic``.
        self.arrived_at = 0.0
        #: After this time without a status update (seconds) the server ends the stream; 0: never.
        self.patience = _sender_timeout(connection)
        decode = raw_decoder(connection)
        self._transcoder = None if decode is None else Transcoder(decode)
        #: A warning about the publication: since PostgreSQL 18, the changes of a missing one are only
        #: skipped.
        self.warning = ""
        connection.notice_handler = self._on_notice
        chosen = {"proto_version": "1", "publication_names": ",".join(map(quote_identifier, publications))}
        chosen |= options or {}
        rendered = ", ".join(f"{name} {_quoted(value)}" for name, value in chosen.items())
        sql = f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {format_lsn(start_lsn)} ({rendered})"
        try:
            result = exec_logged(connection, sql, use_server_encoding(connection, sql))
        except ServerError as error:
            raise ConnectionFailed(error.message, "check PostgreSQL's log") from error
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise _start_refused(slot, server_error(result))

    def _on_notice(self, result: pq.abc.PGresult) -> None:
        notice = server_error(result)
        # A session that only streams gets no other warning with this SQLSTATE.
        if notice.sqlstate == errorcodes.OBJECT_NOT_IN_PREREQUISITE_STATE:
            self.warning = notice.message

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for data, and read it from the socket. Raises ConnectionFailed."""
        readable, _, _ = select.select([self.connection.socket], [], [], timeout)
        if readable:
            self._consume()
        return bool(readable)

    def frames(self) -> Iterator[bytes]:
        """Yield whole frames, their texts in UTF-8, until nothing more has arrived.

        Raises ConnectionFailed if the server ended the stream or the connection broke, SlotLost if the slot's
        WAL was removed.
        """
        return self._frames(self._ahead)

    def _frames(self, ahead: deque[bytes]) -> Iterator[bytes]:
        # One generator for all frames of a turn: a call for each costs four times as much.
        get, transcoder = self.connection.get_copy_data, self._transcoder
        while True:
            while ahead:
                yield ahead.popleft()
            try:
                size, data = get(1)
            except psycopg.Error as error:
                raise self._broken(str(error)) from error
            if size > 0:
                yield bytes(data) if transcoder is None else _in_utf8(transcoder, bytes(data))
            elif size < 0:
                raise self._ended()
            elif not self.wait(0):
                return

    def read_ahead(self, frames: int, size: int) -> Sequence[bytes]:
        """Return what `frames` will yield next, as far as it has arrived: about that many frames or bytes.

        Raises the same errors as `frames`.
        """
        ahead = self._ahead
        remaining = size - sum(map(len, ahead))
        arrived = self._frames(deque())
        while len(ahead) < frames and remaining > 0 and (frame := next(arrived, None)) is not None:
            ahead.append(frame)
            remaining -= len(frame)
        return ahead

    def send_status(self, lsn: int, *, answer: bool = False) -> None:
        """Confirm that everything before ``lsn`` is durable: written, flushed and applied alike.

        All three are the same, since the server replies promptly on an idle stream only if both write and
        flush have reached what it sent. ``answer`` requests an immediate keepalive, which the server sends
        between any two records that it reads. Raises ConnectionFailed.
        """
        now = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        self._put(_STATUS.pack(b"r", lsn, lsn, lsn, now, answer))

    def end(self, timeout: float = 3.0) -> None:
        """End the stream in order, so that the last status update is processed, and close the session.

        Wait at most ``timeout`` seconds for the server's own end; a broken connection is ignored.
        """
        deadline = time.monotonic() + timeout
        try:
            self.connection.put_copy_end()
            self._drain_output()
            while time.monotonic() < deadline:
                size, _ = self.connection.get_copy_data(1)
                if size < 0:
                    break
                if size == 0:
                    self.wait(0.1)
        except (psycopg.Error, ConnectionFailed):
            pass
        finally:
            self.finish()

    def finish(self) -> None:
        """Close the session at once; the server will resend everything that was not confirmed."""
        self.connection.finish()

    def _put(self, message: bytes) -> None:
        try:
            while self.connection.put_copy_data(message) == 0:
                self._drain_output()
            self._drain_output()
        except psycopg.Error as error:
            raise self._broken(str(error)) from error

    def _drain_output(self) -> None:
        """Flush libpq's buffer; read input meanwhile, so that two full buffers can't block each other."""
        deadline = time.monotonic() + 60
        while self.connection.flush() == 1:
            if time.monotonic() > deadline:
                raise self._broken("the server has accepted no data for 60 s")
            socket = self.connection.socket
            readable, _, _ = select.select([socket], [socket], [], 1)
            if readable:
                self._consume()

    def _consume(self) -> None:
        self.arrived_at = time.monotonic()
        try:
            self.connection.consume_input()
        except psycopg.Error as error:
            raise self._broken(str(error)) from error

    def _ended(self) -> Exception:
        result = self.connection.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            error = server_error(result)
            if error.sqlstate == errorcodes.UNDEFINED_FILE:
                hint = f"{HEAL}; or drop the slot with '{self._drop}', and take a new snapshot"
                return SlotLost(f"the server removed WAL that the slot needs: {error.message}", hint)
            if error.sqlstate == errorcodes.UNDEFINED_OBJECT:
                # Versions before 18 do not skip such changes, but can't get past them.
                return changes_skipped(error.message, self._drop)
            return self._broken(error.message)
        return self._broken("the server ended the stream")

    def _broken(self, reason: str) -> ConnectionFailed:
        plain = " ".join(reason.split())
        return ConnectionFailed(f"the replication connection broke: {plain}", "check PostgreSQL's log")


def changes_skipped(reason: str, drop: str) -> SlotLost:
    """Return the error for changes that were written while a publication was missing.

    ``drop`` is the command that drops the slot. The tables of a missing publication are unknown here.
    """
    return SlotLost(
        f"PostgreSQL can't decode changes from before the publication existed: {reason}",
        f"{HEAL}; or drop the slot with '{drop}' and take a new snapshot; if the publication is missing, "
        "'bwtui doctor' with the relay's options reports how to create it again",
    )


def _in_utf8(transcoder: Transcoder, frame: bytes) -> bytes:
    if frame[0] != XLOG_DATA:
        return frame
    return frame[:PAYLOAD_OFFSET] + transcoder.message(frame[PAYLOAD_OFFSET:])


def parse_keepalive(frame: bytes) -> tuple[int, bool]:
    """Return a ``k`` frame's WAL end, and whether the server requests a reply. Raises struct.error."""
    wal_end, _, reply = _KEEPALIVE.unpack_from(frame)
    return wal_end, bool(reply)


def _sender_timeout(connection: pq.abc.PGconn) -> float:
    """Return the session's wal_sender_timeout in seconds, after raising one that is too short.

    Raises ConnectionFailed.
    """
    sql = "select setting from pg_catalog.pg_settings where name = 'wal_sender_timeout'"
    try:
        timeout = int(execute_raw(connection, sql)[0][0] or 0) / 1000
        if 0 < timeout < _LEAST_SECONDS:
            execute_raw(connection, f"set wal_sender_timeout = '{_LEAST_SECONDS}s'")
            return float(_LEAST_SECONDS)
        return timeout
    except ServerError as error:
        raise ConnectionFailed(error.message, "check PostgreSQL's log") from error


def _quoted(value: str) -> str:
    """Return a string literal of the replication grammar, in which a backslash has no special meaning."""
    return "'" + value.replace("'", "''") + "'"


def _start_refused(slot: str, error: ServerError) -> Exception:
    text = error.message
    if error.sqlstate == errorcodes.OBJECT_IN_USE:
        return RefusedError(
            f"slot {slot} is in use: {text}",
            "stop the other consumer, or choose a different slot with -s",
        )
    if error.sqlstate == errorcodes.UNDEFINED_OBJECT:
        return SlotLost(f"slot {slot} does not exist: {text}", f"another session has dropped it; {HEAL}")
    return ConnectionFailed(f"can't start replication from slot {slot}: {text}", "check PostgreSQL's log")


# Identify a server, and determine how much WAL it shares with the previous one.
#
# A promoted standby begins a timeline, which has its own history from one LSN on ("Timelines" in PostgreSQL's
# documentation of continuous archiving). Two servers hold the same WAL up to the point where their histories
# diverge.

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
        for (ours, our_end), (another, another_end) in zip(self._timelines, theirs, strict=False):
            if ours != another:
                return end
            if our_end != another_end:
                return min(our_end, another_end)
            end = our_end
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


# Ordinary sessions alongside the stream, always with the same server as the stream.
#
# By now the connection string may lead elsewhere: it names several hosts, or a name whose address changes.
# A former primary that came back also accepts sessions, but lacks new rows and holds old values.

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
    # `bwtui.source.raw_session` puts a second host after the one that it tries.
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
