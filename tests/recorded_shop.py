"""An in-memory recording of a small shop, the same on every run, with all special cases."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from bwtui.errors import DamagedRecording
from bwtui.model.status import STAGES, ErrorEntry, SchemaEntry, StageStatus, Status
from bwtui.pgoutput.messages import UNCHANGED, Column, Field, Relation
from bwtui.recording.change import COUNTERS, Change, DeliveryState, Operation, SentMessage
from bwtui.recording.view import RecordedTransaction, RecordingOrigin, TableCounts, TimelineBucket

#: 2026-01-15 12:00:00 UTC, in microseconds.
NOON = 1_768_478_400_000_000
SECOND = 1_000_000
INT, TEXT, NUMERIC = 23, 25, 1700


def relation(oid: int, name: str, columns: Sequence[tuple[str, int]], identity: str = "d") -> Relation:
    """Return a relation; its key is the column ``id``, if it has one."""
    made = tuple(Column(n, t, -1, n == "id" or identity == "f") for n, t in columns)
    return Relation(oid, "public", name, identity, made)


ORDERS = relation(100, "orders", (("id", INT), ("status", TEXT), ("total", NUMERIC)))
PRODUCTS = relation(101, "products", (("id", INT), ("title", TEXT), ("photo", TEXT)), "f")
AUDIT = relation(102, "audit", (("who", TEXT), ("what", TEXT)), "f")
STATUSES = ("new", "paid", "packed", "shipped", "delivered")


class Tape:
    """Writes consecutive changes as a recording contains them."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.errors: list[ErrorEntry] = []
        self.now = NOON
        self.lsn = 0x16_B3740000
        self.xid = 740
        self.pass_number = 1
        self._ordinal = 0
        self._offsets: dict[str, int] = {}

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += round(seconds * SECOND)

    def begin(self) -> None:
        """Begin a transaction."""
        self.xid += 1
        self.lsn += 0x400
        self._ordinal = 0

    def add(
        self,
        operation: Operation,
        table: Relation,
        after: Sequence[Field] | None = None,
        before: Sequence[Field] | None = None,
        *,
        before_is_key: bool = False,
        without: str | None = None,
        state: DeliveryState = "acknowledged",
        tables: tuple[str, ...] = (),
        filled: tuple[str, ...] = (),
    ) -> Change:
        """Add one change to the open transaction."""
        self._ordinal += 1
        snapshot = operation == "snapshot"
        change = Change(
            len(self.changes), self.pass_number, self.lsn, self._ordinal, 0 if snapshot else self.xid,
            self.now - 80_000, self.now, operation, table, tables or (table.qualified_name,),
            ("id",) if any(c.name == "id" for c in table.columns) else (),
            None if before is None else tuple(before), before_is_key,
            None if after is None else tuple(after), filled, (), without, False,
        )  # fmt: skip
        if without is None:
            change = replace(change, messages=self._messages(change, state))
        self.changes.append(change)
        return change

    def repeat(self, change: Change) -> None:
        """Add a change that an earlier pass already recorded."""
        self.changes.append(
            replace(
                change,
                position=len(self.changes),
                pass_number=self.pass_number,
                received=self.now,
                is_repeat=True,
            )
        )

    def _messages(self, change: Change, state: DeliveryState) -> tuple[SentMessage, ...]:
        topic = change.relation.name
        key = repr(change.key).encode() if change.key_columns else None
        value = None if change.after is None else repr(change.after).encode()
        contents = [(key, value)]
        if change.before_is_key and change.after is not None:
            contents.insert(0, (b"old key", None))
        found = []
        for part, (k, v) in enumerate(contents):
            partition, offset = len(topic) % 3, self._offsets.get(topic, 0)
            self._offsets[topic] = offset + 1
            placed = (partition, offset) if state == "acknowledged" else (None, None)
            noted = self.now + 7_500 if state == "acknowledged" else None
            ids = (change.relation.oid * 2 if k else None, change.relation.oid * 2 + 1)
            found.append(replace(SentMessage(part, topic, k, v, *ids, state, *placed), noted=noted))
        return tuple(found)


class MemoryRecording:
    """The interface of a recording over a list of changes."""

    def __init__(self, tape: Tape, name: str = "shop", more: dict[str, Any] | None = None) -> None:
        self._changes = tape.changes
        self._errors = tape.errors
        self._received = [c.received for c in tape.changes]
        self.name = name
        self.source = RecordingOrigin(
            name, "127.0.0.1:54321/shop", "7412", "18.1", "bottledwater", "bwtui_bottledwater",
            "127.0.0.1:59092", "kafka-1", "http://127.0.0.1:58081", more=more or {},
        )  # fmt: skip
        self.length = len(tape.changes)
        self.first_time, self.last_time = NOON, max(tape.now, NOON)
        lsns = [c.lsn for c in tape.changes] or [0]
        self.first_lsn, self.last_lsn = min(lsns), max(lsns)
        self.closed = False
        self.read = 0
        #: The first position that can't be read, as in a damaged recording.
        self.damaged_at = len(tape.changes) + 1

    def changes(self, start: int = 0, stop: int | None = None) -> Iterator[Change]:
        for change in self._changes[start:stop]:
            yield self._one(change)

    def _one(self, change: Change) -> Change:
        self.read += 1
        if change.position >= self.damaged_at:
            raise DamagedRecording("the recording is damaged: 00000001.bwj at byte 4711: a bit flipped", "x")
        return change

    def at_time(self, time: int) -> int:
        return bisect_left(self._received, time)

    def at_lsn(self, lsn: int) -> int:
        return next((c.position for c in self._changes if c.lsn >= lsn), self.length)

    def of_xid(self, xid: int, start: int = 0) -> int | None:
        return next((c.position for c in self._changes[start:] if c.xid == xid), None)

    def transaction(self, position: int) -> tuple[int, int]:
        change = self._changes[position]
        if change.operation == "snapshot":
            return position, position + 1
        same = (change.pass_number, change.xid)
        start, stop = position, position + 1
        while start > 0 and (self._changes[start - 1].pass_number, self._changes[start - 1].xid) == same:
            start -= 1
        while stop < self.length and (self._changes[stop].pass_number, self._changes[stop].xid) == same:
            stop += 1
        return start, stop

    def transactions(self, start: int, stop: int) -> Iterator[RecordedTransaction]:
        position = start
        while position < stop:
            change = self._changes[position]
            begin, end = self.transaction(position)
            if change.operation != "snapshot" and begin == position:
                yield RecordedTransaction(
                    begin,
                    end,
                    end - begin,
                    change.xid,
                    change.lsn,
                    change.commit_time,
                    change.received,
                    0 if self._is_unknown(begin, end) else change.received + 20_000,
                )
            position = end

    def _is_unknown(self, start: int, stop: int) -> bool:
        return any(m.state == "unknown" for change in self._changes[start:stop] for m in change.messages)

    def newest_transactions(self, stop: int, most: int) -> int:
        return 0

    def time_at(self, position: int) -> int:
        return self._received[position] if position < self.length else self.last_time

    def counts(self, position: int) -> dict[str, TableCounts]:
        found: dict[str, dict[str, Any]] = {}
        for change in self._changes[:position]:
            table = found.setdefault(
                change.table, {"key_columns": change.key_columns, "topic": change.relation.name}
            )
            name = COUNTERS[change.operation]
            table[name] = table.get(name, 0) + 1
            table["messages"] = table.get("messages", 0) + len(change.messages)
            table["bytes"] = table.get("bytes", 0) + sum(len(m.value or b"") for m in change.messages)
            table["dropped"] = table.get("dropped", 0) + (change.without == "dropped")
            table["value_schema_id"] = change.relation.oid * 2 + 1
        return {name: TableCounts(**values) for name, values in found.items()}

    def status(self, position: int) -> dict[str, Any]:
        if not position:
            return {}
        change = self._changes[position - 1]
        snapshot = change.operation == "snapshot"
        now = change.received / SECOND
        status = Status(
            "snapshot" if snapshot else "streaming", "shop", "bottledwater",
            detail="copying the tables" if snapshot else "streaming, everything committed is confirmed",
            pid=4711, started=NOON / SECOND, time=now, database="127.0.0.1:54321/shop",
            broker="127.0.0.1:59092", registry="http://127.0.0.1:58081", server_version="18.1",
            confirmed_lsn=change.lsn, server_lsn=change.lsn, received_lsn=change.lsn,
            wal_status="reserved", wal_lag_seconds=0.2, cpu_seconds=position / 100,
            resident_bytes=90_000_000, transactions=change.xid - 740,
            stages={name: StageStatus(25.0, 3, position, 1024) for name in STAGES},
        )  # fmt: skip
        return status.to_json()

    def errors(self, position: int) -> list[ErrorEntry]:
        until = self.time_at(position - 1) if position else NOON
        return [e for e in self._errors if e.time * SECOND <= until]

    def schemas(self, position: int) -> list[SchemaEntry]:
        seen = {c.relation for c in self._changes[:position]}
        text = '{"type": "record", "name": "row", "fields": []}'
        found = []
        for table in sorted(seen, key=lambda r: r.oid):
            entry = (f"{table.name}-value", table.oid * 2 + 1, 1, table.qualified_name, table.name, "value")
            found.append(SchemaEntry(*entry, text, NOON / SECOND))
        return found

    def timeline(self, buckets: int) -> list[TimelineBucket]:
        span = max(self.last_time - self.first_time, 1)
        edges = [self.first_time + span * i // buckets for i in range(buckets + 1)]
        edges[-1] += 1
        found = []
        for start, end in pairwise(edges):
            first, behind = self.at_time(start), self.at_time(end)
            errors = sum(start <= e.time * SECOND < end for e in self._errors)
            found.append(TimelineBucket(start, end, behind - first, errors, first))
        return found

    def close(self) -> None:
        self.closed = True


def shop_tape(orders: int = 40) -> Tape:
    """Return a snapshot of five orders and three products, then transactions, an idle minute, and more."""
    tape = Tape()
    tape.wait(0.5)
    tape.lsn += 0x100
    for number in range(1, 6):
        tape.add("snapshot", ORDERS, (b"%d" % number, b"new", b"9.50"))
    for number in range(1, 4):
        tape.add("snapshot", PRODUCTS, (b"%d" % number, b"Kettle", b"P" * 40))
    tape.wait(1)
    for number in range(6, 6 + orders):
        _order(tape, number)
        tape.wait(0.5)
    tape.wait(60)
    _special(tape)
    tape.wait(2)
    return tape


def _order(tape: Tape, number: int) -> None:
    """Place and pay an order in one transaction; every third order then continues."""
    key = b"%d" % number
    tape.begin()
    tape.add("insert", ORDERS, (key, b"new", b"%d.00" % (number * 3)))
    tape.add("insert", AUDIT, (b"shop", b"order " + key))
    tape.add("update", ORDERS, (key, b"paid", b"%d.00" % (number * 3)))
    if number % 3 == 0:
        tape.wait(0.1)
        tape.begin()
        tape.add("update", ORDERS, (key, b"packed", b"%d.00" % (number * 3)))


def _special(tape: Tape) -> None:
    """Add a change of the key, an unchanged large value, deletes, a dropped row, a repeat, a TRUNCATE."""
    tape.begin()
    tape.add("update", ORDERS, (b"900", b"new", b"9.50"), (b"3", None, None), before_is_key=True)
    tape.add("update", PRODUCTS, (b"2", b"Pot", UNCHANGED), (b"2", b"Kettle", UNCHANGED))
    tape.add("update", PRODUCTS, (b"1", b"Can", b"P" * 40), (b"1", b"Kettle", b"P" * 40), filled=("photo",))
    tape.wait(0.2)
    tape.begin()
    tape.add("delete", ORDERS, None, (b"1", None, None), before_is_key=True)
    tape.add("update", ORDERS, (b"4", b"far too long", b"9.50"), without="dropped")
    tape.errors.append(
        ErrorEntry(
            tape.now / SECOND, "row", "public.orders", "a row of public.orders is too large", "see max"
        )
    )
    tape.wait(0.2)
    tape.pass_number = 2
    tape.repeat(tape.changes[-2])
    tape.begin()
    tape.add("delete", AUDIT, None, (b"shop", b"order 6"), without="unkeyed")
    tape.add("update", ORDERS, (b"900", b"paid", b"9.50"), state="unknown")
    tape.wait(0.2)
    tape.begin()
    tape.add("truncate", AUDIT, without="truncated")


def shop_recording(orders: int = 40) -> MemoryRecording:
    """Return the shop's recording."""
    return MemoryRecording(shop_tape(orders))
