"""A chunk on its way into the stream: its rows encoded, and put into the batch a few at a time."""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from bwtui.encode.avro import NoRoomError
from bwtui.errors import RefusedError, RowError
from bwtui.model.delivery import Span
from bwtui.model.headers import SESSION, Headers, make_headers
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.messages import Field
from bwtui.recording.format.batch import Without
from bwtui.relay.backfill.keys import Key
from bwtui.relay.backfill.window import Window
from bwtui.relay.batch import Batch
from bwtui.relay.careful import Careful, Policy
from bwtui.relay.recording.recorder import Recorder
from bwtui.relay.routes.route import Route
from bwtui.relay.routes.routing import Router
from bwtui.settings import RelaySettings
from bwtui.sink.dead_letter import DroppedRow, Identity
from bwtui.source.chunks.reading import Chunk

#: Rows between two looks at the clock.
_STEP = 50
#: A slice ends at so many bytes: the sink takes it in one go.
_SLICE_BYTES = 1 << 20


class _Ready(NamedTuple):
    """One row, or of a key without a row the tombstone: ``line`` is None then; ``route`` encoded it.

    ``error`` is there when it could not: nothing of it is sent. ``wanted`` is the key as it was asked for.
    """

    route: Route
    key: bytes | None
    value: bytes | None
    line: bytes | None
    error: RowError | None = None
    wanted: Key = b""


def refuse_unlike(route: Route, topic: str, spelling: str) -> None:
    """Raise RefusedError where keys that were compared there, and so, would go elsewhere, or in other bytes.

    "" is what nobody knows. To readers a key in other bytes is another key: its rows would stand beside the
    ones that are wrong, and its tombstones would delete nothing.
    """
    if topic not in ("", route.topic):
        raise RefusedError(
            f"keys of topic {topic} were compared, and the relay sends to topic {route.topic} now",
            "nothing was sent; repair again, which compares anew",
        )
    own = spelling_of(route)
    if spelling not in ("", own):
        raise RefusedError(
            f"keys of topic {topic} were compared as {said(spelling)}, and are sent as {said(own)} now",
            "nothing was sent of these; 'bwtui snapshot' sends the whole table under its keys of now, and "
            "'bwtui repair' then compares anew",
        )


def spelling_of(route: Route) -> str:
    """Return how a route writes keys: "json", or the id of their schema."""
    return "json" if route.key_schema_id is None else str(route.key_schema_id)


def said(spelling: str) -> str:
    """Return in words how keys are written."""
    if spelling.isdigit():
        return f"Avro of schema {spelling}"
    return "JSON" if spelling == "json" else "no relay writes them"


class Numbers:
    """Numbers what a run puts into the stream: no two rows have the same LSN and number."""

    def __init__(self) -> None:
        self.lsn = self.ordinal = 0

    def begin(self, lsn: int) -> None:
        """Count from 1 where the stream has come further than ever; after a session that broke it has not."""
        if lsn > self.lsn:
            self.lsn, self.ordinal = lsn, 0


class Putting(Protocol):
    """What rows need of those who put them into a stream, or beside one."""

    @property
    def settings(self) -> RelaySettings:
        """Whether messages carry headers."""

    @property
    def router(self) -> Router:
        """Knows how rows are encoded."""

    @property
    def recorder(self) -> Recorder | None:
        """Takes down what is sent, if anything does."""

    @property
    def session(self) -> bytes:
        """Identifies the run in the headers of its messages."""


class Outgoing:
    """One chunk, from the moment when it was read until all of it was handed over."""

    def __init__(
        self,
        context: Putting,
        chunk: Chunk,
        route: Route,
        keys: Sequence[Key] | None,
        refusals: Policy,
        numbers: Numbers,
    ) -> None:
        """``keys``: those that were asked for one by one; of those without a row the topic is told."""
        self._context = context
        self._route = route
        self._refusals = refusals
        self._keys = keys
        self._lines = chunk.lines
        self._at = 0
        self._ready: list[_Ready] = []
        self._put = 0
        self._numbers = numbers
        #: Whether the keys of all rows that can't be encoded are known.
        self._can_delete = True
        self.high = chunk.high
        self.is_encoded = False
        #: Whether its rows count as a snapshot's.
        self.is_first = False
        #: Messages that were handed over, tombstones among them, and what the stream had newer.
        self.rows = self.tombstones = self.left_out = 0
        #: What they are acknowledged by.
        self.spans: list[Span] = []

    @property
    def route(self) -> Route:
        """The route that its rows are encoded by."""
        return self._route

    @property
    def counts(self) -> tuple[int, int, int]:
        """Rows and tombstones that were handed over, and what was left out."""
        return self.rows, self.tombstones, self.left_out

    @property
    def is_put(self) -> bool:
        """Whether all of it was handed over."""
        return self.is_encoded and self._put >= len(self._ready)

    def encode(self, window: Window, until: float) -> bool:
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
        self._ready.append(_Ready(self._route, key, value, line))

    def _note_refused(self, line: bytes, fields: list[Field], error: RowError) -> None:
        """Take note that the row is there: it is refused in its place, and its key gets no tombstone."""
        try:
            key = self._route.key(fields)
        except RowError:
            # Which of the keys it is can't be told, nor whether something newer of it was sent.
            self._refusals.refuse(self._route, self._dropped(fields, "backfill"), error, Span())
            self._can_delete = False
        else:
            self._ready.append(_Ready(self._route, key, None, line, error))

    def _fields(self, line: bytes | None) -> list[Field]:
        # A table without columns has empty lines, which would be read as one empty column.
        return list(unescape_copy_line(line)) if line is not None and self._route.column_names else []

    def _delete_missing(self) -> None:
        """Add tombstones of the keys that were asked for and have no row."""
        there = {ready.key for ready in self._ready}
        for key in self._keys or ():
            if not self._can_delete and not isinstance(key, bytes):
                continue
            message_key = self.message_key(key)
            if message_key is not None and message_key not in there:
                there.add(message_key)
                self._ready.append(_Ready(self._route, message_key, None, None, wanted=key))

    def message_key(self, key: Key) -> bytes | None:
        """Return the bytes of a key that was asked for; None where its texts make none."""
        if isinstance(key, bytes):
            return key
        fields = self._key_fields(key)
        try:
            return self._route.key(fields)
        except RowError as error:
            self._refusals.refuse(self._route, self._dropped(fields, "delete"), error, Span())
            return None

    def _key_fields(self, key: Key) -> list[Field]:
        """Return a row that has no more than its key; nothing of one that is known by its bytes alone."""
        if isinstance(key, bytes):
            return []
        fields: list[Field] = [None] * len(self._route.column_names)
        for index, text in zip(self._route.key_indexes, key, strict=True):
            fields[index] = text.encode("utf-8", "surrogateescape")
        return fields

    def _row(self, ready: _Ready) -> list[Field]:
        """Return what a dead letter would have of it."""
        return self._key_fields(ready.wanted) if ready.line is None else self._fields(ready.line)

    def put(self, batch: Batch, window: Window, lsn: int, until: float, careful: Careful | None) -> None:
        """Put rows into the stream, which stands at ``lsn`` and between two transactions, until ``until``."""
        recorder, before, numbers = self._context.recorder, batch.handed_over, self._numbers
        numbers.begin(lsn)
        now = int(time.time() * 1000)
        batch.flush()
        batch.window, batch.received, batch.careful = None, 0.0, careful
        if recorder is not None:
            recorder.begin_rows(self._route.relation, numbers.lsn, now, numbers.ordinal)
        span = batch.span
        try:
            try:
                self._fill(batch, window, now, until)
            except RowError:
                # It ends the relay, which hands over what is in the batch: these are rows of this table.
                batch.flush()
                raise
            batch.flush()
        finally:
            if recorder is not None:
                # Of what was not handed over nothing is recorded.
                recorder.frames.clear()
                recorder.end_rows()
            batch.window, batch.careful = window, None
        # What stands between two transactions belongs to neither.
        batch.handed_over = before
        self.spans.append(span)

    def put_all(self, batch: Batch, window: Window, lsn: int) -> None:
        """Put all rows into the stream, as `put` does."""
        while not self.is_put:
            self.put(batch, window, lsn, math.inf, None)

    def _fill(self, batch: Batch, window: Window, now: int, until: float) -> None:
        """Add rows to the batch, or tombstones: in a recording they stand apart."""
        is_deleting = self._ready[self._put].line is None
        while not self.is_put and batch.bytes < _SLICE_BYTES:
            for ready in self._ready[self._put : self._put + _STEP]:
                if (ready.line is None) != is_deleting:
                    return
                self._put += 1
                self._add(batch, window, ready, now)
            if time.monotonic() >= until:
                return

    def _add(self, batch: Batch, window: Window, ready: _Ready, now: int) -> None:
        route, recorder = ready.route, self._context.recorder
        if ready.key is not None and ready.key in window:
            self.left_out += 1
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
        if batch.careful is not None:
            batch.careful.name(route, route, self._dropped(self._row(ready), operation))
        if ready.line is None:
            self.tombstones += 1
            return
        self.rows += 1
        if self.is_first:
            route.counters.snapshot_rows += 1
        else:
            route.counters.backfill_rows += 1
        if recorder is not None:
            recorder.frames.append(ready.line)
            batch.held += len(ready.line)

    def _refuse(self, batch: Batch, ready: _Ready, error: RowError) -> None:
        """Refuse a row in its place; of one that is dropped the recording has what it would have sent."""
        line, recorder = ready.line, self._context.recorder
        operation = "delete" if line is None else "backfill"
        self._refusals.refuse(ready.route, self._dropped(self._row(ready), operation), error, batch.span)
        if line is None or recorder is None or self._context.settings.on_error == "exit":
            # What stands nowhere has no number.
            self._numbers.ordinal -= 1
            return
        batch.rows += 1
        recorder.without(ready.route, Without.DROPPED)
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
        identity = Identity(self._numbers.lsn, self._numbers.ordinal, 0)
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
