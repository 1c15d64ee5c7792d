"""A generated stream, recorded by the relay's own recorder, and a simple model of a reader's results."""

import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bwtui.model.delivery import Receipt
from bwtui.model.status import SchemaEntry, Status
from bwtui.pgoutput.frames import POSTGRES_EPOCH_US
from bwtui.pgoutput.messages import UNCHANGED, Column, Field, Relation
from bwtui.recording.change import OF_TRANSACTIONS
from bwtui.recording.payloads import NoMessageReason
from bwtui.recording.resume import continue_in
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows.journal_recorder import JournalRecorder
from bwtui.relay.state.run_state import RunState, TableCounters
from bwtui.settings import RelaySettings
from tests.waiting import eventually

SOURCE = {
    "database": "shop",
    "system_identifier": "7",
    "slot": "shop",
    "output_format": "avro",
    "broker": "here:9092",
    "cluster": "k",
}


def table(oid: int, name: str, identity: str = "d", version: int = 0) -> Relation:
    """Return a table with the columns id and body; each version has one more column."""
    more = tuple(Column(f"extra{n}", 25, -1, identity == "f") for n in range(version))
    columns = (Column("id", 20, -1, True), Column("body", 25, -1, identity == "f"))
    return Relation(oid, "public", name, identity, (*columns, *more))


@dataclass(frozen=True, slots=True)
class Expected:
    """A change as the model knows it; ``messages`` are keys and values."""

    operation: str
    tables: tuple[str, ...]
    lsn: int
    ordinal: int
    xid: int
    before: tuple[Field, ...] | None
    after: tuple[Field, ...] | None
    messages: tuple[tuple[bytes | None, bytes | None], ...]
    without: str | None
    is_repeat: bool
    pass_number: int


@dataclass
class Stream:
    """Drives a `JournalRecorder` as the relay does; `changes` is the model."""

    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    changes: list[Expected] = field(default_factory=list)
    lsn: int = 1000
    xid: int = 500
    offset: int = 0
    #: Returns the relay's status.
    status: Callable[[], Status] | None = None
    recorder: JournalRecorder = field(init=False)
    #: Committed transactions that a new pass repeats: the changes of each.
    history: list[tuple[int, int, list[tuple[Any, ...]]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._routes: dict[Relation, TableRoute] = {}
        self._pending: list[Expected] = []
        self._open: list[tuple[Any, ...]] | None = None
        self._batch_routes: list[TableRoute] = []
        self._sent: list[list[Receipt]] = []
        self._seen = (0, 0)
        self._pass_seen = (0, 0)
        self._pass = 0
        self._ordinal = 0
        self._snapshot: Relation | None = None
        #: Number of rows that this run has backfilled, by table.
        self._put: dict[int, int] = {}
        self.start()

    # -- sessions ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a session."""
        report = RunState()
        settings = RelaySettings(record=str(self.folder), **self.settings)
        before = continue_in(self.folder, dict(SOURCE))
        self.recorder = JournalRecorder(
            settings, report, struct.pack(">Q", self.xid), dict(SOURCE), before, self._status
        )
        for route in self._routes.values():
            report.schemas[f"{route.topic}-value", route.value_schema_id or 0] = schema(route)
        self.report = report
        self._routes = {}
        self._put = {}

    def _status(self) -> Status:
        return self.status() if self.status is not None else Status("streaming", "shop", "shop")

    def stop(self) -> None:
        """End a session cleanly."""
        self.flush()
        self.deliver()
        self.recorder.close()

    def begin_pass(self, kind: Literal["snapshot", "stream"] = "stream") -> None:
        """Begin a pass; unflushed data is lost, and uncommitted data is sent again."""
        self._pending.clear()
        for route in self._batch_routes:
            route.messages, route.positions, route.bytes = [], array("I"), 0
        self._batch_routes = []
        self._sent.clear()
        self._open = None
        self._snapshot = None
        self._pass += 1
        self._pass_seen = self._seen
        self._routes = {}
        self.recorder.begin_pass(kind, self.lsn)

    # -- what the relay does -------------------------------------------------------------------------------

    def begin(self, lsn: int | None = None, xid: int | None = None) -> None:
        """Read a BEGIN; a new transaction unless an old one is given."""
        self.lsn += 10
        self.xid += lsn is None
        self._current = (lsn or self.lsn, xid or self.xid)
        self._ordinal = 0
        self._open = []
        at, number = self._current
        self._frame(b"B" + struct.pack(">QqI", at, at * 1000 - POSTGRES_EPOCH_US, number))

    def commit(self) -> None:
        """Read a COMMIT."""
        if self._open is None:
            return
        at, xid = self._current
        self._frame(b"C" + struct.pack(">BQQq", 0, at, at + 5, 0))
        self.history.append((at, xid, self._open))
        self._open = None

    def repeat(self, count: int) -> None:
        """Read the newest ``count`` transactions again, as after a reconnect.

        This includes all that were not recorded, since a slot never starts after one of those.
        """
        count = max(count, sum((lsn, len(done)) > self._seen for lsn, _, done in self.history))
        self.begin_pass()
        for at, xid, done in self.history[len(self.history) - count :]:
            self.begin(at, xid)
            for one in done:
                self.change(*one)
            self.commit()
            self.history.pop()

    def change(self, what: str, relation: Relation, key: int, body: bytes | None) -> None:
        """Read one change of the open transaction, or of a new one."""
        if self._open is None:
            self.begin()
        assert self._open is not None
        self._open.append((what, relation, key, body))
        self._ordinal += 1
        oid = struct.pack(">I", relation.oid)
        route = self._route(relation)
        width = len(relation.columns)
        name, old = b"%d" % key, b"%d" % (key + 1000)
        after: list[Field] = [name, body, *[b"x"] * (width - 2)]
        before: list[Field] | None = None
        messages: list[tuple[bytes | None, bytes | None]] = [(name, body or b"null")]
        without: NoMessageReason | None = None
        if what == "insert":
            data = b"I" + oid + b"N" + tuple_of(after)
        elif what == "update":
            data = b"U" + oid + b"N" + tuple_of(after)
        elif what == "rename":
            before = [old, *[None] * (width - 1)]
            messages.insert(0, (old, None))
            data = b"U" + oid + b"K" + tuple_of(before) + b"N" + tuple_of(after)
        elif what == "toast":
            sent = [name, UNCHANGED, *after[2:]]
            data = b"U" + oid + b"N" + tuple_of(sent)
            after[1] = body or b""
            messages = [(name, body or b"")]
            self.recorder.filled(sent, after)
        elif what == "delete":
            before, after = [name, *[None] * (width - 1)], []
            messages = [(name, None)]
            data = b"D" + oid + b"K" + tuple_of(before)
        elif what == "dropped":
            messages, without = [], NoMessageReason.DROPPED
            data = b"I" + oid + b"N" + tuple_of(after)
        else:
            what, after, messages, without = "truncate", [], [], NoMessageReason.TRUNCATED
            data = b"T" + struct.pack(">IB", 1, 0) + oid
        for one in messages:
            self._add(route, *one)
        if without is not None:
            self.recorder.without(route, without)
        at, xid = self._current
        operation = {"rename": "update", "toast": "update", "dropped": "insert"}.get(what, what)
        self._expect(
            operation,
            relation,
            (at, self._ordinal, xid),
            tuple(before) if before is not None else None,
            tuple(after) if after else None,
            messages,
            without,
        )
        self._frame(data)

    def row(self, relation: Relation, key: int, body: bytes | None) -> None:
        """Read a row of a snapshot."""
        if self._snapshot != relation:
            self.flush()
            if self._snapshot is None:
                self.begin_pass("snapshot")
            self.recorder.begin_table(relation, self.lsn, 5)
            self._snapshot, self._ordinal = relation, 0
        self._ordinal += 1
        route = self._route(relation)
        width = len(relation.columns)
        after: list[Field] = [b"%d" % key, body, *[b"x"] * (width - 2)]
        message = (b"%d" % key, body or b"null")
        self._add(route, *message)
        self._expect("snapshot", relation, (self.lsn, self._ordinal, 0), None, tuple(after), [message], None)
        line = b"\t".join(b"\\N" if cell is None else cell for cell in after)  # type: ignore[misc]
        self.recorder.frames.append(line)

    def cleanup(self, relation: Relation, keys: list[int]) -> None:
        """Record the cleanup after an unfinished snapshot."""
        self.flush()
        route = self._route(relation)
        self.recorder.begin_table(relation, self.lsn, 5)
        messages = [(b"%d" % key, None, 0, None) for key in keys]
        for one in messages:
            self._expect("cleanup", relation, (self.lsn, 0, 0), None, None, [one[:2]], None)
        self._sent.append([self.recorder.write_cleanup(route, messages)])
        self._snapshot = None
        self._written()

    def put(
        self, relation: Relation, keys: Sequence[int], gone: Sequence[int] = (), body: bytes = b"p"
    ) -> None:
        """Backfill rows, and tombstones for keys that are ``gone``."""
        self.commit()
        self.flush()
        route = self._route(relation)
        # This is the closest to the next transaction's LSN: where one commit record ends, the next may begin.
        lsn, width = self.lsn + 10, len(relation.columns)
        for some, op in ((keys, "backfill"), (gone, "cleanup")):
            self.recorder.begin_rows(relation, lsn, 5, self._put.get(relation.oid, 0))
            for key in some:
                ordinal = self._put[relation.oid] = self._put.get(relation.oid, 0) + 1
                after: list[Field] = [b"%d" % key, body, *[b"x"] * (width - 2)]
                message = (b"%d" % key, body if op == "backfill" else None)
                self._add(route, *message)
                row = tuple(after) if op == "backfill" else None
                self._expect(op, relation, (lsn, ordinal, 0), None, row, [message], None)
                if op == "backfill":
                    self.recorder.frames.append(b"\t".join(after))  # type: ignore[arg-type]
            self.flush()
        self.recorder.end_rows()

    def flush(self) -> None:
        """Hand the batch over."""
        routes, self._batch_routes = self._batch_routes, []
        receipts = self.recorder.write_batch(routes)
        for route in routes:
            route.messages, route.positions, route.bytes = [], array("I"), 0
        if receipts:
            self._sent.append(receipts)
        self._written()

    def deliver(self) -> None:
        """Deliver everything that was sent."""
        for receipts in self._sent:
            for receipt in receipts:
                for index in range(len(receipt.partitions)):
                    self.offset += 1
                    receipt.partitions[index], receipt.offsets[index] = self.offset % 3, self.offset
            self.recorder.take_settled(receipts)
        self._sent.clear()

    def wait_durable(self) -> int:
        """Poll until everything is on disk, as the relay does before it confirms; return the LSN after it."""
        self.recorder._journal.is_waited_for = True
        wanted = self.lsn

        def is_durable() -> bool:
            self.recorder.reach(wanted)
            return self.recorder.durable_lsn >= wanted

        eventually("the disk", is_durable)
        return wanted

    def settle(self) -> None:
        """Let the recorder do its pending work, such as a new segment when one is large."""
        self.recorder.settle()

    # -- the model -----------------------------------------------------------------------------------------

    def _expect(
        self,
        operation: str,
        relation: Relation,
        identity: tuple[int, int, int],
        before: tuple[Field, ...] | None,
        after: tuple[Field, ...] | None,
        messages: list[Any],
        without: NoMessageReason | None,
    ) -> None:
        self._pending.append(
            Expected(
                operation,
                (relation.qualified_name,),
                *identity,
                before,
                after,
                tuple(messages),
                without.name.lower() if without is not None else None,
                operation in OF_TRANSACTIONS and identity[:2] <= self._pass_seen,
                self._pass,
            )
        )

    def _written(self) -> None:
        self.changes += self._pending
        for one in self._pending:
            if one.operation in OF_TRANSACTIONS:
                self._seen = max(self._seen, (one.lsn, one.ordinal))
        self._pending.clear()

    def _route(self, relation: Relation) -> TableRoute:
        route = self._routes.get(relation)
        if route is None:
            # As in the relay, earlier data is written first.
            self.flush()
            route = TableRoute(relation, relation.name, ("id",), TableCounters(), None, None)
            route.value_schema_id = relation.oid * 10 + len(relation.columns)
            self._routes[relation] = route
            self.report.schemas[f"{route.topic}-value", route.value_schema_id] = schema(route)
            self.recorder.relation(relation)
        return route

    def _add(self, route: TableRoute, key: bytes | None, value: bytes | None) -> None:
        if not route.messages:
            self._batch_routes.append(route)
        route.messages.append((key, value, 0, None))
        route.positions.append(len(self.recorder.frames))
        route.bytes += len(key or b"") + len(value or b"")

    def _frame(self, payload: bytes) -> None:
        self.recorder.frames.append(b"w" + struct.pack(">QQq", self.lsn, self.lsn, 0) + payload)


def tuple_of(fields: list[Field]) -> bytes:
    """Return a pgoutput tuple."""
    parts = [struct.pack(">H", len(fields))]
    for value in fields:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, bytes):
            parts.append(b"t" + struct.pack(">I", len(value)) + value)
        else:
            parts.append(b"u")
    return b"".join(parts)


def schema(route: TableRoute) -> SchemaEntry:
    """Return the schema of a route's values."""
    name = route.relation.qualified_name
    return SchemaEntry(
        f"{route.topic}-value", route.value_schema_id or 0, 1, name, route.topic, "value", '"string"', 0.0
    )
