"""Read the replication stream raw: CopyBoth frames in, standby status updates out.

Frames are those of the "Streaming Replication Protocol": ``w`` XLogData, whose payload begins at byte 25, and
``k`` primary keepalive. psycopg2's replication cursor is not used because it confirms transactions that its
caller did not (docs/adr/0001-read-the-stream-through-libpq.md).
"""

import select
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence

import psycopg
from psycopg import pq
from psycopg2 import errorcodes

from bwtui.errors import ConnectionFailed, RefusedError, SlotLost
from bwtui.model.lsn import format_lsn
from bwtui.model.sql import quote_identifier
from bwtui.pgoutput.frames import PAYLOAD_OFFSET, POSTGRES_EPOCH_US, XLOG_DATA
from bwtui.pgoutput.transcode import Transcoder
from bwtui.source.raw.session import (
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
    ) -> None:
        """Start streaming from the confirmed LSN of ``slot``, or from ``start_lsn`` if that is later.

        ``options`` are further pgoutput options. Protocol version 1 is the default: the server sends a
        transaction only after it has committed. Raises SlotLost, RefusedError or ConnectionFailed.
        """
        self.connection = connection
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
                hint = f"{HEAL}; or drop the slot with 'bwtui slots drop', and take a new snapshot"
                return SlotLost(f"the server removed WAL that the slot needs: {error.message}", hint)
            if error.sqlstate == errorcodes.UNDEFINED_OBJECT:
                # Versions before 18 do not skip such changes, but can't get past them.
                return changes_skipped(error.message)
            return self._broken(error.message)
        return self._broken("the server ended the stream")

    def _broken(self, reason: str) -> ConnectionFailed:
        plain = " ".join(reason.split())
        return ConnectionFailed(f"the replication connection broke: {plain}", "check PostgreSQL's log")


def changes_skipped(reason: str) -> SlotLost:
    """Return the error for changes that were written while a publication was missing."""
    return SlotLost(
        f"PostgreSQL can't decode changes from before the publication existed: {reason}",
        f"create the publication again; then {HEAL}, or drop the slot with 'bwtui slots drop' and take a new "
        "snapshot",
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
            f"slot {slot} is already active: {text}",
            "stop the other consumer, or choose a different slot with -s",
        )
    if error.sqlstate == errorcodes.UNDEFINED_OBJECT:
        return SlotLost(f"slot {slot} does not exist: {text}", f"another session has dropped it; {HEAL}")
    return ConnectionFailed(f"can't start replication from slot {slot}: {text}", "check PostgreSQL's log")
