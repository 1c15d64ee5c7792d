"""Read and write the position of a slot in Kafka during one run with --exactly-once."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, Producer
from psycopg import pq

from bwtui.blocking import BlockingCalls
from bwtui.errors import ConnectionFailed, PositionHidden, RefusedError, SlotLost
from bwtui.kafka.client import client_config
from bwtui.model.delivery import DeliverySpan
from bwtui.model.lsn import format_lsn
from bwtui.model.position import Chunks, Position, RecordedPosition
from bwtui.relay.history.backfill_store import BackfillTask
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore, forgetting, is_discarded
from bwtui.relay.rows.recorder import Recorder
from bwtui.settings import RelaySettings
from bwtui.sink.transactions import PositionTopic, TransactionalSink, TransactionChecks
from bwtui.source.raw_stream import ServerIdentity, identify
from bwtui.source.slot import SlotState

_COMMIT_SECONDS = 30.0
_WAIT_SECONDS = 0.05
#: A position holds the progress of at most this many backfill tasks; the relay works on one at a time.
_TASKS = 8
#: Makes a blocking call and returns its result.
Ask = Callable[[Callable[[], Any]], Any]


class KafkaTransactions:
    """The Kafka transactions of one run; this class is for a relay without --exactly-once."""

    #: Whether all messages are sent in transactions, by one producer.
    is_used = False

    def __init__(self) -> None:
        #: The server that the snapshot or the stream is read from.
        self.server: ServerIdentity | None = None
        #: Progress of backfill tasks: chunks sent since the last mark, and those before it.
        self.chunks: Chunks = {}

    def recall(
        self, identity: tuple[str, str, str], slot: SlotState | None, checkpoint: SlotCheckpointStore
    ) -> None:
        """Read the position from Kafka, and update the slot checkpoint from it.

        Raises RefusedError, ConnectionFailed, and SlotLost if Kafka has lost the position.
        """

    def is_torn(self, slot: SlotState) -> bool:
        """Return whether a snapshot that was never committed created the slot."""
        return False

    def begin_pass(self, confirmed_lsn: int, recorder: Recorder) -> None:
        """Begin a session of the stream at ``confirmed_lsn``."""
        recorder.begin_pass("stream", confirmed_lsn)

    def settle(self, recorder: Recorder) -> None:
        """Do the work of ``recorder`` that a commit may wait for, and fail if its disk does."""

    def note_chunk(self, task: BackfillTask) -> None:
        """Include the progress of ``task`` in the next position: rows of it were sent since the last one."""

    def refusal(self, spans: Sequence[DeliverySpan]) -> RefusedError | None:
        """Return the error if Kafka rejected a message of ``spans``."""
        return None

    def identify_server(self, connection: pq.abc.PGconn) -> None:
        """Note the server of a new session, before it exports a snapshot."""

    def begin_snapshot(self, calls: BlockingCalls, lsn: int, recorder: Recorder) -> None:
        """Begin the single transaction of a snapshot at ``lsn``. Raises ConnectionFailed and RefusedError."""

    def end_snapshot(self, pulse: Callable[[], None], lsn: int, recorder: Recorder) -> None:
        """Commit the transaction of the snapshot; ``pulse`` is called while Kafka commits, and may raise.

        Raises ConnectionFailed if Kafka does not commit. The next start then takes a new snapshot.
        """


class PositionStore(KafkaTransactions):
    """The position of one run's slot in Kafka."""

    is_used = True

    def __init__(self, settings: RelaySettings, sink: TransactionalSink, session: bytes) -> None:
        super().__init__()
        self._settings = settings
        self._sink = sink
        self._session = session.hex()
        self._positions = PositionTopic(settings, client_config(settings))
        self._tables = repr((settings.tables, settings.exclude_tables, settings.allow_unkeyed))
        self._identity = ("", "", "")
        self._checkpoint: SlotCheckpointStore | None = None
        self._transactional_id = ""
        self.position = Position("", "", "")
        #: The slot's confirmed LSN when the session began.
        self.start_lsn = 0

    def recall(
        self, identity: tuple[str, str, str], slot: SlotState | None, checkpoint: SlotCheckpointStore
    ) -> None:
        self.position, self._identity, self._checkpoint = Position(*identity), identity, checkpoint
        checkpoint.in_transactions = True
        # A copy of the database may be relayed to the same Kafka with a different prefix. A prefix has no
        # slash.
        system, database, name = identity
        self._transactional_id = f"bwtui-{system}-{name}-{self._settings.topic_prefix}/{database}"
        self._sink.identity = self._transactional_id
        self._positions.prepare()
        last = self._recalled(slot)
        if last is None:
            if slot is not None and checkpoint.last is not None and checkpoint.last.written_by:
                raise self._lost()
            return
        self.position = last
        is_there = slot is not None or checkpoint.last is None or not checkpoint.last.in_transaction
        if last.phase == "stream" and is_there:
            checkpoint.recall(last, slot)

    def _recalled(self, slot: SlotState | None) -> Position | None:
        """Return the position in Kafka, once no commit of a killed relay is in progress."""
        try:
            last = self._last()
        except PositionHidden:
            if slot is None:
                raise
            # The open commit of a killed relay may be what hides the position.
            is_ended = False
        else:
            is_ended = slot is None or last is None or last.phase != "snapshot"
        if is_ended:
            return last
        self._sink.connect(self._transactional_id)
        return self._last()

    def _last(self) -> Position | None:
        """Return the position in Kafka, unless 'bwtui slots drop' discarded it on this host."""
        assert self._checkpoint is not None
        last = self._positions.last(Position(*self._identity).key)
        if last is None:
            return None
        folder = self._checkpoint.path.parent
        return None if is_discarded(folder, last, self._settings.drop_command) else last

    def is_torn(self, slot: SlotState) -> bool:
        return self.position.phase == "snapshot" and slot.confirmed_lsn == self.position.passed

    def begin_pass(self, confirmed_lsn: int, recorder: Recorder) -> None:
        # The recording begins once the position in Kafka is determined.
        self.start_lsn = confirmed_lsn

    def settle(self, recorder: Recorder) -> None:
        recorder.settle(idle=True)

    def begin(
        self,
        call: Ask,
        *,
        one_by_one: bool = False,
        snapshot: int = 0,
        recorded: RecordedPosition | None = None,
    ) -> tuple[Producer, Position]:
        """Return a producer for this run, and the position of the stream in Kafka.

        ``call`` makes a call in a separate thread and may raise while it waits. ``snapshot`` is the LSN of a
        snapshot that begins, which is written before any of its rows. ``recorded`` is the place where the
        recording continues. Raises ConnectionFailed, RefusedError, SlotLost.
        """
        abandoned = threading.Event()
        try:
            result: tuple[Producer, Position] = call(
                partial(self._begin, abandoned, recorded, one_by_one=one_by_one, snapshot=snapshot)
            )
        except BaseException:
            # The call may wait for Kafka for a long time. It must not fence the relay that owns the slot by
            # that time.
            abandoned.set()
            raise
        assert self._checkpoint is not None
        self._checkpoint.record_writer(self._session)
        return result

    def _begin(
        self,
        abandoned: threading.Event,
        recorded: RecordedPosition | None,
        *,
        one_by_one: bool,
        snapshot: int,
    ) -> tuple[Producer, Position]:
        """See `begin`. A fenced relay can read in the topic which run has fenced it."""

        def check() -> None:
            if abandoned.is_set():
                raise ConnectionFailed("the relay no longer waits for Kafka's answer", "no action needed")

        check()
        key = self.position.key
        producer = self._sink.connect(
            self._transactional_id, snapshot=bool(snapshot), one_by_one=one_by_one, check=check
        )
        check()
        # Read the position only now: no other relay's transaction is open any more, and none can begin.
        if snapshot:
            last = Position(*self._identity, passed=snapshot, phase="snapshot", tables=self.position.tables)
        else:
            position = self._last()
            if position is None and self.position.session:
                raise self._lost()
            last = position or self.position
        now = replace(last, session=self._session, recorded=recorded)
        check()
        try:
            producer.begin_transaction()
            producer.produce(self._positions.topic, now.to_json(), key, 0)
            producer.commit_transaction(_COMMIT_SECONDS)
        except KafkaException as error:
            raise ConnectionFailed(
                f"Kafka did not commit the relay's position: {error.args[0].str()}",
                f"check that the relay's user may write to topic {self._positions.topic}",
            ) from error
        return producer, replace(now, recorded=last.recorded)

    def covering(
        self,
        lsn: int,
        ordinal: int | None,
        part: int,
        passed: int,
        server: ServerIdentity | None,
        events: Mapping[str, int] | None = None,
        changes: int | None = 0,
    ) -> Position:
        """Return the position that covers everything sent so far from the stream of ``server``.

        ``events`` counts the messages of the open transaction by table. ``changes`` is the number of changes
        of a complete transaction.
        """
        return Position(
            *(self.position.system, self.position.database, self.position.slot),
            server.timeline if server is not None else 0,
            lsn,
            ordinal,
            part,
            max(passed, self.position.passed),
            "stream",
            self._tables,
            self._session,
            self.chunks,
            dict(events or {}) if ordinal is not None else {},
            (server.forks or ()) if server is not None else (),
            changes if ordinal is None else None,
        )

    def note_chunk(self, task: BackfillTask) -> None:
        chunks = {id: progress for id, progress in self.chunks.items() if id != task.id}
        self.chunks = dict([*chunks.items(), (task.id, task.progress())][-_TASKS:])

    def refusal(self, spans: Sequence[DeliverySpan]) -> RefusedError | None:
        for failure in self._sink.refused:
            if failure.span in spans:
                return RefusedError(failure.reason, f"{failure.hint}; then request the rows again")
        return None

    def check_tables(self, position: Position) -> None:
        """Refuse to resume within a transaction whose changes are counted differently now."""
        if position.ordinal is not None and position.tables != self._tables:
            raise RefusedError(
                "Kafka holds part of a transaction, but the table selection has changed since",
                "start once with the former --table, --exclude-table and --allow-unkeyed, then change them",
            )

    def check_history(self, position: Position) -> None:
        """Refuse a server whose history lacks ``position``: the relay would skip its own changes up to there.

        A different relay may have sent changes since this one read the position; see
        `SlotCheckpointStore.common_end`.
        Raises SlotLost.
        """
        server = self.server
        if server is None or not position.timeline:
            return
        end = server.common_end(position.timeline, position.forks) or 0
        if position.lsn >= end:
            raise SlotLost(
                f"Kafka holds changes up to {format_lsn(position.lsn)} of timeline {position.timeline}, "
                f"but this server's timeline {server.timeline} forked from it at {format_lsn(end)}",
                forgetting(self._settings.drop_command),
            )

    def _lost(self) -> SlotLost:
        return SlotLost(
            f"topic {self._positions.topic} has lost the relay's position: it is unknown which changes "
            f"of slot {self._settings.slot} Kafka holds, so rows could be sent twice",
            forgetting(self._settings.drop_command),
        )

    def is_fenced(self) -> str:
        """Return the message about another relay that has replaced this one, or ""."""
        last = self._positions.last(self.position.key)
        if last is None or last.session == self._session:
            return ""
        return f"another relay has taken over slot {self._settings.slot}: Kafka has fenced this one"

    # -- a snapshot, as one transaction --------------------------------------------------------------------

    def identify_server(self, connection: pq.abc.PGconn) -> None:
        self.server = identify(connection)

    def begin_snapshot(self, calls: BlockingCalls, lsn: int, recorder: Recorder) -> None:
        producer, self.position = self.begin(calls.make, snapshot=lsn)
        checks = TransactionChecks(self.is_fenced, partial(recorder.promise, soon=True))
        self._sink.begin(producer, checks, snapshot=True)

    def end_snapshot(self, pulse: Callable[[], None], lsn: int, recorder: Recorder) -> None:
        # The stream delivers what commits at the LSN itself.
        commit = self._sink.commit_now(self.covering(lsn - 1, None, 0, lsn, self.server))
        while not commit.wait(_WAIT_SECONDS):
            pulse()
        if commit.error is not None:
            raise ConnectionFailed(
                f"Kafka did not commit the snapshot: {commit.error.str()}",
                "start again for a new snapshot; Kafka can't commit one that takes longer than the "
                "brokers' transaction.max.timeout.ms",
            )
        self._sink.poll(0)
        recorder.committed()
