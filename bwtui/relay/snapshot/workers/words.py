"""What the engine and its workers say to each other, over the socket between them.

The engine only answers: each word of a worker has one answer, or none. So no more than two words ever wait
for a worker that stands still, and the engine waits for no worker when it writes.
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
from bwtui.relay.report import Report
from bwtui.relay.routes.route import Recipe, Route
from bwtui.relay.watch.account import Activity
from bwtui.settings import RelaySettings
from bwtui.sink.destination import TopicLimits
from bwtui.source.snapshot import SnapshotTable


class Progress(NamedTuple):
    """What was done of one table, since the unit began: rows read, and messages handed over."""

    rows: int
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A `BwtuiError` on its way to another process."""

    kind: type[BwtuiError]
    message: str
    hint: str

    @classmethod
    def of(cls, error: BwtuiError) -> "Fault":
        """Return it as the nearest of the kinds of `bwtui.errors`: others may be made of something else."""
        kind = next(kind for kind in type(error).__mro__ if kind.__module__ == BwtuiError.__module__)
        return cls(kind, error.message, error.hint)

    @property
    def error(self) -> BwtuiError:
        """The error."""
        return self.kind(self.message, self.hint)


# -- the engine's --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker makes a `Route` of: topics and schemas are there."""

    relation: Relation
    topic: str
    keys: tuple[str, ...]
    ids: tuple[int | None, int | None]
    max_message_bytes: int
    recipe: Recipe | None
    refusal: Fault | None

    @classmethod
    def of(cls, route: Route) -> "Plan":
        """Return the plan of a route of the engine."""
        ids = route.key_schema_id, route.value_schema_id
        refusal = None if route.refusal is None else Fault.of(route.refusal)
        limit = route.max_message_bytes
        return cls(route.relation, route.topic, route.key_columns, ids, limit, route.recipe, refusal)

    def route(self, settings: RelaySettings, report: Report) -> Route:
        """Return a route of the worker's own."""
        relation, keys, recipe = self.relation, self.keys, self.recipe
        counters = report.table(relation.qualified_name)
        counters.topic = self.topic
        counters.key_columns = keys
        counters.key_schema_id, counters.value_schema_id = self.ids
        if recipe is None or self.refusal is not None:
            refusal = self.refusal.error if self.refusal is not None else None
            return Route(relation, self.topic, keys, counters, None, None, refusal)
        limits = TopicLimits(self.max_message_bytes, compacted=False)
        if settings.output_format == "json":
            return Route(
                relation, self.topic, keys, counters, JsonEncoder(relation, keys, recipe.types), limits
            )
        encoder = build_encoder(
            relation, keys, recipe.types, recipe.any_bytes, recipe.with_room, SchemaStyle.of(settings)
        )
        key_id, value_id = self.ids
        assert value_id is not None
        return Route(relation, self.topic, keys, counters, encoder.bind(key_id, value_id), limits)


@dataclass(frozen=True, slots=True)
class Begin:
    """The first word of all; ``snapshot`` is the exported one, ``share`` how many workers there are."""

    settings: Mapping[str, Any]
    session: bytes
    snapshot: str
    lsn: int
    time_ms: int
    share: int
    is_recorded: bool


class Piece(NamedTuple):
    """A table, or a range of its pages, by the number of its plan."""

    table: SnapshotTable
    plan: int


@dataclass(frozen=True, slots=True)
class Unit:
    """Pieces to be read one after the other, and to be read again together; ``plans`` are new ones."""

    number: int
    pieces: Sequence[Piece]
    plans: Mapping[int, Plan]


@dataclass(frozen=True, slots=True)
class GoOn:
    """The snapshot is the engine's as yet: the answer to a beat."""


@dataclass(frozen=True, slots=True)
class Written:
    """A batch is recorded: batch, section and messages of what was written. Nothing: it is not recorded."""

    places: Sequence[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Rows of a table may have the numbers behind ``before``, up to ``last``."""

    before: int
    last: int


@dataclass(frozen=True, slots=True)
class Wider:
    """The plan of a table whose schema has room for bytes that are no text."""

    number: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class Kept:
    """A dead letter is on the disk."""


Answer = Unit | Written | Numbers | Wider | Kept

# -- a worker's ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker is alive, and how far it is; ``waited`` is what its oldest message has waited, in seconds."""

    unit: int
    progress: Mapping[str, Progress]
    queued: int
    answered: int
    waited: float
    outage: str | None
    activity: Activity
    resident_bytes: int
    cpu_seconds: float
    #: Of what people are shown: the plan's number, a row and its number.
    samples: Sequence[tuple[int, Sequence[Field], int]] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker wants a unit: the one before, if there was one, is durable."""

    beat: Beat


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch that is to be recorded before it is sent; ``before`` is the number of the row before it."""

    plan: int
    before: int
    frames: Sequence[bytes]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    positions: "array[int]"
    without: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of recorded messages: batch, section, partitions and offsets."""

    places: Sequence[tuple[int, int, "array[int]", "array[int]"]]


@dataclass(frozen=True, slots=True)
class WantsNumbers:
    """The rows of a table need numbers."""

    table: str


@dataclass(frozen=True, slots=True)
class WantsRoom:
    """A row holds bytes that are no text, for which the schema of its table has no room."""

    plan: int


@dataclass(frozen=True, slots=True)
class Letter:
    """A row is dropped."""

    letter: dict[str, Any]
    hint: str


@dataclass(frozen=True, slots=True)
class Told:
    """An error that does not end the worker."""

    kind: str
    fault: Fault
    table: str | None
    dependency: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was told of a dependency is over."""

    dependency: str


@dataclass(frozen=True, slots=True)
class Locked:
    """The unit is not read: another session waits to lock ``table``, and who asks now comes after it."""

    table: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker ends, and so does the snapshot, unless it is the worker's session alone that failed."""

    fault: Fault
    #: It could not open its session.
    at_start: bool = False
    #: Its session has ended.
    in_session: bool = False
