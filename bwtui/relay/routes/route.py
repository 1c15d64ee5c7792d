"""A route: the destination of the rows of one table, as long as its schema stays the same."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import NoReturn

from bwtui.encode.avro import BoundEncoder
from bwtui.encode.compiled_encoders import FindLacking, Run
from bwtui.encode.json import JsonEncoder
from bwtui.encode.lines import Lines
from bwtui.errors import BwtuiError, RowError
from bwtui.pgoutput.messages import Field, Relation
from bwtui.pgoutput.tuples import Split, partial_splitter, splitter
from bwtui.relay.run_state import TableCounters
from bwtui.sink.base import MessageTuple
from bwtui.sink.destination import TopicLimits
from bwtui.types.registry import TypeInfo

#: From a row's fields to its key, and to its key and value.
Key = Callable[[Sequence[Field]], bytes | None]
Both = Callable[[Sequence[Field]], tuple[bytes | None, bytes]]


@dataclass(frozen=True, slots=True)
class EncoderRecipe:
    """The inputs of an encoder, in addition to the relation, its key and the schema ids."""

    types: Mapping[int, TypeInfo]
    any_bytes: bool
    with_room: bool


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class TableRoute:
    """The destination of the rows of one table, as long as its schema stays the same.

    ``refusal`` is set if the table as a whole can't be relayed; every row of it then fails with this error.
    """

    relation: Relation
    topic: str
    key_columns: tuple[str, ...]
    counters: TableCounters
    bound: InitVar[BoundEncoder | JsonEncoder | None]
    limits: InitVar[TopicLimits | None]
    refusal: BwtuiError | None = None
    #: True if the table has columns that are not published.
    in_part: bool = False
    #: For building the same encoder in a separate process; None if all rows are refused.
    recipe: EncoderRecipe | None = None
    key: Key = field(init=False)
    both: Both = field(init=False)
    both_filled: Both = field(init=False)
    #: Encodes undecoded rows to the same messages, where that is supported.
    run: Run | None = field(init=False, default=None)
    #: Finds rows whose unchanged values must be fetched, where that is supported.
    lacking: FindLacking | None = field(init=False, default=None)
    #: Encodes many snapshot rows at once; unset if ``refusal`` is set.
    lines: Lines = field(init=False)
    split: Split = field(init=False)
    #: The same, faster if a value is NULL or unchanged.
    split_partial: Split = field(init=False)
    key_schema_id: int | None = field(init=False)
    value_schema_id: int | None = field(init=False)
    max_message_bytes: int = field(init=False)
    column_names: list[str] = field(init=False)
    #: The positions of the key columns in a row.
    key_indexes: list[int] = field(init=False)
    #: Messages of the current batch, and their bytes.
    messages: list[MessageTuple] = field(default_factory=list)
    bytes: int = 0
    #: When the first of them was committed, in Unix microseconds.
    committed: int = 0
    #: While recording, the batch's frame that each message was made of.
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
            self.lines, self.run, self.lacking = bound.lines, bound.run, bound.lacking
        elif self.refusal is not None:
            self.key = self.both = self.both_filled = _refusing(self.refusal)


def _refusing(refusal: BwtuiError) -> Callable[[Sequence[Field]], NoReturn]:
    """Return the function that refuses every row of a refused route."""

    def refuse(fields: Sequence[Field]) -> NoReturn:
        # Raise a new error each time: an error that is raised again keeps the frames, and so the row, of
        # every earlier time.
        raise RowError(refusal.message, refusal.hint) from refusal

    refusal.with_traceback(None)
    return refuse
