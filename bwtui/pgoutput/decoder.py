"""Decode one ``pgoutput`` message from bytes, without state or I/O.

The formats are those of the PostgreSQL documentation, "Logical Replication Message Formats", protocol
versions 1 to 4. A message does not say whether it is between STREAM START and STREAM STOP, so the caller
does.
"""

import struct
from collections.abc import Callable

from bwtui.pgoutput import messages as m
from bwtui.pgoutput.frames import POSTGRES_EPOCH_US
from bwtui.pgoutput.tuples import DecodeError, split_tuple

# For names that no row needs: bytes that are not UTF-8 become lone surrogates.
_ANY = "surrogateescape"

_begin = struct.Struct(">QqI")
_commit = struct.Struct(">BQQq")
_stream_commit = struct.Struct(">IBQQq")
_prepare = struct.Struct(">QQqI")
_flags_prepare = struct.Struct(">BQQqI")
_rollback_prepared = struct.Struct(">BQQqqI")
_uint8 = struct.Struct(">B")
_uint16 = struct.Struct(">H")
_uint32 = struct.Struct(">I")
_uint64 = struct.Struct(">Q")
_stream_start = struct.Struct(">IB")
_stream_abort = struct.Struct(">II")
_abort_position = struct.Struct(">Qq")
_truncate = struct.Struct(">IB")
_column = struct.Struct(">Ii")


class _PayloadCursor:
    """A position in the payload; every read advances it, and raises at the end."""

    __slots__ = ("offset", "payload")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.offset = 1

    def read(self, form: struct.Struct) -> tuple[int, ...]:
        try:
            values = form.unpack_from(self.payload, self.offset)
        except struct.error:
            raise DecodeError("the message is cut off", self.offset) from None
        self.offset += form.size
        return values

    def char(self) -> str:
        return chr(self.read(_uint8)[0])

    def text(self, errors: str = "strict") -> str:
        end = self.payload.find(b"\0", self.offset)
        if end < 0:
            raise DecodeError("a name is not terminated", self.offset)
        raw, start, self.offset = self.payload[self.offset : end], self.offset, end + 1
        try:
            return raw.decode(errors=errors)
        except UnicodeDecodeError:
            raise DecodeError("a name is not valid UTF-8", start, "rename the table or the column") from None

    def take(self, length: int) -> bytes:
        end = self.offset + length
        if end > len(self.payload):
            raise DecodeError(f"{length} bytes run past the end of the message", self.offset)
        data, self.offset = self.payload[self.offset : end], end
        return data

    def row(self) -> list[m.Field]:
        fields, self.offset = split_tuple(self.payload, self.offset)
        return fields

    def xid(self, streamed: bool) -> int | None:
        return self.read(_uint32)[0] if streamed else None


def decode(payload: bytes, streamed: bool = False) -> m.Message:
    """Decode the message in ``payload`` (without the XLogData header of 25 bytes).

    ``streamed`` means that it is between STREAM START and STREAM STOP, where messages carry a transaction's
    id. Raises DecodeError, with the offset and never with a value, if the payload is not exactly one message.
    """
    if not payload:
        raise DecodeError("the message is empty", 0)
    read = _READERS.get(payload[0])
    if read is None:
        raise DecodeError(f"unknown kind of message 0x{payload[0]:02x}", 0)
    cursor = _PayloadCursor(payload)
    message = read(cursor, streamed)
    if cursor.offset != len(payload):
        raise DecodeError(f"{len(payload) - cursor.offset} bytes after the end of the message", cursor.offset)
    return message


def _read_begin(cursor: _PayloadCursor, streamed: bool) -> m.Begin:
    lsn, time, xid = cursor.read(_begin)
    return m.Begin(lsn, time + POSTGRES_EPOCH_US, xid)


def _read_commit(cursor: _PayloadCursor, streamed: bool) -> m.Commit:
    flags, lsn, end, time = cursor.read(_commit)
    return m.Commit(flags, lsn, end, time + POSTGRES_EPOCH_US)


def _read_origin(cursor: _PayloadCursor, streamed: bool) -> m.Origin:
    return m.Origin(cursor.read(_uint64)[0], cursor.text(_ANY))


def _read_relation(cursor: _PayloadCursor, streamed: bool) -> m.Relation:
    xid = cursor.xid(streamed)
    (oid,) = cursor.read(_uint32)
    # An empty namespace means pg_catalog.
    namespace = cursor.text() or "pg_catalog"
    name = cursor.text()
    identity = cursor.char()
    (count,) = cursor.read(_uint16)
    columns = tuple(_read_column(cursor) for _ in range(count))
    return m.Relation(oid, namespace, name, identity, columns, xid)


def _read_column(cursor: _PayloadCursor) -> m.Column:
    (flags,) = cursor.read(_uint8)
    name = cursor.text()
    oid, typmod = cursor.read(_column)
    return m.Column(name, oid, typmod, bool(flags & 1))


def _read_type(cursor: _PayloadCursor, streamed: bool) -> m.Type:
    xid = cursor.xid(streamed)
    (oid,) = cursor.read(_uint32)
    return m.Type(oid, cursor.text(_ANY) or "pg_catalog", cursor.text(_ANY), xid)


def _read_insert(cursor: _PayloadCursor, streamed: bool) -> m.Insert:
    xid = cursor.xid(streamed)
    (oid,) = cursor.read(_uint32)
    _expect(cursor, "N")
    return m.Insert(oid, cursor.row(), xid)


def _read_update(cursor: _PayloadCursor, streamed: bool) -> m.Update:
    xid = cursor.xid(streamed)
    (oid,) = cursor.read(_uint32)
    if cursor.payload[cursor.offset : cursor.offset + 1] == b"N":
        cursor.offset += 1
        return m.Update(oid, None, None, cursor.row(), xid)
    kind = _expect(cursor, "KO")
    old = cursor.row()
    _expect(cursor, "N")
    return m.Update(oid, old, kind, cursor.row(), xid)


def _read_delete(cursor: _PayloadCursor, streamed: bool) -> m.Delete:
    xid = cursor.xid(streamed)
    (oid,) = cursor.read(_uint32)
    kind = _expect(cursor, "KO")
    return m.Delete(oid, cursor.row(), kind, xid)


def _expect(cursor: _PayloadCursor, kinds: str) -> str:
    offset = cursor.offset
    kind = cursor.char()
    if kind not in kinds:
        raise DecodeError(f"a row begins with 0x{ord(kind):02x} in place of {' or '.join(kinds)}", offset)
    return kind


def _read_truncate(cursor: _PayloadCursor, streamed: bool) -> m.Truncate:
    xid = cursor.xid(streamed)
    count, options = cursor.read(_truncate)
    if 4 * count > len(cursor.payload) - cursor.offset:
        raise DecodeError(f"{count} tables do not fit into the message", cursor.offset)
    oids = tuple(cursor.read(_uint32)[0] for _ in range(count))
    return m.Truncate(oids, bool(options & 1), bool(options & 2), xid)


def _read_message(cursor: _PayloadCursor, streamed: bool) -> m.LogicalMessage:
    xid = cursor.xid(streamed)
    (flags,) = cursor.read(_uint8)
    (lsn,) = cursor.read(_uint64)
    prefix = cursor.text()
    (length,) = cursor.read(_uint32)
    return m.LogicalMessage(bool(flags & 1), lsn, prefix, cursor.take(length), xid)


def _read_stream_start(cursor: _PayloadCursor, streamed: bool) -> m.StreamStart:
    xid, first = cursor.read(_stream_start)
    return m.StreamStart(xid, first == 1)


def _read_stream_stop(cursor: _PayloadCursor, streamed: bool) -> m.StreamStop:
    return m.StreamStop()


def _read_stream_commit(cursor: _PayloadCursor, streamed: bool) -> m.StreamCommit:
    xid, flags, lsn, end, time = cursor.read(_stream_commit)
    return m.StreamCommit(xid, flags, lsn, end, time + POSTGRES_EPOCH_US)


def _read_stream_abort(cursor: _PayloadCursor, streamed: bool) -> m.StreamAbort:
    xid, subxid = cursor.read(_stream_abort)
    if cursor.offset == len(cursor.payload):
        return m.StreamAbort(xid, subxid)
    lsn, time = cursor.read(_abort_position)
    return m.StreamAbort(xid, subxid, lsn, time + POSTGRES_EPOCH_US)


def _read_begin_prepare(cursor: _PayloadCursor, streamed: bool) -> m.BeginPrepare:
    lsn, end, time, xid = cursor.read(_prepare)
    return m.BeginPrepare(lsn, end, time + POSTGRES_EPOCH_US, xid, cursor.text())


def _read_prepare(cursor: _PayloadCursor, streamed: bool) -> m.Prepare:
    stream_prepare = cursor.payload[0] == ord("p")
    flags, lsn, end, time, xid = cursor.read(_flags_prepare)
    return m.Prepare(flags, lsn, end, time + POSTGRES_EPOCH_US, xid, cursor.text(), stream_prepare)


def _read_commit_prepared(cursor: _PayloadCursor, streamed: bool) -> m.CommitPrepared:
    flags, lsn, end, time, xid = cursor.read(_flags_prepare)
    return m.CommitPrepared(flags, lsn, end, time + POSTGRES_EPOCH_US, xid, cursor.text())


def _read_rollback_prepared(cursor: _PayloadCursor, streamed: bool) -> m.RollbackPrepared:
    flags, end, rollback_end, prepared, rolled_back, xid = cursor.read(_rollback_prepared)
    times = (prepared + POSTGRES_EPOCH_US, rolled_back + POSTGRES_EPOCH_US)
    return m.RollbackPrepared(flags, end, rollback_end, *times, xid, cursor.text())


_READERS: dict[int, Callable[[_PayloadCursor, bool], m.Message]] = {
    ord("B"): _read_begin,
    ord("C"): _read_commit,
    ord("O"): _read_origin,
    ord("R"): _read_relation,
    ord("Y"): _read_type,
    ord("I"): _read_insert,
    ord("U"): _read_update,
    ord("D"): _read_delete,
    ord("T"): _read_truncate,
    ord("M"): _read_message,
    ord("S"): _read_stream_start,
    ord("E"): _read_stream_stop,
    ord("c"): _read_stream_commit,
    ord("A"): _read_stream_abort,
    ord("b"): _read_begin_prepare,
    ord("P"): _read_prepare,
    ord("p"): _read_prepare,
    ord("K"): _read_commit_prepared,
    ord("r"): _read_rollback_prepared,
}
