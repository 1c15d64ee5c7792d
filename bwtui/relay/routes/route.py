"""A route: where the rows of one table go, as long as its schema stays the same."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import NoReturn

from bwtui.encode.avro import BoundEncoder
from bwtui.encode.compiled import Run
from bwtui.encode.json import JsonEncoder
from bwtui.encode.lines import Lines
from bwtui.errors import BwtuiError, RowError
from bwtui.pgoutput.messages import Field, Relation
from bwtui.pgoutput.tuples import Split, partial_splitter, splitter
from bwtui.relay.report import TableCounters
from bwtui.sink.base import MessageTuple
from bwtui.sink.destination import TopicLimits
from bwtui.types.registry import TypeInfo

#: From a row's fields to its key, and to its key and value.
Key = Callable[[Sequence[Field]], bytes | None]
Both = Callable[[Sequence[Field]], tuple[bytes | None, bytes]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an encoder is made of beside the relation, its key and the schemas' ids."""

    types: Mapping[int, TypeInfo]
    any_bytes: bool
    with_room: bool


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Route:
    """Where the rows of one table go, as long as its schema stays the same.

    ``refusal`` is set when the table as a whole can't be relayed; every row of it then fails with it.
    """

    relation: Relation
    topic: str
    key_columns: tuple[str, ...]
    counters: TableCounters
    bound: InitVar[BoundEncoder | JsonEncoder | None]
    limits: InitVar[TopicLimits | None]
    refusal: BwtuiError | None = None
    #: Whether the table has columns that are not published.
    in_part: bool = False
    #: Has another process make the same encoder; None where all rows are refused.
    recipe: Recipe | None = None
    key: Key = field(init=False)
    both: Both = field(init=False)
    both_filled: Both = field(init=False)
    #: Makes the same of rows that are not taken apart, where there is such a way.
    run: Run | None = field(init=False, default=None)
    #: What many rows of a snapshot become at once; of no use where ``refusal`` is set.
    lines: Lines = field(init=False)
    split: Split = field(init=False)
    #: The same, faster where a value is NULL or unchanged.
    split_partial: Split = field(init=False)
    key_schema_id: int | None = field(init=False)
    value_schema_id: int | None = field(init=False)
    max_message_bytes: int = field(init=False)
    column_names: list[str] = field(init=False)
    #: Where the key's columns stand in a row.
    key_indexes: list[int] = field(init=False)
    #: Messages of the batch that is being filled, and their bytes.
    messages: list[MessageTuple] = field(default_factory=list)
    bytes: int = 0
    #: When the first of them was committed, in Unix microseconds.
    committed: int = 0
    #: While recording, which of the batch's frames each message was made of.
    positions: "array[int]" = field(default_factory=lambda: array("I"))

    def __post_init__(self, bound: BoundEncoder | JsonEncoder | None, limits: TopicLimits | None) -> None:
        self.key_schema_id = self.counters.key_schema_id
        self.value_schema_id = self.counters.value_schema_id
        self.max_message_bytes = limits.max_message_bytes if limits else 0
        self.column_names = [column.name for column in self.relation.columns]
        self.key_indexes = [i for i, name in enumerate(self.column_names) if name in self.key_columns]
        self.split = splitter(len(self.column_names))
        self.split_partial = partial_splitter(len(self.column_names))
        if bound is not None:
            self.key, self.both, self.both_filled = bound.key, bound.both, bound.both_filled
            self.lines, self.run = bound.lines, bound.run
        elif self.refusal is not None:
            self.key = self.both = self.both_filled = _refusing(self.refusal)


def _refusing(refusal: BwtuiError) -> Callable[[Sequence[Field]], NoReturn]:
    """Return what a route that is refused does with each row."""

    def refuse(fields: Sequence[Field]) -> NoReturn:
        # A new one each time: an error that is raised again keeps the frames, and so the row, of every time
        # before.
        raise RowError(refusal.message, refusal.hint) from refusal

    refusal.with_traceback(None)
    return refuse
