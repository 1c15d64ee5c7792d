"""A route: where the rows of one table go, as long as its schema stays the same."""

from collections.abc import Callable, Sequence
from typing import NoReturn

from bwtui.encode.avro import BoundEncoder
from bwtui.encode.json import JsonEncoder
from bwtui.errors import BwtuiError, RowError
from bwtui.pgoutput.messages import Field, Relation
from bwtui.pgoutput.tuples import splitter
from bwtui.relay.report import TableCounters
from bwtui.sink.base import MessageTuple
from bwtui.sink.destination import TopicLimits


class Route:
    """Where the rows of one table go, as long as its schema stays the same.

    ``refusal`` is set when the table as a whole can't be relayed; every row of it then fails with it.
    """

    __slots__ = (
        "__weakref__",
        "both",
        "both_filled",
        "bytes",
        "column_names",
        "committed",
        "counters",
        "in_part",
        "key",
        "key_columns",
        "key_indexes",
        "key_schema_id",
        "max_message_bytes",
        "messages",
        "positions",
        "refusal",
        "relation",
        "split",
        "topic",
        "value_schema_id",
    )
    key: Callable[[Sequence[Field]], bytes | None]
    both: Callable[[Sequence[Field]], tuple[bytes | None, bytes]]
    both_filled: Callable[[Sequence[Field]], tuple[bytes | None, bytes]]

    def __init__(
        self,
        relation: Relation,
        topic: str,
        keys: tuple[str, ...],
        counters: TableCounters,
        bound: BoundEncoder | JsonEncoder | None,
        limits: TopicLimits | None,
        refusal: BwtuiError | None = None,
    ) -> None:
        self.relation = relation
        self.topic = topic
        self.key_columns = keys
        self.counters = counters
        self.key_schema_id = counters.key_schema_id
        self.value_schema_id = counters.value_schema_id
        self.refusal = refusal
        #: Whether the table has columns that are not published.
        self.in_part = False
        self.max_message_bytes = limits.max_message_bytes if limits else 0
        #: Messages of the batch that is being filled, and their bytes.
        self.messages: list[MessageTuple] = []
        self.bytes = 0
        #: When the first of them was committed, in Unix microseconds.
        self.committed = 0
        #: While recording, which of the batch's frames each message was made of.
        self.positions: list[int] = []
        #: Where the key's columns stand in a row.
        self.key_indexes = [i for i, column in enumerate(relation.columns) if column.name in keys]
        self.column_names = [column.name for column in relation.columns]
        self.split = splitter(len(relation.columns))
        if bound is not None:
            self.key, self.both, self.both_filled = bound.key, bound.both, bound.both_filled
        elif refusal is not None:
            self.key = self.both = self.both_filled = _refusing(refusal)


def _refusing(refusal: BwtuiError) -> Callable[[Sequence[Field]], NoReturn]:
    """Return what a route that is refused does with each row."""

    def refuse(fields: Sequence[Field]) -> NoReturn:
        # A new one each time: an error that is raised again keeps the frames, and so the row, of every time
        # before.
        raise RowError(refusal.message, refusal.hint) from refusal

    refusal.with_traceback(None)
    return refuse
