"""A route: the destination of the rows of one table, as long as its schema stays the same."""

import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import NoReturn

from bwtui.encode.avro import BoundEncoder
from bwtui.encode.compiled_encoders import FindLacking, Run
from bwtui.encode.json import JsonEncoder
from bwtui.encode.lines import Lines
from bwtui.errors import BwtuiError, ConnectionFailed, RowError
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.frames import BODY_OFFSET, PAYLOAD_OFFSET, XLOG_DATA
from bwtui.pgoutput.messages import Field, Relation
from bwtui.pgoutput.tuples import Split, partial_splitter, splitter
from bwtui.relay.state.run_state import TableCounters
from bwtui.sink.destination import MessageTuple, TopicLimits
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


_oid = struct.Struct(">I").unpack_from
_RELATION = ord("R")
_ROW_TAGS = frozenset(b"IUD")
#: Above this number, routes of tables without recent rows are dropped.
_ROUTES_KEPT = 256


class SessionRoutes(dict[int, TableRoute | None]):
    """Routes by the relation's oid, built when the first row arrives; None for a table that is filtered out.

    They are not built when the RELATION arrives: PostgreSQL also announces a partition whose rows all arrive
    through its root, and a topic of its own would stay empty forever.
    """

    def __init__(
        self,
        build: Callable[[Sequence[Relation]], list[TableRoute | None]],
        still_holds: Callable[[TableRoute], bool],
        begin: Callable[[TableRoute | None], None],
        ahead: Callable[[], Iterable[bytes]],
    ) -> None:
        """``begin`` is called before a route's first row; ``ahead`` returns the frames after the current one.

        Routes of relations whose rows are among these frames are built together with the needed one.
        ``still_holds`` returns whether a route stays valid when its relation is announced again.
        """
        super().__init__()
        self._build = build
        self._still_holds = still_holds
        self._begin = begin
        self._ahead = ahead
        #: The RELATION messages. PostgreSQL sends each once, and nothing after a DROP, so they are kept
        #: compact.
        self._announced: dict[int, bytes] = {}
        self._former: dict[int, TableRoute] = {}
        self._ready: dict[int, tuple[Relation, TableRoute | None]] = {}
        self._rows: dict[int, int] = {}
        self._most = _ROUTES_KEPT

    def announce(self, relation: Relation, message: bytes) -> None:
        """Store a relation that is new or has changed; ``message`` is its RELATION."""
        oid = relation.oid
        self._announced[oid] = message
        former = self._former.pop(oid, None)
        former = self.pop(oid, None) or former
        if former is not None and former.relation == relation:
            self._former[oid] = former

    def is_current(self, relation: Relation) -> bool:
        """True if the current route is the one of ``relation``, so that no query is needed."""
        route = self.get(relation.oid)
        if route is None or route.relation != relation:
            return False
        # Under FULL a RELATION does not identify the key columns, so they may have changed. Nor does it name
        # unpublished columns, one of which may have become part of the key.
        return relation.replica_identity != "f" and route.refusal is None and not route.in_part

    def __missing__(self, oid: int) -> TableRoute | None:
        """Build the route of ``oid``. Raises ConnectionFailed if its relation was not announced."""
        if oid not in self._announced:
            # Seen with PostgreSQL 14, after publish_via_partition_root was altered.
            raise ConnectionFailed(
                f"PostgreSQL sent a row of relation {oid}, which it did not announce in this session",
                "no action needed: the relay reconnects, and PostgreSQL announces the relation again",
            )
        relation = relation_of(self._announced[oid])
        built_for, route = self._ready.pop(oid, (None, None))
        former = self._former.pop(oid, None)
        if built_for != relation:
            if former is not None and self._still_holds(former):
                route = former
            else:
                route = self._build_with_next(relation)
        self._begin(route)
        self[oid] = route
        return route

    def _build_with_next(self, relation: Relation) -> TableRoute | None:
        together = [relation, *self._coming(relation)]
        route, *later_routes = self._build(together)
        pairs = zip(together[1:], later_routes, strict=True)
        self._ready |= {following.oid: (following, built) for following, built in pairs}
        return route

    def _coming(self, first: Relation) -> list[Relation]:
        """Return relations that are announced next and have rows.

        For each table, and for each name, only the first is returned: later ones are registered after it.
        """
        announced: list[Relation] = []
        used: set[int] = set()
        for frame in self._ahead():
            tag = frame[PAYLOAD_OFFSET] if frame[0] == XLOG_DATA else 0
            if tag in _ROW_TAGS:
                used.add(_oid(frame, BODY_OFFSET)[0])
            elif tag == _RELATION:
                announced.append(relation_of(frame[PAYLOAD_OFFSET:]))
        taken: set[int | str] = {first.oid, first.qualified_name}
        chosen = []
        for relation in announced:
            names: set[int | str] = {relation.oid, relation.qualified_name}
            present = self.get(relation.oid)
            # An unchanged relation that is announced again may keep its route.
            is_new = present is None or present.relation != relation
            if relation.oid in used and relation.oid not in self._ready and is_new and not names & taken:
                chosen.append(relation)
            taken |= names
        return chosen

    @property
    def are_many(self) -> bool:
        """True if it is time for `forget_idle`."""
        return len(self) > self._most

    def forget_idle(self) -> list[int]:
        """Drop the routes of tables without a row since the last call; return the tables' oids.

        A route is built again if a row arrives later. The batch must be empty.
        """
        before, self._rows = self._rows, {}
        idle = []
        for oid, route in self.items():
            if route is None or before.get(oid) == route.counters.rows:
                idle.append(oid)
            else:
                self._rows[oid] = route.counters.rows
        for oid in idle:
            del self[oid]
        self._former.clear()
        self._most = max(_ROUTES_KEPT, 2 * len(self))
        return idle


def relation_of(message: bytes) -> Relation:
    """Return the relation of a RELATION message. Raises DecodeError."""
    relation = decode(message)
    assert isinstance(relation, Relation)
    return relation
