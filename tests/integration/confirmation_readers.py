"""Two readers of a replication slot for the same scenarios: psycopg2's cursor, and ours.

Each reader acknowledges only transactions of table ``z``, so the slot must stay before all others.
"""

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import psycopg2
from psycopg2.extras import LogicalReplicationConnection

from bwtui.errors import ConnectionFailed
from bwtui.model.delivery import DeliverySpan
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.frames import PAYLOAD_OFFSET, XLOG_DATA
from bwtui.pgoutput.messages import Begin, Commit, Insert, Relation, StreamCommit, StreamStart, StreamStop
from bwtui.relay.state.ack import Acknowledgements
from bwtui.source.raw_session import connect_raw
from bwtui.source.raw_stream import ReplicationStream, parse_keepalive
from tests.held_relay import HeldRelay
from tests.waiting import eventually

_PATIENCE = 60.0
STREAMED = {"proto_version": "2", "streaming": "on"}


class Reader(Protocol):
    """The steps that every scenario needs of a reader."""

    #: True if this reader confirms positions that it was not asked to confirm.
    loses: ClassVar[bool]
    pid: int

    def acknowledge(self, table: str) -> None:
        """Read until a transaction of ``table`` has arrived, and acknowledge it."""

    def hold(self, table: str) -> None:
        """Read until a transaction of ``table`` is complete, acknowledge nothing, and read no further."""

    def ask_for_keepalive(self) -> None:
        """Request a keepalive from the server, and read nothing."""

    def read_keepalive(self, lsn: int) -> None:
        """Read until a keepalive at or past ``lsn`` has arrived, and confirm the durable position."""

    def cut(self) -> None:
        """Cut the connection."""

    def read_again(self, last: str) -> set[str]:
        """Connect again, and return the tables of the received transactions, up to table ``last``."""


class TransactionReader(Reader, Protocol):
    """Reads transactions that are sent whole, after their COMMIT."""

    def read_into(self, table: str) -> None:
        """Read the beginning of a transaction of ``table``, and read no further."""


class BlockReader(Reader, Protocol):
    """Reads transactions that are streamed while they are in progress."""

    def read_block(self) -> None:
        """Read until a STREAM STOP has arrived."""


class Messages:
    """Follows the messages of one stream, and collects the tables of its complete transactions."""

    def __init__(self) -> None:
        self.whole: set[str] = set()
        #: Between BEGIN and COMMIT, or between STREAM START and STREAM STOP.
        self.inside = False
        #: Number of STREAM STOP messages received.
        self.blocks = 0
        self.last_end = 0
        #: Tables of the last completed transaction.
        self.last: set[str] = set()
        self._names: dict[int, str] = {}
        # Tables of open transactions, by xid; 0 is the one that is not streamed.
        self._open: dict[int, set[str]] = {}
        self._streamed = False

    def open(self) -> set[str]:
        """Return the tables of transactions that have begun to arrive."""
        return set().union(*self._open.values())

    def take(self, payload: bytes) -> bool:
        """Take one message; return whether it ends a transaction."""
        message = decode(payload, streamed=self._streamed)
        if isinstance(message, Relation):
            self._names[message.oid] = message.name
        elif isinstance(message, Insert):
            self._open.setdefault(message.stream_xid or 0, set()).add(self._names[message.relation_oid])
        elif isinstance(message, Begin):
            self.inside = True
        elif isinstance(message, StreamStart):
            self._streamed = self.inside = True
        elif isinstance(message, StreamStop):
            self._streamed = self.inside = False
            self.blocks += 1
        elif isinstance(message, Commit | StreamCommit):
            self.last = self._open.pop(message.xid if isinstance(message, StreamCommit) else 0, set())
            self.whole |= self.last
            self.last_end = message.end_lsn
            self.inside = False
            return True
        return False


class Psycopg2Reader:
    """psycopg2's replication cursor, used as documented: only durable changes are acknowledged."""

    loses: ClassVar[bool] = True

    def __init__(self, dsn: str, slot: str, folder: Path, options: dict[str, str] | None = None) -> None:
        self._dsn = dsn
        self._slot = slot
        self._options = {"proto_version": "1", "publication_names": "everything"} | (options or {})
        self._connect()

    def _connect(self) -> None:
        self._connection: Any = psycopg2.connect(self._dsn, connection_factory=LogicalReplicationConnection)
        self._cursor = self._connection.cursor()
        self._cursor.start_replication(slot_name=self._slot, options=self._options, decode=False)
        self.messages = Messages()
        self.pid = self._connection.info.backend_pid

    def _read_until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            assert time.monotonic() < deadline, what
            message = self._cursor.read_message()
            if message is not None:
                self.messages.take(bytes(message.payload))
            else:
                select.select([self._cursor], [], [], 0.05)

    def acknowledge(self, table: str) -> None:
        self.hold(table)
        self._cursor.send_feedback(flush_lsn=self.messages.last_end, force=True)

    def hold(self, table: str) -> None:
        self._read_until(f"a transaction of {table}", lambda: table in self.messages.whole)

    def read_into(self, table: str) -> None:
        self._read_until(f"a part of a transaction of {table}", lambda: table in self.messages.open())

    def read_block(self) -> None:
        blocks = self.messages.blocks
        self._read_until("STREAM STOP", lambda: self.messages.blocks > blocks)

    def try_read(self) -> None:
        """Read all data that has arrived."""
        message = self._cursor.read_message()
        if message is not None:
            self.messages.take(bytes(message.payload))

    def ask_for_keepalive(self) -> None:
        self._cursor.send_feedback(reply=True)

    def read_keepalive(self, lsn: int) -> None:
        # A data message carries its own, older LSN here: only a keepalive gets past ``lsn``.
        self._read_until("a keepalive", lambda: self._cursor.wal_end >= lsn)
        # A keepalive reply without an LSN.
        self._cursor.send_feedback(force=True)

    def cut(self) -> None:
        with socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def read_again(self, last: str) -> set[str]:
        self._connect()
        self.hold(last)
        self._connection.close()
        return self.messages.whole


class RelayReader:
    """Our unchanged streaming phase, with a sink that acknowledges only the messages of table z."""

    loses: ClassVar[bool] = False

    def __init__(self, dsn: str, slot: str, folder: Path) -> None:
        self._make = lambda: HeldRelay(dsn, slot, folder, exclude=("wide.*",))
        self._relay = self._make()
        self._relay.sink.held.update({"a", "b"})
        self._relay.sink.pause_at = "a"
        self.pid = self._relay.pid

    def acknowledge(self, table: str) -> None:
        self._relay.wait_sent(table)

    def hold(self, table: str) -> None:
        eventually(f"the relay is paused behind {table}", self._relay.sink.paused.is_set)
        assert self._relay.sink.sent[table]

    def read_into(self, table: str) -> None:
        self._relay.sink.paused.clear()
        self._relay.sink.pause_at = table
        self._relay.sink.resume()
        eventually(f"the relay is in the middle of {table}", self._relay.sink.paused.is_set)

    def ask_for_keepalive(self) -> None:
        self._relay.ask_for_keepalive()

    def read_keepalive(self, lsn: int) -> None:
        self._relay.sink.resume()
        # Only a keepalive changes this figure.
        eventually("a keepalive", lambda: self._relay.report.server_lsn >= lsn)

    def cut(self) -> None:
        self._relay.cut()

    def read_again(self, last: str) -> set[str]:
        again = self._make()
        again.wait_sent(last)
        again.stop()
        return set(again.sink.sent)


class StreamedReader:
    """Our stream, decoder and acknowledgement rule, with protocol version 2 and streaming on.

    The relay does not use these options, but the rule must hold with them as well.
    """

    loses: ClassVar[bool] = False

    def __init__(self, dsn: str, slot: str, folder: Path, options: dict[str, str] | None = None) -> None:
        self._dsn, self._slot, self._options = dsn, slot, options
        self._connect()

    def _connect(self) -> None:
        connection = connect_raw(self._dsn)
        self._stream = ReplicationStream(connection, self._slot, ["everything"], options=self._options)
        self._acks = Acknowledgements()
        self.messages = Messages()
        self._keepalive = 0
        self.pid = connection.backend_pid

    def _read(self) -> None:
        data = next(self._stream.frames(), None)
        if data is None:
            self._stream.wait(0.05)
            return
        if data[0] != XLOG_DATA:
            self._keepalive, reply_requested = parse_keepalive(data)
            if not self.messages.inside:
                self._acks.keepalive(self._keepalive)
            if reply_requested:
                self._stream.send_status(self._acks.advance())
            return
        if self.messages.take(data[PAYLOAD_OFFSET:]):
            span = DeliverySpan()
            span.pending = int(self.messages.last != {"z"})
            span.lsn = self.messages.last_end
            self._acks.seal(span)

    def _read_until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            assert time.monotonic() < deadline, what
            self._read()

    def acknowledge(self, table: str) -> None:
        self.hold(table)
        self._stream.send_status(self._acks.advance())

    def hold(self, table: str) -> None:
        self._read_until(f"a transaction of {table}", lambda: table in self.messages.whole)

    def read_block(self) -> None:
        blocks = self.messages.blocks
        self._read_until("STREAM STOP", lambda: self.messages.blocks > blocks)

    def try_read(self) -> None:
        """Read all data that has arrived."""
        self._read()

    def ask_for_keepalive(self) -> None:
        connection = self._stream.connection
        connection.put_copy_data(struct.pack(">cQQQqB", b"r", *[self._acks.confirmed] * 3, 0, 1))
        connection.flush()

    def read_keepalive(self, lsn: int) -> None:
        self._read_until("a keepalive", lambda: self._keepalive >= lsn)
        self._stream.send_status(self._acks.advance())

    def cut(self) -> None:
        with socket.socket(fileno=os.dup(self._stream.connection.socket)) as end:
            end.shutdown(socket.SHUT_RDWR)
        try:
            self._read_until("the end", lambda: False)
        except ConnectionFailed:
            self._stream.finish()

    def read_again(self, last: str) -> set[str]:
        self._connect()
        self.hold(last)
        self._stream.finish()
        return self.messages.whole


#: Takes the connection URI, the slot's name and a folder; the second kind takes options of pgoutput, too.
MakeReader = Callable[[str, str, Path], TransactionReader]
MakeBlockReader = Callable[[str, str, Path, dict[str, str]], BlockReader]
READERS: Sequence[MakeReader] = (Psycopg2Reader, RelayReader)
STREAMED_READERS: Sequence[MakeBlockReader] = (Psycopg2Reader, StreamedReader)
