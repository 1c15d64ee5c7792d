"""An in-memory double of RecordingView, and changes for it."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from bwtui.model.status import ErrorEntry, SchemaEntry
from bwtui.pgoutput.messages import Column, Field, Relation
from bwtui.recording.change import Change, Operation, SentMessage
from bwtui.recording.view import RecordedTransaction, RecordingOrigin, TableCounts, TimelineBucket

TIME = 1_790_000_000_000_000


def relation(
    name: str,
    columns: Sequence[str | tuple[str, int]],
    key: Sequence[str] = ("id",),
    namespace: str = "public",
    identity: str = "d",
    oid: int = 16384,
) -> Relation:
    """Return a table whose columns are text unless paired with a type's oid."""
    named = [(column, 25) if isinstance(column, str) else column for column in columns]
    return Relation(
        oid,
        namespace,
        name,
        identity,
        tuple(Column(column, oid, -1, column in key or identity == "f") for column, oid in named),
    )


def row(values: Sequence[str | bytes | Field] | None) -> tuple[Field, ...] | None:
    """Return a row of texts."""
    if values is None:
        return None
    return tuple(value.encode() if isinstance(value, str) else value for value in values)


def _relation_of(qualified_name: str) -> Relation:
    namespace, _, name = qualified_name.partition(".")
    return Relation(0, namespace, name, "n", ())


def change(
    table: Relation,
    operation: Operation = "insert",
    after: Sequence[Any] | None = None,
    before: Sequence[Any] | None = None,
    key: tuple[str, ...] = ("id",),
    **more: Any,
) -> Change:
    """Return a change with one message; ``more`` overrides its fields."""
    values: dict[str, Any] = {
        "position": 0,
        "pass_number": 1,
        "lsn": 0x1A2B,
        "ordinal": 1,
        "xid": 700,
        "commit_time": TIME,
        "received": TIME + 1000,
        "tables": (table.qualified_name,),
        "before_is_key": before is not None and table.replica_identity != "f",
        "filled": (),
        "messages": (message(),),
        "without": None,
        "is_repeat": False,
    }
    if operation == "truncate" and "truncated" not in more:
        values["truncated"] = tuple(
            table if name == table.qualified_name else _relation_of(name)
            for name in (values | more)["tables"]
        )
    return Change(
        operation=operation,
        relation=table,
        key_columns=key,
        after=row(after),
        before=row(before),
        **(values | more),
    )


def message(part: int = 0, **more: Any) -> SentMessage:
    """Return a message that Kafka acknowledged."""
    values: dict[str, Any] = {
        "topic": "orders",
        "key": b"key",
        "value": b"value",
        "key_schema_id": 1,
        "value_schema_id": 2,
        "state": "acknowledged",
        "partition": 0,
        "offset": 7,
    }
    return SentMessage(part=part, **(values | more))


class RecordingDouble:
    """A recording of the given changes, with new positions."""

    name = "double"
    source = RecordingOrigin(recording="double")

    def __init__(self, changes: Sequence[Change]) -> None:
        self._changes = [replace(one, position=position) for position, one in enumerate(changes)]
        self.length = len(self._changes)
        self.first_time = self._changes[0].received if changes else 0
        self.last_time = self._changes[-1].received if changes else 0
        self.first_lsn = self._changes[0].lsn if changes else 0
        self.last_lsn = self._changes[-1].lsn if changes else 0
        self.closed = False

    def changes(self, start: int = 0, stop: int | None = None) -> Iterator[Change]:
        yield from self._changes[start:stop]

    def at_time(self, time: int) -> int:
        return bisect_left([one.received for one in self._changes], time)

    def at_lsn(self, lsn: int) -> int:
        return next((one.position for one in self._changes if one.lsn >= lsn), self.length)

    def of_xid(self, xid: int, start: int = 0) -> int | None:
        return next((one.position for one in self._changes[start:] if one.xid == xid), None)

    def transaction(self, position: int) -> tuple[int, int]:
        lsn = self._changes[position].lsn
        found = [one.position for one in self._changes if one.lsn == lsn]
        return found[0], found[-1] + 1

    def transactions(self, start: int, stop: int) -> Iterator[RecordedTransaction]:
        position = start
        while position < stop:
            one, end = self._changes[position], self.transaction(position)[1]
            if one.xid:
                number = end - position
                yield RecordedTransaction(
                    position, end, number, one.xid, one.lsn, one.commit_time, one.received
                )
            position = end

    def newest_transactions(self, stop: int, most: int) -> int:
        return 0

    def time_at(self, position: int) -> int:
        return self._changes[position].received if position < self.length else self.last_time

    def counts(self, position: int) -> dict[str, TableCounts]:
        return {}

    def status(self, position: int) -> dict[str, Any]:
        return {}

    def errors(self, position: int) -> list[ErrorEntry]:
        return []

    def schemas(self, position: int) -> list[SchemaEntry]:
        return []

    def timeline(self, buckets: int) -> list[TimelineBucket]:
        return []

    def close(self) -> None:
        self.closed = True
