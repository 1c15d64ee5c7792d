"""The streaming phase: frames in, batches out, and the confirmed LSN back.

One thread does all of it. Nothing here is done a row at a time that can be done a batch at a time.
"""

import struct
import time
from collections.abc import Callable

from bwtui.encode.avro import UnchangedToastError
from bwtui.errors import BwtuiError, RowError
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.messages import Field, Relation, Truncate
from bwtui.pgoutput.tuples import split_tuple
from bwtui.relay.ack import Acknowledgements, Span
from bwtui.relay.batch import IN_FLIGHT_BYTES, IN_FLIGHT_ROWS, Batch
from bwtui.relay.headers import make_headers
from bwtui.relay.parts import Parts, Redrive, StopRequested
from bwtui.relay.routing import Route
from bwtui.relay.toast import RowIsGone
from bwtui.relay.truncation import truncate_message
from bwtui.sink.dead_letter import DroppedRow, Identity
from bwtui.source.stream import (
    PAYLOAD_OFFSET,
    POSTGRES_EPOCH_US,
    XLOG_DATA,
    ReplicationStream,
    parse_keepalive,
)

_oid = struct.Struct(">I").unpack_from
_begin = struct.Struct(">QqI").unpack_from
_commit = struct.Struct(">QQ").unpack_from

#: Offsets in a frame: behind the tag, behind the relation's oid, and behind the first tuple's kind.
_BODY = PAYLOAD_OFFSET + 1
_KIND = _BODY + 4
_TUPLE = _KIND + 1
_NEW, _OLD_FULL = 0x4E, 0x4F  # 'N', 'O'

#: The slot is told at least this often, and at once when there is nothing else to do.
_CONFIRM_SECONDS = 1.0
_CONFIRM_IDLE_SECONDS = 0.2
_STATUS_SECONDS = 5.0
_STOP_SECONDS = 10.0
_STOP_OUTAGE_SECONDS = 2.0


class _Routes(dict[int, Route | None]):
    """Routes by the relation's oid, built when the first row comes; None is a table that is filtered out.

    Not when the RELATION comes: PostgreSQL also announces a partition whose rows all come through its root,
    and a topic of its own would stay empty for ever.
    """

    def __init__(self, build: Callable[[Relation], Route | None]) -> None:
        super().__init__()
        self._build = build
        self._announced: dict[int, Relation] = {}

    def announce(self, relation: Relation) -> None:
        """Take note of a relation that is new or has changed."""
        self._announced[relation.oid] = relation
        self.pop(relation.oid, None)

    def __missing__(self, oid: int) -> Route | None:
        route = self[oid] = self._build(self._announced[oid])
        return route


class Streaming:
    """One session of streaming, from its START_REPLICATION until it ends or breaks."""

    def __init__(
        self, parts: Parts, stream: ReplicationStream, acks: Acknowledgements, target_lsn: int | None
    ) -> None:
        """``target_lsn``: end once this LSN is confirmed."""
        self._parts = parts
        self._stream = stream
        self._acks = acks
        self._target = target_lsn
        self._batch = Batch(parts.sink, acks, parts.report)
        self._routes = _Routes(self._route)
        self._in_transaction = False
        self._commit_lsn = 0
        self._xid = 0
        self._timestamp = 0
        self._ordinal = 0
        self._confirmed = 0
        self._confirmed_at = 0.0
        self._told_at = 0.0
        self._stop_by = 0.0
        #: Rows up to this LSN are sent one at a time, to find the one that Kafka refuses.
        self.careful_until = 0
        self._last: tuple[Route, DroppedRow] | None = None
        self._handlers: dict[int, Callable[[bytes], None]] = {
            ord("B"): self._on_begin,
            ord("C"): self._on_commit,
            ord("R"): self._on_relation,
            ord("I"): self._on_insert,
            ord("U"): self._on_update,
            ord("D"): self._on_delete,
            ord("T"): self._on_truncate,
            ord("Y"): self._on_nothing,
            ord("O"): self._on_nothing,
            ord("M"): self._on_nothing,
        }

    def run(self) -> None:
        """Relay until the target is confirmed or a stop is asked for.

        Raises Redrive when messages were not delivered, ConnectionFailed or SlotLost when the stream breaks,
        and RowError when a row ends the relay.
        """
        try:
            self._loop()
        except StopRequested:
            pass
        except RowError:
            self._finish()
            raise
        self._finish()

    def _loop(self) -> None:
        while self._target is None or self._acks.confirmed < self._target:
            if self._is_time_to_stop():
                return
            if not self._step() and self._acks.is_idle:
                self._stream.wait(0.25)

    def _is_time_to_stop(self) -> bool:
        """Whether a stop was asked for; the open transaction is read to its end, if that does not take long.

        A restart then has nothing to repeat.
        """
        if not self._parts.stop_requested():
            return False
        self._stop_by = self._stop_by or time.monotonic() + _STOP_SECONDS
        return not self._in_transaction or time.monotonic() > self._stop_by

    def pulse(self, seconds: float) -> None:
        """Wait, keep server and spans going, and raise StopRequested or Redrive when it is time to."""
        self._parts.sink.poll(seconds)
        self._settle(idle=False)
        if self._parts.stop_requested():
            raise StopRequested

    @property
    def begun_lsn(self) -> int:
        """Where the newest transaction of which anything was read commits."""
        return self._commit_lsn

    def abandon(self) -> None:
        """Close the session at once; nothing happens where `run` ended in order."""
        self._stream.finish()

    # -- one turn of the loop ------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Read a batch, hand it over, and confirm; return whether there was anything to read."""
        self._parts.samples.refill()
        had_data = self._read()
        span = self._batch.flush()
        if self.careful_until:
            self._settle_one(span)
        if not had_data and not self._acks.is_idle:
            # Deliveries and new data both end this wait soon: the stream's socket, or 5 ms.
            self._stream.wait(0.005)
        self._parts.sink.poll(0)
        self._settle(idle=not had_data)
        while self._acks.bytes_in_flight > IN_FLIGHT_BYTES or self._parts.sink.queued() > IN_FLIGHT_ROWS:
            self._parts.sink.poll(0.02)
            self._settle(idle=False)
            if self._is_time_to_stop():
                break
        return had_data

    def _read(self) -> bool:
        """Handle frames until the batch is full or nothing more has arrived; False when there was none."""
        stream, batch, handlers = self._stream, self._batch, self._handlers
        had_data = False
        while True:
            frame = stream.read()
            if frame is None:
                if not stream.wait(0):
                    return had_data
                frame = stream.read()
                if frame is None:
                    continue
            had_data = True
            data = bytes(frame)
            if data[0] == XLOG_DATA:
                handlers[data[PAYLOAD_OFFSET]](data)
                if batch.is_full() or (self.careful_until and (batch.rows or batch.span.lsn is not None)):
                    return True
            else:
                self._on_keepalive(data)

    def _settle(self, *, idle: bool) -> None:
        """Take what was delivered, and tell the server when it is time."""
        failures = self._parts.policy.undelivered(self._parts.sink.take_failures())
        if failures:
            raise Redrive(failures)
        report, acks = self._parts.report, self._acks
        acks.advance()
        report.outage(self._parts.sink.outage())
        report.confirmed_lsn = acks.confirmed
        report.in_flight = self._parts.sink.queued()
        report.in_flight_bytes = acks.bytes_in_flight
        report.durable = report.messages - report.in_flight
        now = time.monotonic()
        pause = _CONFIRM_IDLE_SECONDS if idle and acks.is_idle else _CONFIRM_SECONDS
        moved = acks.confirmed > self._confirmed and now - self._confirmed_at >= pause
        if moved or now - self._told_at >= _STATUS_SECONDS:
            self._confirm(now)

    def _confirm(self, now: float) -> None:
        """Remember the LSN first, then send it: see `bwtui.relay.memory`."""
        lsn = self._acks.confirmed
        if lsn > self._confirmed:
            self._parts.memory.remember(lsn)
            self._confirmed = lsn
            self._confirmed_at = now
        self._told_at = now
        self._stream.send_status(self._confirmed)

    def _settle_one(self, span: Span) -> None:
        """Wait for the one row in ``span``; drop it by the policy when Kafka refuses it."""
        sink, policy = self._parts.sink, self._parts.policy
        failures = policy.undelivered(sink.take_failures())
        while span.pending > span.failed:
            sink.poll(0.1)
            if self._parts.stop_requested():
                raise StopRequested
            failures += policy.undelivered(sink.take_failures())
        if failures:
            if self._last is None or any(failure.is_outage for failure in failures):
                raise Redrive(failures)
            error = RowError(failures[0].reason, failures[0].hint)
            policy.refuse(*self._last, error, self._batch.span)
            span.pending = span.failed = 0
        if self._acks.advance() >= self.careful_until:
            self.careful_until = 0

    def _finish(self) -> None:
        """Let what is in flight arrive, confirm it, and end the stream in order."""
        self._batch.flush()
        sink, acks = self._parts.sink, self._acks
        deadline = time.monotonic() + (_STOP_OUTAGE_SECONDS if sink.outage() else _STOP_SECONDS)
        while sink.queued() and time.monotonic() < deadline:
            sink.poll(0.05)
        sink.poll(0)
        acks.advance()
        self._parts.report.confirmed_lsn = acks.confirmed
        self._parts.report.in_flight = sink.queued()
        self._confirm(time.monotonic())
        self._stream.end()

    # -- frames --------------------------------------------------------------------------------------------

    def _on_keepalive(self, data: bytes) -> None:
        wal_end, reply_requested = parse_keepalive(data)
        self._parts.report.server_lsn = max(self._parts.report.server_lsn, wal_end)
        if not self._in_transaction:
            self._batch.flush()
            self._acks.keepalive(wal_end)
        if reply_requested:
            self._acks.advance()
            self._confirm(time.monotonic())

    def _on_begin(self, data: bytes) -> None:
        self._commit_lsn, commit_time, self._xid = _begin(data, _BODY)
        self._timestamp = (commit_time + POSTGRES_EPOCH_US) // 1000
        self._ordinal = 0
        self._in_transaction = True

    def _on_commit(self, data: bytes) -> None:
        _, end_lsn = _commit(data, _BODY + 1)
        self._batch.commit(end_lsn)
        self._in_transaction = False
        report = self._parts.report
        report.transactions += 1
        report.received_lsn = end_lsn
        report.commit_time = self._timestamp / 1000

    def _on_relation(self, data: bytes) -> None:
        relation = decode(data[PAYLOAD_OFFSET:])
        assert isinstance(relation, Relation)
        known = self._routes.get(relation.oid)
        # Under FULL a RELATION does not say which columns are the key, so that may have changed.
        same = known is not None and known.relation == relation and relation.replica_identity != "f"
        if same and known is not None and known.refusal is None:
            return
        self._routes.announce(relation)

    def _route(self, relation: Relation, *, placeholders: bool = False) -> Route | None:
        # The old route's messages go first, and the new one may have to wait for a service.
        self._batch.flush()
        return self._parts.router.route(relation, placeholders=placeholders)

    def _on_nothing(self, data: bytes) -> None:
        """TYPE, ORIGIN and MESSAGE say nothing that a row needs."""

    def _on_insert(self, data: bytes) -> None:
        route = self._routes[_oid(data, _BODY)[0]]
        if route is None:
            return
        self._ordinal += 1
        self._batch.rows += 1
        fields: list[Field] | None = None
        try:
            fields = route.split(data, _TUPLE)
            key, value = route.both(fields)
            self._send(route, "insert", key, value, None, fields)
        except BwtuiError as error:
            self._refuse(route, "insert", None, fields, error)
        route.counters.inserts += 1

    def _on_update(self, data: bytes) -> None:
        route = self._routes[_oid(data, _BODY)[0]]
        if route is None:
            return
        self._ordinal += 1
        self._batch.rows += 1
        old: list[Field] | None = None
        new: list[Field] | None = None
        try:
            at = _TUPLE
            if data[_KIND] != _NEW:
                old, at = split_tuple(data, _TUPLE)
                at += 1
            new = route.split(data, at)
            full = old if data[_KIND] == _OLD_FULL else None
            route, key, value, new = self._encode(route, old, new, full=full is not None)
            old_key = route.key(old) if old is not None else key
            if old_key != key:
                self._send(route, "delete", old_key, None, None, None)
            if value is not None:
                self._send(route, "update", key, value, full, new)
        except BwtuiError as error:
            self._refuse(route, "update", old, new, error)
        route.counters.updates += 1

    def _on_delete(self, data: bytes) -> None:
        route = self._routes[_oid(data, _BODY)[0]]
        if route is None:
            return
        self._ordinal += 1
        self._batch.rows += 1
        old: list[Field] | None = None
        try:
            old = route.split(data, _TUPLE)
            if route.key_columns or route.refusal is not None:
                self._send(route, "delete", route.key(old), None, old, None)
            else:
                route.counters.note("unkeyed: deletes are counted, and send no message")
        except BwtuiError as error:
            self._refuse(route, "delete", old, None, error)
        route.counters.deletes += 1

    def _on_truncate(self, data: bytes) -> None:
        message = decode(data[PAYLOAD_OFFSET:])
        assert isinstance(message, Truncate)
        topic = self._parts.settings.truncate_topic
        for oid in message.relation_oids:
            route = self._routes[oid]
            if route is not None:
                route.counters.truncates += 1
                route.counters.note("truncated: the topic still holds the rows from before")
                if topic:
                    # Behind the rows that came before it, in whatever batch they are.
                    self._batch.flush()
                    told = truncate_message(route, message, self._commit_lsn, self._xid, self._timestamp)
                    self._parts.sink.send(topic, [told], self._batch.span)

    # -- rows ----------------------------------------------------------------------------------------------

    def _encode(
        self, route: Route, old: list[Field] | None, new: list[Field], *, full: bool
    ) -> tuple[Route, bytes | None, bytes | None, list[Field]]:
        """Encode an updated row, whose unchanged TOAST values `ToastFill` puts in first.

        The value is None when this version of the row is passed over, because the row is gone by now. The
        route is another one when the old one's schema had no room for a placeholder.
        """
        try:
            return route, *route.both(new), new
        except UnchangedToastError:
            pass
        try:
            row = self._parts.toast.fill(route, new, old, full=full)
        except RowIsGone as gone:
            route.counters.toast_superseded += 1
            return route, route.key(gone.row), None, gone.row
        try:
            return route, *route.both_filled(row), row
        except UnchangedToastError:
            wider = self._route(route.relation, placeholders=True)
        assert wider is not None
        self._routes[route.relation.oid] = wider
        return wider, *wider.both_filled(row), row

    def _send(
        self,
        route: Route,
        operation: str,
        key: bytes | None,
        value: bytes | None,
        before: list[Field] | None,
        after: list[Field] | None,
    ) -> None:
        parts = self._parts
        headers = None
        if parts.settings.headers:
            headers = make_headers(self._commit_lsn, self._ordinal, operation, self._xid, parts.session)
        self._batch.add(route, key, value, self._timestamp, headers)
        if parts.samples.budget > 0 and (before is not None or after is not None):
            commit = (self._commit_lsn, self._xid, self._timestamp / 1000)
            parts.samples.take(
                operation, route.relation, route.topic, route.key_columns, before, after, commit
            )
        if self.careful_until:
            self._last = (route, self._dropped(route, operation, before, after))

    def _dropped(
        self, route: Route, operation: str, before: list[Field] | None, after: list[Field] | None
    ) -> DroppedRow:
        identity = Identity(self._commit_lsn, self._ordinal, self._xid)
        name = route.relation.qualified_name
        return DroppedRow(name, route.topic, operation, identity, route.column_names, before, after)

    def _refuse(
        self,
        route: Route,
        operation: str,
        before: list[Field] | None,
        after: list[Field] | None,
        error: BwtuiError,
    ) -> None:
        """Drop the row by the policy, or raise RowError; `run` then confirms everything before it."""
        row = self._dropped(route, operation, before, after)
        self._parts.policy.refuse(route, row, error, self._batch.span)
