"""Skip the part of the stream that Kafka already holds, then restore the normal frame handlers."""

import struct
from collections.abc import Callable
from typing import Protocol

from bwtui.model.position import Position
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.frames import BODY_OFFSET, PAYLOAD_OFFSET, POSTGRES_EPOCH_US
from bwtui.pgoutput.messages import Truncate
from bwtui.recording.format.batch import Transaction
from bwtui.relay.recording.recorder import Recorder
from bwtui.relay.row_handler import LEFT_OUT, RowHandler

_oid = struct.Struct(">I").unpack_from
_BEGIN, _COMMIT, _TRUNCATE = map(ord, "BCT")
_CHANGES = tuple(map(ord, "IUDT"))
#: Tags of messages that no row depends on.
_OTHERS = tuple(map(ord, "YOM"))


class FilterableSession(Protocol):
    """The frame handlers of a session of the stream."""

    @property
    def handlers(self) -> dict[int, Callable[[bytes], bool | None]]:
        """The handler of each frame tag."""

    @property
    def rows(self) -> RowHandler:
        """The handler of row frames, which tracks the current transaction."""


class DuplicateFilter:
    """Replaces the handlers of `RowHandler`, and records no frame, until frames are newer than a position."""

    def __init__(
        self, stream: FilterableSession, position: Position, recorder: Recorder | None = None
    ) -> None:
        self._handlers = handlers = stream.handlers
        self._rows = stream.rows
        self._position = position
        self._recorder = recorder
        self._begin, self._commit = handlers[_BEGIN], handlers[_COMMIT]
        self._usual = {tag: handlers[tag] for tag in (_COMMIT, *_CHANGES, *_OTHERS)}
        handlers[_BEGIN] = self._on_begin

    def _on_begin(self, data: bytes) -> bool | None:
        answer = self._begin(data)
        at, position = self._rows.commit_lsn, self._position
        if at > position.lsn:
            self._handlers[_BEGIN] = self._begin
            self._handlers.update(self._usual)
            return answer
        self._handlers.update(dict.fromkeys((*_CHANGES, *_OTHERS), self._pass_over))
        self._handlers[_COMMIT] = self._on_commit
        if at == position.lsn and position.ordinal is not None:
            self._handlers.update(dict.fromkeys(_CHANGES, self._count))
            self._go_on_behind(position.ordinal)
        return LEFT_OUT

    def _on_commit(self, data: bytes) -> bool | None:
        self._commit(data)
        return LEFT_OUT

    @staticmethod
    def _pass_over(data: bytes) -> bool | None:
        return LEFT_OUT

    def _count(self, data: bytes) -> bool | None:
        """Count a change as `RowHandler` does, up to the last change that Kafka holds."""
        if data[PAYLOAD_OFFSET] == _TRUNCATE:
            message = decode(data[PAYLOAD_OFFSET:])
            assert isinstance(message, Truncate)
            oids = message.relation_oids
        else:
            oids = (_oid(data, BODY_OFFSET)[0],)
        # Look up all of them, as `RowHandler` does: a route that is built once stays.
        routes = [self._rows.routes[oid] for oid in oids]
        if any(route is not None for route in routes):
            self._rows.ordinal += 1
            self._go_on_behind(self._position.ordinal or 0)
        return LEFT_OUT

    def _go_on_behind(self, ordinal: int) -> None:
        if self._rows.ordinal >= ordinal:
            self._rows.part = self._position.part
            self._rows.events = dict(self._position.events)
            if self._recorder is not None:
                rows = self._rows
                committed = rows.committed + POSTGRES_EPOCH_US
                self._recorder.resume(Transaction(rows.commit_lsn, committed, rows.xid, rows.ordinal))
            self._handlers.update(self._usual)
