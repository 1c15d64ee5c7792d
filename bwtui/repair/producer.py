"""Read rows by key, and send them to topics that another relay writes, with a relay's encoding.

Nothing is created or registered: the topics, and the schemas of the present rows, must already exist.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bwtui.encode.registry import RegisteredSchema, SchemaRegistry
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, ServiceRefused
from bwtui.kafka.client import client_config
from bwtui.model.delivery import DeliverySpan
from bwtui.relay.backfill.outgoing_chunk import (
    ChunkContext,
    OutgoingChunk,
    RowNumbers,
    refuse_unlike,
    spelling_of,
)
from bwtui.relay.history.backfill_store import Key
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.routes.routing import Router
from bwtui.relay.rows.batch import OutgoingBatch
from bwtui.relay.rows.chunk_window import ChunkWindow
from bwtui.relay.rows.recorder import NullRecorder
from bwtui.relay.state.ack import Acknowledgements
from bwtui.relay.state.run_state import RunState
from bwtui.relay.state.service_retry import ServiceRetry
from bwtui.repair.concurrent_writes import ConcurrentWrites
from bwtui.repair.hints import REPAIR_WHEN_FIXED
from bwtui.settings import RelaySettings
from bwtui.sink.dead_letters import DroppedRow
from bwtui.sink.destination import DeliveryFailure, Limits
from bwtui.sink.kafka import KafkaService, KafkaSink
from bwtui.sink.topics import KafkaTopicScanner
from bwtui.source.connection import Connection, connect, execute
from bwtui.source.hosts import describe
from bwtui.source.publication import existing
from bwtui.source.raw_stream import StreamServer
from bwtui.source.slot import slot_state
from bwtui.source.snapshot import Chunk, ChunkRequest, ChunkTooLarge, read_chunk

#: Maximum time to wait for an unavailable service (seconds).
_PATIENCE_SECONDS = 30.0


@dataclass(slots=True)
class SendResult:
    """The result of sending some keys."""

    rows: int = 0
    tombstones: int = 0
    #: Number of keys that other producers sent since the comparison.
    left_out: int = 0
    #: Keys whose message was preceded by another producer's, so that it may be outdated.
    overtaken: Sequence[Key] = ()


class RowProducer:
    """Reads rows and sends them; call `close` at the end."""

    def __init__(self, settings: RelaySettings) -> None:
        """Prepare without any requests. Raises UsageError."""
        self._settings = settings
        self.session = secrets.token_bytes(8)
        self._report = RunState()
        self._away_since = 0.0
        self._sink = KafkaSink(settings)
        self._service = _ExistingTopics(settings, self._sink)
        self.reader = KafkaTopicScanner(client_config(settings))
        self._server = StreamServer(settings.postgres)
        self._patience = ServiceRetry(self._server, self._report, self._pulse)
        registry = _RegisteredSchemas(settings.schema_registry, settings.registry_config)
        self._registry = registry
        self._router = Router(settings, self._service, registry, self._report, self._patience)
        self._chunks = ChunkContext(settings, self._router, NullRecorder(), self.session)
        self._acks = Acknowledgements()
        self._batch = OutgoingBatch(self._sink, self._acks, self._report)
        self._numbers = RowNumbers()
        self._routes: dict[str, TableRoute] = {}
        #: The columns of each table's key when it was first read, to which the compared keys belong.
        self._keys: dict[str, tuple[str, ...]] = {}
        #: The columns of the compared keys, in the table's order.
        self._compared: dict[str, tuple[str, ...]] = {}
        self._publications: tuple[str, ...] = ()
        self._connection: Connection | None = None

    def close(self) -> None:
        """Close all connections, without waiting for messages in flight."""
        self._patience.close()
        self._service.close()
        self.reader.close()
        self._registry.close()
        if self._connection is not None:
            self._connection.close()

    def expect(self, table: str, key_columns: tuple[str, ...]) -> None:
        """Record the columns of the compared keys: nothing is sent for a table whose key has changed
        since.
        """
        self._compared[table] = key_columns

    def route(self, table: str) -> TableRoute:
        """Return the route of a table's present rows. Raises RefusedError and ConnectionFailed."""
        return self._route(table, self._read(table, []))

    def put(self, table: str, keys: Sequence[Key], tail: ConcurrentWrites, since: int) -> SendResult:
        """Send the present rows of ``keys``, and tombstones; on return everything is acknowledged.

        Keys that others have sent after look number ``since`` of ``tail`` are left out. Raises RefusedError,
        ConnectionFailed and ServiceRefused.
        """
        try:
            chunk = self._read(table, keys)
        except ChunkTooLarge:
            half = len(keys) // 2
            first = self.put(table, keys[:half], tail, since)
            second_half = self.put(table, keys[half:], tail, since)
            return SendResult(
                first.rows + second_half.rows,
                first.tombstones + second_half.tombstones,
                first.left_out + second_half.left_out,
                [*first.overtaken, *second_half.overtaken],
            )
        refusals = _FirstRefusal()
        outgoing = OutgoingChunk(
            self._chunks, chunk, self._route(table, chunk), keys, refusals, self._numbers
        )
        window = ChunkWindow(table)
        outgoing.encode(window, float("inf"))
        # Immediately before sending: messages that arrive in between are found afterwards.
        tail.advance()
        window.collect(tail.since(since))
        while not outgoing.is_put:
            outgoing.put(self._batch, window, chunk.high, float("inf"), None)
        self._settle(table)
        if refusals.error is not None:
            error = refusals.error
            raise RefusedError(f"a row of {table} can't be sent: {error.message}", error.hint)
        overtaken = tail.advance()
        named = {outgoing.message_key(key): key for key in keys} if overtaken else {}
        # A key that PostgreSQL writes differently from the requested one is in none of these.
        overtaken_keys = (
            [named[key] for key in overtaken if key in named] if overtaken <= named.keys() else keys
        )
        return SendResult(
            outgoing.rows, outgoing.tombstones, outgoing.skipped, overtaken_keys if overtaken else ()
        )

    # -- reading -------------------------------------------------------------------------------------------

    def _read(self, table: str, keys: Sequence[Key]) -> Chunk:
        namespace, _, name = table.partition(".")
        connection = self._connected()
        texts = [key for key in keys if not isinstance(key, bytes)]
        request = ChunkRequest(
            namespace,
            name,
            self._publications,
            key=self._keys.get(table),
            keys=texts,
            key_columns=self._compared.get(table, ()),
            rows=len(texts),
        )
        chunk = read_chunk(connection, request, lambda *_: None)
        self._keys.setdefault(table, chunk.key)
        return chunk

    def _connected(self) -> Connection:
        """Return a session with the server that has the slot: a different one may lack what was sent."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        settings = self._settings
        connection = self._connection = connect(settings.postgres)
        if slot_state(connection, settings.slot) is None:
            raise RefusedError(
                f"the server at {describe(settings.postgres)} has no slot {settings.slot}",
                "the repair reads only from the relay's server: name it with -d/--postgres",
            )
        # A policy that hides rows must make the query fail, not leave them out.
        execute(connection, "set row_security = off")
        execute(connection, "set lock_timeout = '2s'")
        self._publications = tuple(existing(connection, settings.publication_name))
        return connection

    def _route(self, table: str, chunk: Chunk) -> TableRoute:
        route = self._routes.get(table)
        if route is not None and route.relation == chunk.relation:
            return route
        route = self._router.route(chunk.relation)
        if route is None:
            raise RefusedError(f"table {table} is excluded", "check --table and --exclude-table")
        if route.refusal is not None:
            raise route.refusal
        if (former := self._routes.get(table)) is not None:
            refuse_unlike(route, former.topic, spelling_of(former))
        self._routes[table] = route
        return route

    # -- waiting -------------------------------------------------------------------------------------------

    def _pulse(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.2))
        self._bear(self._report.detail)

    def _bear(self, away: str | None) -> None:
        """Raise ConnectionFailed, with the message ``away``, once a service has been unavailable for long."""
        now = time.monotonic()
        self._away_since = (self._away_since or now) if away else 0.0
        if away and now - self._away_since > _PATIENCE_SECONDS:
            raise ConnectionFailed(away, REPAIR_WHEN_FIXED)

    def _settle(self, table: str) -> None:
        """Wait until everything that was handed over is acknowledged."""
        # A message that was held back may be reported before the one that caused it.
        failures: list[DeliveryFailure] = []
        while not self._sink.flush(0.5):
            failures += self._sink.take_failures()
            self._bear(self._service.outage())
        failures += self._sink.take_failures()
        if failures:
            raise _failed(table, failures)
        self._acks.advance()


class _ExistingTopics(KafkaService):
    """Existing topics: none is created."""

    def ensure_topics(self, topics: Mapping[str, bool]) -> Limits:
        return self._admin.existing(list(topics))


class _RegisteredSchemas(SchemaRegistry):
    """Schemas that are registered; none is added."""

    def register(self, subject: str, schema: str) -> RegisteredSchema:
        """Return the schema under its subject. Raises RefusedError if it is not registered."""
        number = self.schema_id(subject, schema)
        if number is None:
            raise RefusedError(
                "the schema with which the table's rows would be sent is not registered under "
                f"subject {subject}",
                "give the -f/--output-format, --toast, --namespace and --connect-names of the "
                "topic's relay; if the "
                "table was altered, that relay has to send a row of it first",
            )
        return RegisteredSchema(subject, number, None, schema)


class _FirstRefusal:
    """Keeps why the first row was refused; see `bwtui.relay.rows.batch_bisector.RefusedRowPolicy`."""

    def __init__(self) -> None:
        self.error: BwtuiError | None = None

    def refuse(self, route: TableRoute, row: DroppedRow, error: BwtuiError, span: DeliverySpan) -> None:
        self.error = self.error or error

    def undelivered(self, failures: list[DeliveryFailure]) -> list[DeliveryFailure]:
        """Return all: there are no dead letters."""
        return failures


def _failed(table: str, failures: Sequence[DeliveryFailure]) -> BwtuiError:
    # A message's own failure takes precedence over an outage that affected its neighbours.
    failure = min(failures, key=lambda one: (not one.is_setup, one.is_outage))
    if failure.is_setup:
        return ServiceRefused(failure.reason, failure.hint)
    if failure.is_outage:
        return ConnectionFailed(f"not all rows of {table} were sent: {failure.reason}", REPAIR_WHEN_FIXED)
    return RefusedError(f"a row of {table} can't be sent: {failure.reason}", REPAIR_WHEN_FIXED)
