"""Rows of the stream: from a frame to messages in the batch, or to the policy for refused rows."""

import struct
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import NoReturn, Protocol

from bwtui.encode.avro import NoRoomError, UnchangedToastError
from bwtui.encode.compiled_encoders import Values
from bwtui.errors import BwtuiError, RefusedError, RowError
from bwtui.model.headers import make_headers
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.frames import BODY_OFFSET, PAYLOAD_OFFSET, XLOG_DATA
from bwtui.pgoutput.messages import UNCHANGED, Field, Relation, Truncate
from bwtui.pgoutput.tuples import DecodeError, split_tuple
from bwtui.recording.payloads import NoMessageReason
from bwtui.relay.routes.route import SessionRoutes, TableRoute, relation_of
from bwtui.relay.rows.batch import BATCH_BYTES, BATCH_ROWS, RECORD_OVERHEAD, OutgoingBatch
from bwtui.relay.rows.recorder import Recorder
from bwtui.relay.rows.samples import SampledCommit, Samples
from bwtui.relay.rows.side_topics import TransactionBoundaries, truncate_message
from bwtui.relay.rows.toast import IncompleteRow, RowVanished, ToastUpdate
from bwtui.relay.stream.context import RelayContext
from bwtui.sink.dead_letters import ChangeIdentity, DroppedRow

_oid = struct.Struct(">I").unpack_from
_begin = struct.Struct(">QqI").unpack_from

#: Offsets in a frame: of the first tuple's kind, after the relation's oid, and of the tuple itself.
_KIND = BODY_OFFSET + 4
TUPLE = _KIND + 1
_BEGIN, _RELATION, _INSERT, _UPDATE = 0x42, 0x52, 0x49, 0x55  # 'B', 'R', 'I', 'U'
_NEW, _OLD_FULL, _OLD_KEY = 0x4E, 0x4F, 0x4B  # 'N', 'O', 'K'
_NEW_ROWS = (_INSERT, _UPDATE)
_NOTHING: Iterator[bytes] = iter(())

#: The return value of a handler for a frame that the relay skips; only tables decide that.
LEFT_OUT = True

#: Errors to which --on-error applies. Every other error ends the session or the relay, and drops nothing.
_OF_THE_ROW = (RowError, DecodeError)


class FrameFilter(Protocol):
    """Decides on each frame of the stream before it is handled."""

    is_over: bool

    def __call__(self, data: bytes) -> bytes | None:
        """Return the frame to handle, or None to drop it; not called again once ``is_over``."""


class FrameHandlers(dict[int, Callable[[bytes], bool | None]]):
    """The handlers of messages, by tag."""

    def __missing__(self, tag: int) -> NoReturn:
        raise RefusedError(
            f"PostgreSQL sent a message that the relay did not request: {chr(tag)!r}",
            "the slot's options may have been changed, for example to two_phase; 'bwtui doctor' checks it",
        )


class RowHandler:
    """Handles the messages about rows; one transaction at a time."""

    def __init__(
        self,
        context: RelayContext,
        batch: OutgoingBatch,
        ahead: Callable[[], Iterable[bytes]] = lambda: (),
        boundaries: TransactionBoundaries | None = None,
    ) -> None:
        """``ahead`` returns frames that follow the one being handled.

        ``boundaries`` sends the messages of --transaction-topic.
        """
        self._run, self._output = context.run, context.output
        self._services, self._history = context.services, context.history
        self._batch = batch
        self._ahead = ahead
        self._boundaries = boundaries
        #: The transaction that is being read.
        self._current = batch.transaction
        self.routes = SessionRoutes(self._build, self._still_holds, self._begin_route, ahead)
        #: The relation that was announced last, with the commit LSN and ordinal at that time.
        self._announced: tuple[Relation, tuple[int, int]] | None = None
        self.handlers: dict[int, Callable[[bytes], bool | None]] = {
            ord("R"): self._on_relation,
            ord("I"): self.on_insert,
            ord("U"): self._on_update,
            ord("D"): self._on_delete,
            ord("T"): self._on_truncate,
        }

    def skip(self) -> None:
        """Note that a row was skipped without a number of its own."""
        self._announced = None

    def _on_relation(self, data: bytes) -> bool | None:
        relation = relation_of(data[PAYLOAD_OFFSET:])
        place, last = (self._current.commit_lsn, self._current.ordinal), self._announced
        if last is not None and last[1] == place and last[0].oid != relation.oid:
            # Without a row in between: PostgreSQL announces the root of a partition right before it.
            self._history.coverage.announces(relation, last[0])
        self._announced = relation, place
        if not self.routes.is_current(relation):
            self.routes.announce(relation, data[PAYLOAD_OFFSET:])
        if self.routes.are_many:
            self._forget_idle()
        # A recording stores relations separately from the frames.
        return LEFT_OUT

    def _forget_idle(self) -> None:
        # The batch's rows must be recorded while their relations are known.
        self._batch.flush()
        for oid in self.routes.forget_idle():
            self._output.recorder.forget(oid)

    def _still_holds(self, route: TableRoute) -> bool:
        self._batch.flush()
        return self._services.router.still_holds(route)

    def _build(self, relations: Sequence[Relation]) -> list[TableRoute | None]:
        # Rows read so far should not wait for the new routes, which may have to wait for a service.
        self._batch.flush()
        return self._services.router.routes(relations)

    def _begin_route(self, route: TableRoute | None) -> None:
        # The old route's messages must go first.
        self._batch.flush()
        # Routes that were built ahead begin one after the other, without a full batch in between.
        self._services.patience.calls.pulse_when_due()
        if route is not None:
            self._output.recorder.relation(route.relation)

    def on_insert(self, data: bytes) -> bool | None:
        route = self.routes[_oid(data, BODY_OFFSET)[0]]
        if route is None:
            return LEFT_OUT
        self._current.ordinal += 1
        self._batch.rows += 1
        whole = self._whole(route, data)
        fields: list[Field] | None = None
        try:
            if whole is not None:
                key, value = whole
            else:
                fields = route.split(data, TUPLE)
                try:
                    key, value = route.both(fields)
                except NoRoomError:
                    route = self._wider(route)
                    key, value = route.both(fields)
            self._send(route, "insert", key, value, None, fields)
        except _OF_THE_ROW as error:
            self._refuse(route, "insert", None, fields if whole is None else route.split(data, TUPLE), error)
        route.counters.inserts += 1
        return None

    def _on_update(self, data: bytes) -> bool | None:
        route = self.routes[_oid(data, BODY_OFFSET)[0]]
        if route is None:
            return LEFT_OUT
        self._current.ordinal += 1
        self._batch.rows += 1
        if data[_KIND] == _NEW and (whole := self._whole(route, data)):
            self._on_whole_update(route, data, *whole)
            return None
        old: list[Field] | None = None
        new: list[Field] | None = None
        try:
            at = TUPLE
            if data[_KIND] != _NEW:
                old, at = split_tuple(data, TUPLE)
                at += 1
            new = route.split(data, at)
            full = old if data[_KIND] == _OLD_FULL else None
            update = ToastUpdate(data, new, old, full is not None, self._current.xid)
            route, key, value, new = self._encode(route, update, new)
            old_key = key
            if old is not None and not self._lacks_key(route, data, old):
                old_key = route.key(old)
            if old_key != key:
                self._send(route, "delete", old_key, None, None, None)
            if value is not None:
                self._send(route, "update", key, value, full, new)
        except _OF_THE_ROW as error:
            self._refuse(route, "update", old, new, error)
        route.counters.updates += 1
        return None

    def _on_whole_update(
        self, route: TableRoute, data: bytes, key: bytes | None, value: bytes | None
    ) -> None:
        """Handle an update that keeps the key, and has no unchanged TOAST value."""
        try:
            self._send(route, "update", key, value, None, None)
        except _OF_THE_ROW as error:
            self._refuse(route, "update", None, route.split(data, TUPLE), error)
        route.counters.updates += 1

    def _whole(self, route: TableRoute, data: bytes) -> tuple[bytes | None, bytes | None] | None:
        """Return key and value of a frame's only row, unless its fields are needed as well."""
        # Unless each row needs its own handling, `BulkRows` has already tried the fast path.
        if route.run is None or not self.wants_each:
            return None
        if self._output.samples.budget > 0 or self._batch.bisector is not None:
            return None
        most = route.max_message_bytes
        messages = route.run(data, _NOTHING, PAYLOAD_OFFSET, TUPLE, 0, 1, BATCH_BYTES, most, False, {})[0]
        return messages[0][:2] if messages else None

    @property
    def wants_each(self) -> bool:
        """Return whether each message needs its own handling."""
        return self._run.settings.headers or self._boundaries is not None

    def _on_delete(self, data: bytes) -> bool | None:
        route = self.routes[_oid(data, BODY_OFFSET)[0]]
        if route is None:
            return LEFT_OUT
        self._current.ordinal += 1
        self._batch.rows += 1
        old: list[Field] | None = None
        try:
            old = route.split(data, TUPLE)
            if self._lacks_key(route, data, old):
                self._without(route, NoMessageReason.DROPPED)
            elif route.key_columns or route.refusal is not None:
                self._send(route, "delete", route.key(old), None, old, None)
            else:
                route.counters.note("unkeyed: deletes are counted but send no message")
                self._without(route, NoMessageReason.UNKEYED)
        except _OF_THE_ROW as error:
            self._refuse(route, "delete", old, None, error)
        route.counters.deletes += 1
        return None

    def _on_truncate(self, data: bytes) -> bool | None:
        message = decode(data[PAYLOAD_OFFSET:])
        assert isinstance(message, Truncate)
        routes = [route for oid in message.relation_oids if (route := self.routes[oid]) is not None]
        if not routes:
            return LEFT_OUT
        self._current.ordinal += 1
        # PostgreSQL announces tables that are truncated together like a partition after its root.
        self._history.coverage.withdraw(message.relation_oids)
        if self._batch.window is not None:
            self._batch.window.truncate([route.relation.qualified_name for route in routes])
        for route in routes:
            route.counters.truncates += 1
            if self._run.settings.truncate_topic:
                self._send_truncation(route, message)
        self._history.coverage.mark_all(
            "was truncated: its topic still holds the earlier rows",
            [route.relation.qualified_name for route in routes],
        )
        self._without(routes[0], NoMessageReason.TRUNCATED)
        return None

    def _send_truncation(self, route: TableRoute, truncate: Truncate) -> None:
        """Send the message of --truncate-topic."""
        row = self._dropped(route, "truncate", None, None)
        message = truncate_message(
            route, truncate, self._current.commit_lsn, self._current.xid, self._current.timestamp
        )
        self._batch.send_apart(route, self._run.settings.truncate_topic, message, row)

    def _lacks_key(self, route: TableRoute, data: bytes, old: Sequence[Field]) -> bool:
        """Return whether PostgreSQL sent the old row without its complete key; if so, mark the table.

        A replica identity holds no NULL. But a partition's replica identity may differ from that of its root,
        by which the RELATION message describes the table. Raises RowError if there is no coverage ledger.
        """
        if data[_KIND] != _OLD_KEY or all(old[index] is not None for index in route.key_indexes):
            return False
        name = route.relation.qualified_name
        reason = (
            "has a partition whose replica identity lacks the key: its topic may keep outdated rows of "
            "that partition"
        )
        if not self._history.coverage.mark(name, reason):
            raise RowError(
                f"the old row of {name} lacks key columns",
                "give every partition the same REPLICA IDENTITY as its root",
            )
        return True

    def _encode(
        self, route: TableRoute, update: ToastUpdate, new: list[Field]
    ) -> tuple[TableRoute, bytes | None, bytes | None, list[Field]]:
        """Encode an updated row, after `ToastFiller` has inserted its unchanged TOAST values.

        The value is None if this version of the row is skipped because the row no longer exists. The returned
        route differs from ``route`` if the old schema had no room for a placeholder.
        """
        if route.refusal is not None or UNCHANGED not in new:
            try:
                return route, *route.both(new), new
            except NoRoomError:
                wider = self._wider(route)
                return wider, *wider.both(new), new
        try:
            row = self._services.toast.fill(route, update, partial(self._rows_ahead, route))
        except RowVanished as vanished:
            route.counters.toast_superseded += 1
            self._without(route, NoMessageReason.SUPERSEDED)
            return route, route.key(vanished.row), None, vanished.row
        try:
            key, value = route.both_filled(row)
        except (UnchangedToastError, NoRoomError):
            route = self._wider(route)
            key, value = route.both_filled(row)
        self._note_filled(new, row)
        return route, key, value, row

    def _rows_ahead(
        self, route: TableRoute, cached: Values, missing: Sequence[int], most: int
    ) -> Iterator[ToastUpdate | IncompleteRow]:
        """Yield the table's next updates; with the C extension, up to ``most`` that may lack ``missing``."""
        if route.lacking is None:
            yield from self._updates_ahead(route, cached)
            return
        key = tuple((index, route.column_names[index]) for index in route.key_indexes)
        oid, columns = route.relation.oid, tuple(missing)
        for row in route.lacking(
            self._ahead(), cached, PAYLOAD_OFFSET, oid, self._current.xid, columns, key, most
        ):
            if len(row) == 3:
                yield row
            elif (update := _update(route, *row)) is not None:
                yield update
            else:
                return

    def _updates_ahead(self, route: TableRoute, parsed: Container[int]) -> Iterator[ToastUpdate]:
        """Yield the table's updates among the following frames, up to a change of the table.

        Frames whose identities are ``parsed`` are skipped without parsing them again.
        """
        xid, oid = self._current.xid, route.relation.oid
        for frame in self._ahead():
            if frame[0] != XLOG_DATA:
                continue
            tag = frame[PAYLOAD_OFFSET]
            if tag == _BEGIN:
                xid = _begin(frame, BODY_OFFSET)[2]
            elif tag in (_UPDATE, _RELATION) and _oid(frame, BODY_OFFSET)[0] == oid:
                if tag == _RELATION:
                    return
                if id(frame) in parsed:
                    continue
                if (update := _update(route, frame, xid)) is None:
                    return
                yield update

    def _wider(self, route: TableRoute) -> TableRoute:
        """Return and keep the table's route under a schema with room for values that its columns can't hold.

        Nothing is flushed in the middle of a row. The old route's messages go first all the same.
        """
        wider = self._services.router.route(route.relation, with_room=True)
        assert wider is not None
        if wider.refusal is None:
            self.routes[route.relation.oid] = wider
        return wider

    def _without(self, route: TableRoute, reason: NoMessageReason) -> None:
        self._output.recorder.without(route, reason)

    def _note_filled(self, sent: list[Field], completed: list[Field]) -> None:
        self._batch.held += self._output.recorder.filled(sent, completed)

    @property
    def values(self) -> Values:
        """The unchanged TOAST values that were read for frames to come."""
        return self._services.toast.values

    def note_values(self, route: TableRoute, frames: Sequence[bytes]) -> None:
        """Count the unchanged values of rows that `BulkRows` took, and record frames and values."""
        toast, recorder = self._services.toast, self._output.recorder
        if not recorder.is_recording:
            toast.take_all(route, frames)
            return
        for frame in frames:
            if values := toast.take(route, frame):
                sent, rest = route.split(frame, TUPLE), iter(values)
                recorder.filled(sent, [next(rest) if field is UNCHANGED else field for field in sent])
            recorder.frames.append(frame)

    def _send(
        self,
        route: TableRoute,
        operation: str,
        key: bytes | None,
        value: bytes | None,
        before: list[Field] | None,
        after: list[Field] | None,
    ) -> None:
        current = self._current
        headers = None
        if self._run.settings.headers:
            headers = make_headers(
                current.commit_lsn, current.ordinal, operation, current.xid, self._run.session, current.part
            )
        batch = self._batch
        if batch.bisector is not None:
            batch.bisector.check(current.commit_lsn, current.ordinal)
        batch.add(route, key, value, current.timestamp, headers)
        if self._boundaries is not None:
            self._boundaries.count(route, current.events, current.timestamp)
        if self._output.samples.budget > 0 and (before is not None or after is not None):
            commit = SampledCommit(
                current.commit_lsn, current.xid, current.commit_time() / 1_000_000, current.ordinal
            )
            self._output.samples.take(operation, route, key, before, after, commit, batch.span)
        if batch.bisector is not None:
            batch.bisector.name(route, route, self._dropped(route, operation, before, after))

    def _dropped(
        self, route: TableRoute, operation: str, before: list[Field] | None, after: list[Field] | None
    ) -> DroppedRow:
        identity = ChangeIdentity(self._current.commit_lsn, self._current.ordinal, self._current.xid)
        name = route.relation.qualified_name
        columns, key = route.column_names, route.key_columns
        return DroppedRow(name, route.topic, operation, identity, columns, before, after, key)

    def _refuse(
        self,
        route: TableRoute,
        operation: str,
        before: list[Field] | None,
        after: list[Field] | None,
        error: BwtuiError,
    ) -> None:
        """Drop the row by the policy, or raise RowError; `run` then confirms everything before it."""
        row = self._dropped(route, operation, before, after)
        self._output.policy.refuse(route, row, error, self._batch.span)
        self._without(route, NoMessageReason.DROPPED)


class BulkRows:
    """Takes the runs of a session's frames: consecutive new rows of one table, which the C extension encodes.

    Rows that the C extension can't encode, or that need their own handling, end a run.
    """

    def __init__(self, rows: RowHandler, batch: OutgoingBatch, samples: Samples, recorder: Recorder) -> None:
        self._rows = rows
        self._batch = batch
        self._samples = samples
        self._recorder = recorder

    def between(self, frames: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the frames that need their own handling, and take the runs between them.

        Ends with ``frames``, or when the batch is full.
        """
        if self._rows.wants_each or self._batch.bisector is not None:
            yield from frames
            return
        samples, take = self._samples, self._take
        for frame in frames:
            data = frame
            while data[0] == XLOG_DATA and data[PAYLOAD_OFFSET] in _NEW_ROWS:
                if samples.budget > 0 or data[_KIND] != _NEW:
                    break
                rest = take(data, frames)
                if rest is None:
                    return
                if rest is data:
                    break
                data = rest
            yield data

    def _take(self, data: bytes, frames: Iterator[bytes]) -> bytes | None:
        """Return the first frame that is not taken; None if the batch is full, or no more frames arrived."""
        rows, batch, recorder = self._rows, self._batch, self._recorder
        transaction = batch.transaction
        values = rows.values
        route = rows.routes[_oid(data, BODY_OFFSET)[0]]
        if route is None or route.run is None:
            return data
        messages, taken, size, held, rest = route.run(
            data,
            frames,
            PAYLOAD_OFFSET,
            TUPLE,
            transaction.timestamp,
            BATCH_ROWS - batch.rows,
            BATCH_BYTES - batch.bytes - batch.held,
            route.max_message_bytes - RECORD_OVERHEAD,
            recorder.is_recording,
            values,
        )
        if not messages:
            return rest
        batch.add_many(route, messages, size)
        if values:
            rows.note_values(route, taken)
        elif recorder.is_recording:
            recorder.frames += taken
        batch.held += held
        transaction.ordinal += len(messages)
        if data[PAYLOAD_OFFSET] == _INSERT:
            route.counters.inserts += len(messages)
        else:
            route.counters.updates += len(messages)
        return rest


def _update(route: TableRoute, frame: bytes, xid: int) -> ToastUpdate | None:
    """Return the update of a frame, or None if it is malformed: an error is raised when it is handled."""
    try:
        old, at = (None, TUPLE) if frame[_KIND:TUPLE] == b"N" else split_tuple(frame, TUPLE)
        new = route.split_partial(frame, at if old is None else at + 1)
    except _OF_THE_ROW:
        return None
    return ToastUpdate(frame, new, old, frame[_KIND] == _OLD_FULL, xid)
