"""Messages between the engine and its workers, over the socket between them.

The engine only answers: each message of a worker gets at most one answer. So no more than two messages ever
wait for a worker that stands still, and the engine never waits for a worker when it writes.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bwtui.encode.avro import build_encoder
from bwtui.encode.json import JsonEncoder
from bwtui.encode.schema import SchemaStyle
from bwtui.errors import BwtuiError
from bwtui.pgoutput.messages import Field, Relation
from bwtui.relay.routes.route import EncoderRecipe, TableRoute
from bwtui.relay.run_state import RunState
from bwtui.relay.watch.activity_clock import Activity
from bwtui.settings import RelaySettings
from bwtui.sink.destination import TopicLimits
from bwtui.source.snapshot import SnapshotTable


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


@dataclass(frozen=True, slots=True)
class BatchRecorded:
    """A batch is recorded, as batch, section and number of messages; empty if it is not recorded."""

    places: Sequence[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class RowNumberRange:
    """Rows of a table may have the numbers after ``before``, up to ``last``."""

    before: int
    last: int


@dataclass(frozen=True, slots=True)
class WiderRoute:
    """The plan of a table whose schema has room for bytes that are not text."""

    number: int
    plan: RouteDescription


@dataclass(frozen=True, slots=True)
class DeadLetterStored:
    """A dead letter is on the disk."""


Answer = WorkUnit | BatchRecorded | RowNumberRange | WiderRoute | DeadLetterStored

# -- messages of a worker ------------------------------------------------------------------------------------


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
class UnitRequest:
    """A worker requests a unit: the previous one, if any, is durable."""

    beat: Heartbeat


@dataclass(frozen=True, slots=True)
class BatchToRecord:
    """A batch to record before it is sent; ``before`` is the number of the row before it."""

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
class RowNumbersRequest:
    """The rows of a table need numbers."""

    table: str


@dataclass(frozen=True, slots=True)
class WiderSchemaRequest:
    """A row holds bytes that are not text, for which the schema of its table has no room."""

    plan: int


@dataclass(frozen=True, slots=True)
class DeadLetterMessage:
    """A row is dropped."""

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
