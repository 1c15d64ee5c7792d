"""Messages between the engine and its workers, and the socket that carries them.

The engine only answers: each message of a worker gets at most one answer. So no more than two messages ever
wait for a worker that stands still, and the engine never waits for a worker when it writes.
"""

import pickle
import socket
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from bwtui.encode.avro import build_encoder
from bwtui.encode.json import JsonEncoder
from bwtui.encode.schema import SchemaStyle
from bwtui.errors import BwtuiError
from bwtui.pgoutput.messages import Field, Relation
from bwtui.relay.routes.route import EncoderRecipe, TableRoute
from bwtui.relay.state.activity_clock import Activity
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.sink.destination import TopicLimits
from bwtui.source.snapshot import SnapshotTable

Answer = TypeVar("Answer")


class TableProgress(NamedTuple):
    """Progress with one table since the unit began: rows read, and messages handed over."""

    rows: int
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SerializedError:
    """A `BwtuiError` in transit to a different process."""

    kind: type[BwtuiError]
    message: str
    hint: str

    @classmethod
    def of(cls, error: BwtuiError) -> "SerializedError":
        """Return the error as its nearest class in `bwtui.errors`: other classes may need other arguments."""
        kind = next(kind for kind in type(error).__mro__ if kind.__module__ == BwtuiError.__module__)
        return cls(kind, error.message, error.hint)

    @property
    def error(self) -> BwtuiError:
        return self.kind(self.message, self.hint)


# -- messages of the engine ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RouteDescription:
    """The description from which a worker builds a `TableRoute`; its topic and schemas exist already."""

    relation: Relation
    topic: str
    keys: tuple[str, ...]
    ids: tuple[int | None, int | None]
    max_message_bytes: int
    recipe: EncoderRecipe | None
    refusal: SerializedError | None

    @classmethod
    def of(cls, route: TableRoute) -> "RouteDescription":
        """Return the plan of a route of the engine."""
        ids = route.key_schema_id, route.value_schema_id
        refusal = None if route.refusal is None else SerializedError.of(route.refusal)
        limit = route.max_message_bytes
        return cls(route.relation, route.topic, route.key_columns, ids, limit, route.recipe, refusal)

    def route(self, settings: RelaySettings, report: RunState) -> TableRoute:
        """Return a route for the worker."""
        relation, keys, recipe = self.relation, self.keys, self.recipe
        counters = report.table(relation.qualified_name)
        counters.topic = self.topic
        counters.key_columns = keys
        counters.key_schema_id, counters.value_schema_id = self.ids
        if recipe is None or self.refusal is not None:
            refusal = self.refusal.error if self.refusal is not None else None
            return TableRoute(relation, self.topic, keys, counters, None, None, refusal)
        limits = TopicLimits(self.max_message_bytes, compacted=False)
        if settings.output_format == "json":
            return TableRoute(
                relation, self.topic, keys, counters, JsonEncoder(relation, keys, recipe.types), limits
            )
        encoder = build_encoder(
            relation, keys, recipe.types, recipe.any_bytes, recipe.with_room, SchemaStyle.of(settings)
        )
        key_id, value_id = self.ids
        assert value_id is not None
        return TableRoute(relation, self.topic, keys, counters, encoder.bind(key_id, value_id), limits)


@dataclass(frozen=True, slots=True)
class StartWorker:
    """The first message; ``snapshot`` is the exported one, ``share`` the number of workers."""

    settings: Mapping[str, Any]
    session: bytes
    snapshot: str
    lsn: int
    time_ms: int
    share: int
    is_recorded: bool


class Piece(NamedTuple):
    """A table, or a range of its pages, with the number of its plan."""

    table: SnapshotTable
    plan: int


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """Pieces that are read one after another, and read again together; ``plans`` are new ones."""

    number: int
    pieces: Sequence[Piece]
    plans: Mapping[int, RouteDescription]


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The answer to a heartbeat: the snapshot is still the engine's."""


# -- messages of a worker ------------------------------------------------------------------------------------


class Request(Generic[Answer]):
    """A message that the engine answers with an ``Answer``; it answers no other message."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A worker is alive, with its progress; ``waited`` is the age of its oldest message in seconds."""

    unit: int
    progress: Mapping[str, TableProgress]
    queued: int
    answered: int
    waited: float
    outage: str | None
    activity: Activity
    resident_bytes: int
    cpu_seconds: float
    #: Samples for display: the plan's number, a row and its number.
    samples: Sequence[tuple[int, Sequence[Field], int]] = ()


@dataclass(frozen=True, slots=True)
class UnitRequest(Request[WorkUnit]):
    """A worker requests a unit: the previous one, if any, is durable."""

    beat: Heartbeat


@dataclass(frozen=True, slots=True)
class BatchToRecord(Request[Sequence[tuple[int, int, int]]]):
    """A batch to record before it is sent; ``before`` is the number of the row before it.

    The answer is batch, section and number of messages for each topic; empty if nothing is recorded any more.
    """

    plan: int
    before: int
    frames: Sequence[bytes]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    positions: "array[int]"
    without: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class DeliveryReceipts:
    """Delivery reports of recorded messages: batch, section, partitions and offsets."""

    places: Sequence[tuple[int, int, "array[int]", "array[int]"]]


@dataclass(frozen=True, slots=True)
class RowNumbersRequest(Request[tuple[int, int]]):
    """The rows of a table need numbers: those after the first of the answer, up to the second."""

    table: str


@dataclass(frozen=True, slots=True)
class WiderSchemaRequest(Request[tuple[int, RouteDescription]]):
    """A row holds bytes that are not text, for which the schema of its table has no room.

    The answer is the number and the description of a route with room, or of one that refuses such rows.
    """

    plan: int


@dataclass(frozen=True, slots=True)
class DeadLetterMessage(Request[None]):
    """A row is dropped; the answer comes once its dead letter is on the disk."""

    letter: dict[str, Any]
    hint: str


@dataclass(frozen=True, slots=True)
class ErrorReported:
    """An error that does not end the worker."""

    kind: str
    fault: SerializedError
    table: str | None
    dependency: str


@dataclass(frozen=True, slots=True)
class DependencyRecovered:
    """A dependency with a reported error works again."""

    dependency: str


@dataclass(frozen=True, slots=True)
class UnitLocked:
    """The unit is not read: another session waits to lock ``table``; a new request would queue after it."""

    table: str


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker ends, and so does the snapshot, unless only the worker's own session failed."""

    fault: SerializedError
    #: It could not open its session.
    at_start: bool = False
    #: Its session has ended.
    in_session: bool = False


_LENGTH = struct.Struct("<Q")
_READ_BYTES = 1 << 18


def _framed(message: Any) -> bytes:
    data = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(data)) + data


class BlockingChannel:
    """A worker's end, whose calls block until a message is sent or has arrived."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("rb")

    def send(self, message: Any) -> None:
        """Send a message. Raises OSError if the other end is gone."""
        self._connection.sendall(_framed(message))

    def receive(self) -> Any:
        """Return the next message. Raises EOFError if no more will arrive."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        data = self._reader.read(count)
        if len(data) < count:
            raise EOFError
        return data


class NonBlockingChannel:
    """The engine's end, which never blocks: a worker may stand still in the middle of a message."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._in = bytearray()
        self._out = bytearray()
        #: True if nothing more will arrive.
        self.is_over = False

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._connection.fileno()

    def messages(self) -> list[Any]:
        """Return the messages that have arrived."""
        while not self.is_over:
            try:
                data = self._connection.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._in += data
            self.is_over = not data
        messages_read = []
        begin = 0
        while len(self._in) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in, begin)
            end = begin + _LENGTH.size + length
            if len(self._in) < end:
                break
            messages_read.append(pickle.loads(bytes(self._in[begin + _LENGTH.size : end])))
            begin = end
        del self._in[:begin]
        return messages_read

    def send(self, message: Any) -> None:
        """Send a message, now or with a later `flush`."""
        self._out += _framed(message)
        self.flush()

    def flush(self) -> None:
        """Send what could not be sent before."""
        while self._out and not self.is_over:
            try:
                del self._out[: self._connection.send(self._out)]
            except BlockingIOError:
                return
            except OSError:
                self.is_over = True

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
