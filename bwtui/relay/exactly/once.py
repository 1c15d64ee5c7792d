"""Exactly once, over all sessions of a run: where each begins, and where its Kafka transactions may end."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

from confluent_kafka import KafkaException, Producer

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.kafka.config import client_config
from bwtui.model.delivery import Span
from bwtui.model.position import Chunks, Position
from bwtui.relay.backfill.beside import Beside
from bwtui.relay.backfill.beside import Stream as BesideStream
from bwtui.relay.backfill.task import Task
from bwtui.relay.context import Redrive, RelayContext, check_stop
from bwtui.relay.exactly.probing import Probing, Refused, WholePolicy
from bwtui.relay.exactly.skipping import Skipping
from bwtui.relay.exactly.skipping import Stream as FrameStream
from bwtui.relay.memory import SlotMemory
from bwtui.settings import RelaySettings
from bwtui.sink.base import DeliveryFailure
from bwtui.sink.positions import Positions
from bwtui.sink.transactions import TransactionalSink
from bwtui.source.slot import SlotState

_COMMIT_SECONDS = 30.0
_WAIT_SECONDS = 0.05
#: A position says of so many tasks how far they are; one is worked on at a time.
_TASKS = 8


class Stream(BesideStream, FrameStream, Protocol):
    """A session of the stream."""

    @property
    def careful_until(self) -> int:
        """See `bwtui.relay.streaming.Streaming`."""

    def without_care(self) -> None:
        """Go on as usual in a session that began with care."""


class Exactly:
    """What one run knows of where its slot stands in Kafka."""

    def __init__(self, settings: RelaySettings, sink: TransactionalSink, session: bytes) -> None:
        self._settings = settings
        self._sink = sink
        self._session = session.hex()
        self._positions = Positions(settings, client_config(settings))
        self._tables = repr((settings.tables, settings.exclude_tables, settings.allow_unkeyed))
        self._transactional_id = ""
        self.position = Position("", "", "")
        #: Of chunks that were sent since the last mark, and of those before.
        self.chunks: Chunks = {}
        sink.topic = self._positions.topic
        sink.is_fenced = self._fenced

    def recall(self, identity: tuple[str, str, str], slot: SlotState | None, memory: SlotMemory) -> None:
        """Read the position back, and put it beside what the relay remembers by itself.

        Raises RefusedError and ConnectionFailed.
        """
        self.position = Position(*identity)
        self._transactional_id = f"bwtui-{identity[0]}-{identity[2]}"
        self._positions.prepare()
        last = self._positions.last(self.position.key)
        if last is None:
            return
        self.position = last
        if last.phase == "stream":
            confirmed = max(last.passed, slot.confirmed_lsn if slot is not None else 0)
            memory.recall(confirmed, last.lsn + 1, last.timeline)

    def is_torn(self, slot: SlotState | None) -> bool:
        """Whether the slot was made by a snapshot that never was committed."""
        position = self.position
        return position.phase == "snapshot" and slot is not None and slot.confirmed_lsn == position.passed

    def begin(self, *, one_by_one: bool = False, snapshot: int = 0) -> tuple[Producer, Position]:
        """Return a producer of our own, and where the stream stands in Kafka; any thread may call it.

        ``snapshot``: the LSN of the one that begins, which is noted before any of its rows. Whoever was
        fenced can read in the topic who has done it. Raises ConnectionFailed, RefusedError.
        """
        key = self.position.key
        producer = self._sink.connect(self._transactional_id, snapshot=bool(snapshot), one_by_one=one_by_one)
        # Only now: nobody else's transaction is open any more, and none comes.
        last = self._positions.last(key) or self.position
        if snapshot:
            last = replace(last, lsn=0, ordinal=None, part=0, passed=snapshot, phase="snapshot", chunks={})
        now = replace(last, session=self._session)
        try:
            producer.begin_transaction()
            producer.produce(self._positions.topic, now.to_json(), key, 0)
            producer.commit_transaction(_COMMIT_SECONDS)
        except KafkaException as error:
            raise ConnectionFailed(
                f"Kafka did not commit the relay's position: {error.args[0].str()}",
                f"check that the relay's user may write to topic {self._positions.topic}",
            ) from error
        return producer, now

    def mine(self, lsn: int, ordinal: int | None, part: int, passed: int, timeline: int) -> Position:
        """Return the position of what was sent so far."""
        return Position(
            *(self.position.system, self.position.database, self.position.slot),
            timeline,
            lsn,
            ordinal,
            part,
            max(passed, self.position.passed),
            "stream",
            self._tables,
            self._session,
            self.chunks,
        )

    def note_chunk(self, task: Task) -> None:
        """Have the next position say how far ``task`` is: its rows were sent since the one before."""
        others = {id: said for id, said in self.chunks.items() if id != task.id}
        self.chunks = dict([*others.items(), (task.id, task.progress())][-_TASKS:])

    def refusal(self, spans: Sequence[Span]) -> RefusedError | None:
        """Return that Kafka refuses a message of ``spans``, if it does."""
        for failure in self._sink.refused:
            if failure.span in spans:
                return RefusedError(failure.reason, f"{failure.hint}; then ask for the rows again")
        return None

    def check_tables(self, position: Position) -> None:
        """Refuse to go on within a transaction whose changes are counted otherwise now."""
        if position.ordinal is not None and position.tables != self._tables:
            raise RefusedError(
                "Kafka has a part of a transaction, and other tables are chosen since",
                "start once with --table, --exclude-table and --allow-unkeyed as before; then change them",
            )

    def _fenced(self) -> str:
        last = self._positions.last(self.position.key)
        if last is None or last.session == self._session:
            return ""
        return f"another relay has taken slot {self._settings.slot} over: Kafka has fenced this one"

    # -- a snapshot, which is one transaction --------------------------------------------------------------

    def begin_snapshot(self, context: RelayContext, lsn: int) -> None:
        """Begin the one transaction of a snapshot at ``lsn``. Raises ConnectionFailed and RefusedError."""
        producer, self.position = context.patience.calls.make(partial(self.begin, snapshot=lsn))
        self._sink.begin(producer, snapshot=True)

    def end_snapshot(self, context: RelayContext, lsn: int) -> None:
        """Commit it. Raises ConnectionFailed where Kafka does not: then the next start takes another."""
        # What commits at the LSN itself comes by the stream.
        commit = self._sink.commit_now(self.mine(lsn - 1, None, 0, lsn, 0))
        while not commit.wait(_WAIT_SECONDS):
            check_stop(context.stop_requested)
        if commit.error is not None:
            raise ConnectionFailed(
                f"Kafka did not commit the snapshot: {commit.error.str()}",
                "start again for a new snapshot; one that takes longer than the brokers' "
                "transaction.max.timeout.ms can't be committed",
            )
        self._sink.poll(0)


class ExactlyOnce:
    """Rows put into the stream, and around all of it Kafka's transactions: a `Beside`."""

    def __init__(self, context: RelayContext, exactly: Exactly, inner: Beside) -> None:
        sink, policy = context.sink, context.policy
        assert isinstance(sink, TransactionalSink) and isinstance(policy, WholePolicy)
        self._sink, self._policy = sink, policy
        self._context = context
        self._exactly = exactly
        self._inner = inner
        self._stream: Stream | None = None
        #: What is known to be refused, and whether it is looked for.
        self._refused: Refused = {}
        self._is_careful = False
        sink.may_split = self._may_split

    @property
    def pause(self) -> float:
        """See `bwtui.relay.backfill.beside.Beside`."""
        return self._inner.pause

    @property
    def wants_boundary(self) -> bool:
        """Whether rows, or a commit, wait for the end of a transaction."""
        return self._sink.wants_boundary or self._inner.wants_boundary

    def begin_session(self, stream: BesideStream) -> None:
        """Read where the stream stands in Kafka, and leave out what is in."""
        self._stream = session = cast(Stream, stream)
        # After an outage nobody is at fault.
        is_careful = bool(session.careful_until) and (self._policy.is_sought or bool(self._sink.refused))
        self._policy.is_sought = False
        if is_careful:
            careful = Probing(self._sink, self._policy, stream.while_settling, self._refused)
            stream.batch.careful = careful
        else:
            session.without_care()
        position = self._begin(is_careful=is_careful)
        self._exactly.check_tables(position)
        last = self._context.memory.last
        if last is not None:
            # What a history lacks with which the relay goes on all the same.
            position = position.limited(last.sent())
        # A chunk that was sent and not committed is sent again.
        self._exactly.position, self._exactly.chunks = position, dict(position.chunks)
        Skipping(session, position)
        self._inner.begin_session(stream)

    def _begin(self, *, is_careful: bool) -> Position:
        context = self._context
        producer, position = context.patience.ask(
            context.destination.service.name, partial(self._exactly.begin, one_by_one=is_careful)
        )
        self._sink.begin(producer)
        self._is_careful = self._sink.is_eager = self._policy.is_alone = is_careful
        return position

    def end_session(self) -> None:
        """Give up what is under way."""
        self._inner.end_session()
        self._stream = None

    def own(self, failures: list[DeliveryFailure]) -> list[DeliveryFailure]:
        """See `bwtui.relay.backfill.beside.Beside`."""
        return self._inner.own(failures)

    def turn(self, position: int, seconds: float, *, at_boundary: bool, is_idle: bool) -> None:
        """See `bwtui.relay.backfill.beside.Beside`; then mark where a transaction may end."""
        self._inner.turn(position, seconds, at_boundary=at_boundary, is_idle=is_idle)
        stream, sink = self._stream, self._sink
        assert stream is not None
        if stream.batch.careful is not None:
            failures = self._policy.undelivered(self.own(sink.take_failures()))
            if failures:
                raise Redrive(failures)
        if sink.has_uncommitted:
            sink.mark(self._position(stream, position, at_boundary=at_boundary), is_whole=at_boundary)
            sink.commit_when_due()
        if self._is_careful and stream.batch.careful is None and at_boundary:
            self._end_care(stream)

    def _position(self, stream: Stream, passed: int, *, at_boundary: bool) -> Position:
        base, rows = self._exactly.position, stream.rows
        lsn, part = rows.commit_lsn, rows.part + 1
        ordinal: int | None = rows.ordinal
        if lsn < base.lsn or (lsn == base.lsn and base.ordinal is None):
            lsn, ordinal, part = base.lsn, base.ordinal, base.part
        elif at_boundary:
            ordinal, part = None, 0
        elif lsn == base.lsn:
            ordinal = max(rows.ordinal, base.ordinal or 0)
        server = self._context.streamed.server
        return self._exactly.mine(lsn, ordinal, part, passed, server.timeline if server is not None else 0)

    def _end_care(self, stream: Stream) -> None:
        """Go on with requests of many messages."""
        while not self._sink.flush(_WAIT_SECONDS):
            stream.pulse(0)
        if self._sink.is_clean:
            self._begin(is_careful=False)

    def _may_split(self) -> bool:
        stream = self._stream
        if stream is None or stream.batch.routes:
            # What is encoded already says which part it is of.
            return False
        stream.rows.part += 1
        return True
