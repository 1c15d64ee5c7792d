"""Encode the rows of a chunk, and add them to the stream's batch a few at a time."""

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from bwtui.encode.avro import NoRoomError
from bwtui.errors import BwtuiError, RefusedError, RowError, ServiceRefused
from bwtui.model.delivery import DeliverySpan
from bwtui.model.headers import SESSION, Headers, make_headers
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.messages import Field
from bwtui.recording.payloads import NoMessageReason
from bwtui.relay.history.backfill_store import Key
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.routes.routing import Router
from bwtui.relay.rows.batch import OutgoingBatch
from bwtui.relay.rows.batch_bisector import BatchBisector, RefusedRowPolicy, RestartFromConfirmed
from bwtui.relay.rows.chunk_window import ChunkWindow
from bwtui.relay.rows.policy import RowPolicy
from bwtui.relay.rows.recorder import Recorder
from bwtui.settings import RelaySettings
from bwtui.sink.dead_letters import ChangeIdentity, DroppedRow
from bwtui.sink.destination import DeliveryFailure
from bwtui.source.snapshot import Chunk


class BackfillRowPolicy:
    """Takes the place of a `RowPolicy` for backfilled rows that Kafka or their encoder refuses.

    Under --on-error log such a row is dropped like any other. Under --on-error exit the request fails, and
    the stream continues: none of its own rows was refused, and a restart would meet the same row again. A
    topic that accepts nothing fails the request, too, and the stream is read again after that; if the stream
    itself has rows for that topic, these end the relay.
    """

    def __init__(self, policy: RowPolicy, on_error: str, topic: str = "") -> None:
        """``topic`` is the topic of the rows."""
        self._policy = policy
        self._is_exit = on_error == "exit"
        self._topic = topic
        #: Rows and tombstones that were dropped and stored as dead letters.
        self.dropped = 0
        #: Why the request has failed: because of a row, or because its topic accepts nothing.
        self.error: BwtuiError | None = None
        self.shut: ServiceRefused | None = None

    def refuse(self, route: TableRoute, row: DroppedRow, error: BwtuiError, span: DeliverySpan) -> None:
        """Drop ``row``, or note that the request has failed because of it."""
        if self._is_exit:
            self.error = self.error or error
            return
        self._policy.refuse(route, row, error, span)
        self.dropped += 1

    def claim_failures(
        self, failures: list[DeliveryFailure], spans: Collection[DeliverySpan]
    ) -> list[DeliveryFailure]:
        """Note if the topic accepts nothing, and return ``failures``; those in ``spans`` then end nothing."""
        return [self._as_outage(failure) if failure.span in spans else failure for failure in failures]

    def _as_outage(self, failure: DeliveryFailure) -> DeliveryFailure:
        if not failure.is_setup or failure.topic != self._topic:
            return failure
        self.shut = self.shut or ServiceRefused(failure.reason, failure.hint)
        return replace(failure, is_setup=False, is_outage=True)

    def undelivered(self, failures: list[DeliveryFailure]) -> list[DeliveryFailure]:
        """See `RowPolicy.undelivered`, also for its errors; all ``failures`` are of backfilled rows."""
        failures = [self._as_outage(failure) for failure in failures]
        if self.shut is not None:
            raise RestartFromConfirmed(failures)
        return self._policy.undelivered(failures)


#: Rows between two checks of the clock.
_STEP = 50
#: Maximum bytes of a slice, which the sink takes at once.
_SLICE_BYTES = 1 << 20


class _EncodedRow(NamedTuple):
    """One row, or the tombstone of a key without a row: then ``line`` is None; ``route`` encoded it.

    ``error`` is set if the row could not be encoded; nothing of it is sent. ``requested_key`` is the key as
    requested.
    """

    route: TableRoute
    key: bytes | None
    value: bytes | None
    line: bytes | None
    error: RowError | None = None
    requested_key: Key = b""


def refuse_unlike(route: TableRoute, topic: str, spelling: str) -> None:
    """Raise RefusedError if compared keys would go to a different topic, or be encoded differently.

    An empty ``topic`` or ``spelling`` means that it was not recorded. To consumers a key in different bytes
    is a different key: its rows would be next to the wrong ones, and its tombstones would delete nothing.
    """
    if topic not in ("", route.topic):
        raise RefusedError(
            f"the keys were compared with topic {topic}, but the relay now sends to topic {route.topic}",
            "nothing was sent; run 'bwtui repair' again, which repeats the comparison",
        )
    current = spelling_of(route)
    if spelling not in ("", current):
        raise RefusedError(
            f"the table's key has changed: the keys of topic {topic} were compared as "
            f"{spelling_text(spelling)}, but the relay now sends them as {spelling_text(current)}",
            "none of these was sent; run 'bwtui repair' again, which compares the table with its present key",
        )


def spelling_of(route: TableRoute) -> str:
    """Return the encoding of a route's keys: "json", or the id of their schema."""
    return "json" if route.key_schema_id is None else str(route.key_schema_id)


def spelling_text(spelling: str) -> str:
    """Return a description of a key encoding."""
    if spelling.isdigit():
        return f"Avro with schema id {spelling}"
    return "JSON" if spelling == "json" else "an encoding that no relay writes"


class RowNumbers:
    """Numbers the backfilled rows of a run: no two rows have the same LSN and number."""

    def __init__(self) -> None:
        self.lsn = self.ordinal = 0

    def begin(self, lsn: int) -> None:
        """Restart at 1 if the stream is further than ever before; after a broken session it is not."""
        if lsn > self.lsn:
            self.lsn, self.ordinal = lsn, 0


@dataclass(frozen=True, slots=True)
class ChunkContext:
    """The part of a run that chunks need."""

    settings: RelaySettings
    router: Router
    recorder: Recorder
    session: bytes


class OutgoingChunk:
    """One chunk, from the moment it was read until all of it was handed over."""

    def __init__(
        self,
        context: ChunkContext,
        chunk: Chunk,
        route: TableRoute,
        keys: Sequence[Key] | None,
        refusals: RefusedRowPolicy,
        numbers: RowNumbers,
    ) -> None:
        """``keys`` are those that were requested one by one; keys without a row get tombstones."""
        self._context = context
        self._route = route
        self._refusals = refusals
        self._keys = keys
        self._lines = chunk.lines
        self._at = 0
        self._ready: list[_EncodedRow] = []
        self._put = 0
        self._numbers = numbers
        #: True if the keys of all rows that can't be encoded are known.
        self._can_delete = True
        self.is_encoded = False
        #: Whether its rows count as rows of a snapshot.
        self.is_first = False
        #: Rows and tombstones that were handed over, and those left out since the stream has newer ones.
        self.rows = self.tombstones = self.skipped = 0
        #: The spans that acknowledge them.
        self.spans: list[DeliverySpan] = []

    @property
    def route(self) -> TableRoute:
        """The route that its rows are encoded by."""
        return self._route

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of rows and tombstones that were handed over, and of those that were left out."""
        return self.rows, self.tombstones, self.skipped

    @property
    def is_put(self) -> bool:
        """Whether all of it was handed over."""
        return self.is_encoded and self._put >= len(self._ready)

    def encode(self, window: ChunkWindow, until: float) -> bool:
        """Encode rows until ``until``, by the monotonic clock; the last call narrows the ``window``."""
        while self._at < len(self._lines):
            for line in self._lines[self._at : self._at + _STEP]:
                self._encode(line)
                self._at += 1
            if time.monotonic() >= until:
                return False
        self._delete_missing()
        window.narrow([ready.key for ready in self._ready])
        self.is_encoded = True
        return True

    def _encode(self, line: bytes) -> None:
        fields = self._fields(line)
        try:
            try:
                key, value = self._route.both(fields)
            except NoRoomError:
                wider = self._context.router.route(self._route.relation, with_room=True)
                assert wider is not None
                self._route = wider
                key, value = wider.both(fields)
        except RowError as error:
            self._note_refused(line, fields, error)
            return
        self._ready.append(_EncodedRow(self._route, key, value, line))

    def _note_refused(self, line: bytes, fields: list[Field], error: RowError) -> None:
        """Note that the row exists: it is refused in its place, and its key gets no tombstone."""
        try:
            key = self._route.key(fields)
        except RowError:
            # The row's key is unknown, and so is whether something newer of it was sent.
            self._refusals.refuse(self._route, self._dropped(fields, "backfill"), error, DeliverySpan())
            self._can_delete = False
        else:
            self._ready.append(_EncodedRow(self._route, key, None, line, error))

    def _fields(self, line: bytes | None) -> list[Field]:
        # A table without columns has empty lines, which would be read as one empty column.
        return list(unescape_copy_line(line)) if line is not None and self._route.column_names else []

    def _delete_missing(self) -> None:
        """Add tombstones for requested keys without a row."""
        there = {ready.key for ready in self._ready}
        for key in self._keys or ():
            if not self._can_delete and not isinstance(key, bytes):
                continue
            message_key = self.message_key(key)
            if message_key is not None and message_key not in there:
                there.add(message_key)
                self._ready.append(_EncodedRow(self._route, message_key, None, None, requested_key=key))

    def message_key(self, key: Key) -> bytes | None:
        """Return the bytes of a requested key; None if its texts can't be encoded."""
        if isinstance(key, bytes):
            return key
        fields = self._key_fields(key)
        try:
            return self._route.key(fields)
        except RowError as error:
            self._refusals.refuse(self._route, self._dropped(fields, "delete"), error, DeliverySpan())
            return None

    def _key_fields(self, key: Key) -> list[Field]:
        """Return a row that has only its key; empty for a key that is given by its bytes alone."""
        if isinstance(key, bytes):
            return []
        fields: list[Field] = [None] * len(self._route.column_names)
        for index, text in zip(self._route.key_indexes, key, strict=True):
            fields[index] = text.encode("utf-8", "surrogateescape")
        return fields

    def _row(self, ready: _EncodedRow) -> list[Field]:
        """Return the fields for a dead letter."""
        return self._key_fields(ready.requested_key) if ready.line is None else self._fields(ready.line)

    def put(
        self, batch: OutgoingBatch, window: ChunkWindow, lsn: int, until: float, careful: BatchBisector | None
    ) -> None:
        """Add rows until ``until`` to the stream, which is at ``lsn`` and between two transactions."""
        recorder, before, numbers = self._context.recorder, batch.handed_over, self._numbers
        numbers.begin(lsn)
        now = int(time.time() * 1000)
        batch.flush()
        batch.window, batch.received, batch.bisector = None, 0.0, careful
        recorder.begin_rows(self._route.relation, numbers.lsn, now, numbers.ordinal)
        span = batch.span
        try:
            try:
                self._fill(batch, window, now, until)
            except RowError:
                # This error ends the relay, which hands over the rest of the batch: these are rows of this
                # table.
                batch.flush()
                raise
            batch.flush()
        finally:
            # Rows that were not handed over are not recorded.
            recorder.frames.clear()
            recorder.end_rows()
            batch.window, batch.bisector = window, None
        # Backfilled rows between two transactions belong to neither.
        batch.handed_over = before
        self.spans.append(span)

    def put_all(self, batch: OutgoingBatch, window: ChunkWindow, lsn: int) -> None:
        """Add all rows to the stream, as `put` does."""
        while not self.is_put:
            self.put(batch, window, lsn, math.inf, None)

    def _fill(self, batch: OutgoingBatch, window: ChunkWindow, now: int, until: float) -> None:
        """Add rows to the batch, or tombstones: a recording has them in separate batches."""
        is_deleting = self._ready[self._put].line is None
        while not self.is_put and batch.bytes < _SLICE_BYTES:
            for ready in self._ready[self._put : self._put + _STEP]:
                if (ready.line is None) != is_deleting:
                    return
                self._put += 1
                self._add(batch, window, ready, now)
            if time.monotonic() >= until:
                return

    def _add(self, batch: OutgoingBatch, window: ChunkWindow, ready: _EncodedRow, now: int) -> None:
        route, recorder = ready.route, self._context.recorder
        if ready.key is not None and ready.key in window:
            self.skipped += 1
            return
        operation = "delete" if ready.line is None else "backfill"
        self._numbers.ordinal += 1
        try:
            if ready.error is not None:
                raise ready.error
            batch.add(route, ready.key, ready.value, now, self._headers(operation))
        except RowError as error:
            self._refuse(batch, ready, error)
            return
        batch.rows += 1
        if batch.bisector is not None:
            batch.bisector.name(route, route, self._dropped(self._row(ready), operation))
        if ready.line is None:
            self.tombstones += 1
            return
        self.rows += 1
        if self.is_first:
            route.counters.snapshot_rows += 1
        else:
            route.counters.backfill_rows += 1
        if recorder.is_recording:
            recorder.frames.append(ready.line)
            batch.held += len(ready.line)

    def _refuse(self, batch: OutgoingBatch, ready: _EncodedRow, error: RowError) -> None:
        """Refuse a row in its place; the recording contains a dropped row as it would have been sent."""
        line, recorder = ready.line, self._context.recorder
        operation = "delete" if line is None else "backfill"
        self._refusals.refuse(ready.route, self._dropped(self._row(ready), operation), error, batch.span)
        if line is None or not recorder.is_recording or self._context.settings.on_error == "exit":
            # A row that is stored nowhere has no number.
            self._numbers.ordinal -= 1
            return
        batch.rows += 1
        recorder.without(ready.route, NoMessageReason.DROPPED)
        recorder.frames.append(line)
        batch.held += len(line)

    def _headers(self, operation: str) -> Headers:
        session = self._context.session
        if not self._context.settings.headers:
            return [(SESSION, session)]
        return make_headers(self._numbers.lsn, self._numbers.ordinal, operation, 0, session)

    def _dropped(self, fields: list[Field], operation: str) -> DroppedRow:
        route = self._route
        name = route.relation.qualified_name
        identity = ChangeIdentity(self._numbers.lsn, self._numbers.ordinal, 0)
        return DroppedRow(
            name,
            route.topic,
            operation,
            identity,
            route.column_names,
            None,
            fields or None,
            route.key_columns,
        )
