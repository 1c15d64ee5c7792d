"""A made-up relay of a shop: its status, changes and schemas as a function of time alone.

The UI's tests and screenshots need figures that change like a relay's, and that are the same on every run.
"""

import dataclasses
import json
import math
from dataclasses import dataclass

from bwtui.model.status import (
    STAGES,
    ChangeSample,
    ErrorEntry,
    FieldChange,
    SchemaEntry,
    SnapshotWorker,
    StageStatus,
    State,
    Status,
    TableStatus,
)
from bwtui.model.verdict import RelayVerdict
from tests.tui.shop_history import latencies

#: 2026-01-15 12:00:00 UTC.
NOON = 1768478400.0
STATUSES = ("new", "paid", "packed", "shipped", "delivered")
GB = 1024**3


@dataclass(frozen=True)
class ShopTable:
    """The behaviour of one table of the shop."""

    rate: float
    rows: int
    #: Shares of inserts, updates and deletes.
    mix: tuple[float, float, float]
    fields: tuple[str, ...]
    key: tuple[str, ...] = ("id",)
    notes: tuple[str, ...] = ()
    width: int = 120


TABLES = {
    "public.customers": ShopTable(42, 120_000, (0.3, 0.65, 0.05), ("id", "name", "email", "city", "created")),
    "public.products": ShopTable(18, 8_400, (0.1, 0.9, 0), ("id", "sku", "title", "price", "photo")),
    "public.orders": ShopTable(
        640, 2_350_000, (0.4, 0.58, 0.02), ("id", "customer_id", "status", "total", "placed")
    ),
    "public.order_items": ShopTable(
        1900,
        9_800_000,
        (0.9, 0.08, 0.02),
        ("order_id", "line", "product_id", "quantity", "price"),
        key=("order_id", "line"),
        width=64,
    ),
    "public.audit": ShopTable(
        710,
        4_100_000,
        (1, 0, 0),
        ("at", "who", "what"),
        key=(),
        notes=("unkeyed: messages have no key, and updates and deletes are not captured",),
        width=180,
    ),
    "warehouse.stock": ShopTable(
        260,
        52_000,
        (0.05, 0.95, 0),
        ("product_id", "bin", "amount", "dimensions"),
        key=("product_id", "bin"),
        notes=("dimensions: type box is sent as text",),
        width=48,
    ),
}

#: WAL that all tables together write, in bytes a second.
_WAL = sum(table.rate * (table.width + 120) for table in TABLES.values())
_BUSY = {"read": 0.07, "decode": 0.0, "encode": 0.19, "produce": 0.06, "acknowledge": 0.02}


@dataclass
class Shop:
    """The relay's state at any moment since ``start``."""

    start: float = NOON
    state: State = "streaming"
    slow: str | None = None
    trouble: bool = False
    #: More tables of the same kind, for benchmarks.
    extra: int = 0
    name: str = "shop"
    exit_code: int | None = None

    def tables(self) -> dict[str, ShopTable]:
        """Return the tables, extra ones included."""
        more = {f"public.extra_{i:02}": TABLES["public.orders"] for i in range(self.extra)}
        return {**TABLES, **more}

    def status(self, now: float) -> Status:
        """Return the status at a moment."""
        age = max(now - self.start, 0.0)
        tables = {name: self._table(i, name, t, age) for i, (name, t) in enumerate(self.tables().items())}
        rate = sum(t.rows_per_second for t in tables.values())
        behind = 2.4 * GB if self.slow else 90_000 + 40_000 * math.sin(age / 3)
        server = 0x16_B3740000 + int(age * 410_000)
        return Status(
            state=self.state,
            name=self.name,
            slot="bottledwater",
            detail=self._detail(),
            phase=self.state,
            verdict=self._verdict(),
            pid=4711,
            started=self.start,
            time=now,
            publication="bwtui_bottledwater",
            database="127.0.0.1:54321/shop",
            broker="127.0.0.1:59092",
            registry="http://127.0.0.1:58081",
            server_version="18.1",
            confirmed_lsn=server - int(behind),
            received_lsn=server - int(behind / 3),
            server_lsn=server,
            restart_lsn=server - int(behind * 1.2),
            wal_lag_bytes=int(behind),
            wal_lag_seconds=74.0 if self.slow else 0.21 + 0.05 * math.sin(age),
            retained_wal_bytes=int(behind * 1.2) + 16 * 1024**2,
            wal_status="extended" if self.slow else "reserved",
            safe_wal_bytes=int(7.6 * GB) if self.slow else 10 * GB,
            spill_bytes=0,
            transactions=int(age * 310),
            resident_bytes=143_000_000 + int(4e6 * math.sin(age / 7)),
            cpu_seconds=age * 0.37,
            tables=tables,
            stages=self._stages(rate, age),
            latency=latencies(27_000),
            latency_minute=latencies(161_000),
            latency_since_start=latencies(int(age * 2700)),
            errors=self._errors(now),
            exit_code=self.exit_code,
            snapshot_workers=self._workers(tables) if self.state == "snapshot" else (),
        )

    def changes(self, now: float, after: int) -> list[ChangeSample]:
        """Return ten changes for every second up to a moment, at most the newest 500."""
        last = int(max(now - self.start, 0.0) * 10)
        return [self._change(n) for n in range(max(after + 1, last - 499, 1), last + 1)]

    def schemas(self) -> list[SchemaEntry]:
        """Return a key and a value schema of every table; the unkeyed one has no key."""
        found = []
        for i, (name, table) in enumerate(self.tables().items()):
            topic = name.removeprefix("public.")
            parts = (("key", table.key), ("value", table.fields)) if table.key else (("value", table.fields),)
            for part, names in parts:
                number = 2 * i + 1 + (part == "value")
                text = _schema(topic, part, names)
                version = 1 + (name == "public.orders" and part == "value")
                found.append(
                    SchemaEntry(f"{topic}-{part}", number, version, name, topic, part, text, self.start)
                )
        return found

    def _verdict(self) -> RelayVerdict:
        sentence = self._detail()
        if self.state == "failed":
            return RelayVerdict("failed", sentence, "relay", hint="see the broker's log")
        if self.slow:
            return RelayVerdict("behind", sentence, "relay", stage=self.slow)
        return RelayVerdict("healthy", sentence)

    def _detail(self) -> str:
        if self.state == "snapshot":
            return "copying the tables as of 16/B3740000, 2 at a time"
        if self.state == "failed":
            return "the broker refuses the messages"
        if self.slow:
            return f"{self.slow} can't keep up with the server"
        return "streaming, everything committed is confirmed within a second"

    def _table(self, index: int, name: str, table: ShopTable, age: float) -> TableStatus:
        wave = 1 + 0.35 * math.sin(age / 5 + index) + 0.1 * math.sin(age * 1.7 + index * 2)
        rows = int(table.rate * age)
        inserts, updates, deletes = (int(rows * share) for share in table.mix)
        snapshot = self._snapshot(index, table, age)
        bad = self.trouble and name == "public.products"
        return TableStatus(
            topic=name.removeprefix("public."),
            snapshot_rows=snapshot[1],
            inserts=0 if self.state == "snapshot" else inserts,
            updates=0 if self.state == "snapshot" else updates,
            deletes=0 if self.state == "snapshot" else deletes,
            truncates=1 if name == "public.audit" and age > 10 else 0,
            messages=rows + snapshot[1],
            bytes=(rows + snapshot[1]) * table.width,
            rows_per_second=table.rate * wave,
            bytes_per_second=table.rate * wave * table.width,
            wal_share=table.rate * (table.width + 120) / _WAL,
            wal_bytes_per_second=table.rate * wave * (table.width + 120),
            latency_p50=0.011 + 0.001 * index,
            latency_p99=0.048 + 0.013 * index,
            errors=17 if bad else 0,
            dead_letters=17 if bad else 0,
            toast_fetched=1204 if bad else 0,
            toast_placeholders=3 if bad else 0,
            toast_superseded=2 if bad else 0,
            key_schema_id=2 * index + 1 if table.key else None,
            value_schema_id=2 * index + 2,
            value_schema_version=1 + (name == "public.orders"),
            snapshot_state=snapshot[0],
            snapshot_estimate=table.rows,
            snapshot_seconds_left=20 - age + 4 * index if snapshot[0] == "running" else None,
            key_columns=table.key,
            notes=table.notes,
        )

    def _workers(self, tables: dict[str, TableStatus]) -> tuple[SnapshotWorker, ...]:
        read = [name for name, table in tables.items() if table.snapshot_state == "running"]
        return tuple(SnapshotWorker(4712 + n, (name,), 120_000, 80 << 20) for n, name in enumerate(read))

    def _snapshot(self, index: int, table: ShopTable, age: float) -> tuple[str, int]:
        if self.state != "snapshot":
            return "done", table.rows
        begun = age - 4 * index
        if begun <= 0:
            return "pending", 0
        share = min(begun / 20, 1.0)
        return ("done" if share == 1 else "running"), int(table.rows * share)

    def _stages(self, rate: float, age: float) -> dict[str, StageStatus]:
        stages = {}
        for i, name in enumerate(STAGES):
            behind_slow = self.slow is not None and i <= STAGES.index(self.slow)
            queue = (
                int(930 + 40 * math.sin(age + i)) if behind_slow else int(40 + 35 * math.sin(age * 1.3 + i))
            )
            speed = rate * (0.31 if self.slow else 1) * (1 + 0.01 * math.sin(age * 2 + i))
            capacity = None if name == "acknowledge" else 1024
            busy = 0.96 if name == self.slow else _BUSY[name]
            stages[name] = StageStatus(speed, queue, int(3570 * age), capacity, busy)
        return stages

    def _errors(self, now: float) -> tuple[ErrorEntry, ...]:
        if not self.trouble:
            return ()
        return (
            ErrorEntry(
                now - 40,
                "warning",
                "public.audit",
                "table public.audit has no primary key, so its messages have no key",
                "add a primary key, or leave the table out with --exclude-table audit",
            ),
            ErrorEntry(
                now - 3,
                "too large",
                "public.products",
                "a message for topic products is larger than the broker takes (1,048,576 bytes)",
                "raise max.message.bytes of the topic, or exclude the column from the publication",
                17,
            ),
            ErrorEntry(
                now - 25,
                "broker",
                None,
                "the broker at 127.0.0.1:59092 did not answer for 12 s",
                "the relay waits and loses nothing; see that the broker runs",
                4,
            ),
        )

    def _change(self, number: int) -> ChangeSample:
        names = list(TABLES)
        name = names[(number * 5 + number // 4) % len(names)]
        table = TABLES[name]
        choice = (number * 37 % 100) / 100
        inserts, updates, _ = table.mix
        operation = "insert" if choice < inserts else "update" if choice < inserts + updates else "delete"
        moment = self.start + number / 10
        key = "/".join(str(100_000 + number * 13 % 9973 + i) for i in range(len(table.key)))
        return ChangeSample(
            sequence=number,
            time=moment,
            commit_time=moment - 0.08,
            lsn=f"16/{0xB3740000 + number * 41_000:X}",
            xid=7_400_000 + number // 3,
            operation=operation,
            table=name,
            topic=name.removeprefix("public."),
            key=key,
            fields=_fields(table, operation, number),
        )


def _fields(table: ShopTable, operation: str, number: int) -> tuple[FieldChange, ...]:
    fields = []
    for i, name in enumerate(table.fields):
        old, new = _value(name, number), _value(name, number + 1)
        if operation == "insert":
            fields.append(FieldChange(name, None, old, "new"))
        elif operation == "delete":
            fields.append(FieldChange(name, old if name in table.key else None, None, "gone"))
        elif name == "photo":
            fields.append(FieldChange(name, None, None, "unchanged TOAST"))
        elif name in ("email", "city") and number % 2:
            fields.append(FieldChange(name, None, new, "unknown before"))
        elif i > 1 and name not in table.key and (i + number) % 2:
            fields.append(FieldChange(name, old, new, "changed"))
        else:
            fields.append(FieldChange(name, old, old, "same"))
    return tuple(fields)


def _value(name: str, number: int) -> str | None:
    people = ("Ada Lovelace", "Grace Hopper", "Edsger Dijkstra", "Barbara Liskov", "Zoë Müller-Österreich")
    values: dict[str, str | None] = {
        "status": STATUSES[number % len(STATUSES)],
        "name": people[number % len(people)],
        "who": people[number % len(people)],
        "email": f"customer{number % 997}@example.com",
        "city": None if number % 4 == 0 else ("Berlin", "Zürich", "大阪", "Oslo")[number % 4],
        "price": f"{number * 7 % 9000 / 100:.2f}",
        "total": f"{number * 31 % 90000 / 100:.2f}",
        "what": f"changed order {100_000 + number} [from the shop, page {number % 40}]",
        "title": "Kettle, 1.7 l, with a very long name that fits into no narrow column of any terminal",
        "dimensions": f"({number % 9},{number % 7}),(0,0)",
        "at": f"2026-01-15 12:{number // 600 % 60:02}:{number // 10 % 60:02}.{number % 10}+00",
        "placed": f"2026-01-15 12:{number // 600 % 60:02}:{number // 10 % 60:02}+00",
    }
    return values.get(name, str(100_000 + number * 13 % 9973))


def _schema(topic: str, part: str, names: tuple[str, ...]) -> str:
    kinds = {"price": "string", "total": "string", "name": "string", "status": "string", "photo": "bytes"}
    fields = [{"name": n, "type": ["null", kinds.get(n, "long")], "default": None} for n in names]
    return json.dumps({"type": "record", "name": f"{topic.replace('.', '_')}_{part}", "fields": fields})


def as_json(change: ChangeSample) -> dict[str, object]:
    """Return a change as the control socket sends it."""
    return dataclasses.asdict(change)
