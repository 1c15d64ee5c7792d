"""Does the latest value of every key equal the table's row, at one LSN, while writes go on?

A temporary slot's exported snapshot shows the tables at an exact LSN, a *fence*. Once the relay's slot has
confirmed the fence, everything up to it is in the topics; they are read up to their ends then, and folded to
the latest record of each key. That may be newer than the fence. So a key that differs is looked at again
behind another fence: if no record of it has come since, its last one must be its row there, and a difference
is one. A key that is written all the time is tried until the two agree, a number of times.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from bwtui.audit.decoding import AskRegistry, Schemas, Undecodable
from bwtui.audit.report import Finding, Report
from bwtui.audit.texts import ESCAPED, differing, written
from bwtui.errors import Indeterminate, RefusedError
from bwtui.lsn import format_lsn
from bwtui.pipeline.kafka_client import Config
from bwtui.pipeline.kafka_offsets import Pinned, pin
from bwtui.pipeline.kafka_scan import SplitScan
from bwtui.pipeline.kafka_splits import Split
from bwtui.source.connection import (
    Connection,
    connect,
    connect_raw,
    execute,
    query,
    quote_identifier,
    quote_literal,
    quote_qualified,
)
from bwtui.source.slot import create_temporary, slot_state
from bwtui.source.snapshot import open_snapshot

#: How often a key is looked at before it is left undecided, and how long a fence is waited for.
ROUNDS = 8
FENCE_SECONDS = 120.0
_CHUNK = 5_000
_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Table:
    """A table and its topic; columns in the table's order."""

    namespace: str
    name: str
    topic: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    row_filter: str | None = None

    @property
    def full_name(self) -> str:
        """``schema.table``."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class Request:
    """What to compare."""

    dsn: str
    slot: str
    tables: Sequence[Table]
    config: Config
    show_values: bool = False
    samples: int = 1_000


def verify_database(
    request: Request, ask: AskRegistry, told: Callable[[str], None] = lambda _: None
) -> Report:
    """Compare the tables with their topics. Raises Indeterminate, RefusedError, ConnectionFailed."""
    begin = time.monotonic()
    keyed = [table for table in request.tables if table.key]
    if not keyed:
        raise RefusedError("no table with a key is to be compared", "check --table, and -s/--slot")
    with (
        contextlib.closing(connect(request.dsn)) as connection,
        contextlib.closing(duckdb.connect()) as store,
    ):
        live = _Live(request, connection, store, Schemas({}, ask), keyed)
        report = live.run(told)
    unkeyed = [table.full_name for table in request.tables if not table.key]
    if unkeyed:
        report.notes.append(f"without a key, and not compared: {', '.join(unkeyed)}")
    report.details["seconds"] = {"audit": round(time.monotonic() - begin, 2)}
    return report


class _Live:
    """One audit: `latest` and `doubt` are tables in ``store``."""

    def __init__(
        self,
        request: Request,
        connection: Connection,
        store: duckdb.DuckDBPyConnection,
        schemas: Schemas,
        tables: Sequence[Table],
    ) -> None:
        self._request = request
        self._connection = connection
        self._store = store
        self._schemas = schemas
        self._tables = tables
        self._read_to: dict[tuple[str, int], int] = {}
        self._rows = 0
        store.execute("set preserve_insertion_order = false; set memory_limit = '1500MB'")
        store.execute("create table latest (topic varchar, key varchar, p integer, o bigint, value blob)")
        store.execute(
            "create table doubt (topic varchar, key varchar, class varchar, fields varchar, o bigint)"
        )

    def run(self, told: Callable[[str], None]) -> Report:
        """Compare until nothing is in doubt, or a key was written too often to say."""
        wrong: list[tuple[Any, ...]] = []
        fences = []
        pinned: Pinned | None = None
        for number in range(ROUNDS):
            told(f"fence {number + 1}: waiting for the relay")
            with self._fence() as (lsn, snapshot):
                fences.append(format_lsn(lsn))
                pinned = pin(self._request.config, [table.topic for table in self._tables])
                told(f"fence {number + 1}: reading topics and tables")
                moved = self._read(pinned)
                before = {row[:2]: row for row in self._store.execute("select * from doubt").fetchall()}
                self._store.execute("delete from doubt")
                for table in self._tables:
                    self._compare(snapshot, table, before if number else None)
            doubtful = self._store.execute("select * from doubt").fetchall()
            if number:
                wrong += [row for row in doubtful if row[:2] not in moved]
                self._store.execute("delete from doubt")
                self._put("doubt", [row for row in doubtful if row[:2] in moved])
            if not self._store.execute("select count(*) from doubt").fetchall()[0][0]:
                break
        assert pinned is not None
        undecided = self._store.execute("select * from doubt").fetchall()
        return self._report(wrong, undecided, fences, pinned)

    @contextlib.contextmanager
    def _fence(self) -> Iterator[tuple[int, Connection]]:
        with contextlib.closing(create_temporary(connect_raw(self._request.dsn))) as slot:
            snapshot = open_snapshot(self._request.dsn, slot.snapshot)
        with contextlib.closing(snapshot):
            self._wait(slot.consistent_point)
            yield slot.consistent_point, snapshot

    def _wait(self, lsn: int) -> None:
        """Wait until the relay has confirmed ``lsn``. Raises RefusedError or Indeterminate."""
        deadline = time.monotonic() + FENCE_SECONDS
        while True:
            state = slot_state(self._connection, self._request.slot)
            if state is None:
                raise RefusedError(
                    f"there is no slot {self._request.slot!r}, so nothing says how far the topics are",
                    "name the relay's slot with -s; 'bwtui slots list' shows them",
                )
            if state.confirmed_lsn >= lsn:
                return
            if not state.active:
                raise Indeterminate(
                    f"no relay reads slot {self._request.slot!r}: it is at {format_lsn(state.confirmed_lsn)},"
                    f" not yet at {format_lsn(lsn)}",
                    "start the relay ('bwtui connect'), and verify while it runs",
                )
            if time.monotonic() > deadline:
                raise Indeterminate(
                    f"the relay has not come to {format_lsn(lsn)} within {FENCE_SECONDS:.0f} seconds",
                    "wait until it has caught up: bwtui status",
                )
            time.sleep(0.1)

    # -- topics ----------------------------------------------------------------------------------------------

    def _read(self, pinned: Pinned) -> set[tuple[str, str]]:
        """Fold what has come since into `latest`; return the keys of which something came."""
        self._store.execute("create or replace temp table come as select * from latest limit 0")
        for (topic, partition), (low, high) in pinned.offsets.items():
            start = max(low, self._read_to.get((topic, partition), low))
            self._read_to[topic, partition] = high
            for part in SplitScan(
                self._request.config,
                Split(topic, partition, start, high),
                "read_committed",
                _PATIENCE_SECONDS,
            ):
                rows = [
                    (topic, self._key(message.key()), partition, offset, message.value())
                    for message, offset in zip(part.messages, part.offsets, strict=True)
                ]
                self._put("come", rows)
        self._store.execute("""
            create or replace temp table newest as
            select topic, key, p, o, value from (select * from come union all select * from latest)
            qualify row_number() over (partition by topic, key order by o desc) = 1""")
        self._store.execute("delete from latest")
        self._store.execute("insert into latest select * from newest")
        found = self._store.execute(
            "select distinct topic, key from come semi join doubt using (topic, key)"
        ).fetchall()
        return {(topic, key) for topic, key in found}

    def _key(self, data: bytes | None) -> str:
        """Return a key as the texts of its columns, or what can't be one."""
        if data is None:
            return "null"
        try:
            _, row = self._schemas.decode(data)
        except Undecodable:
            return f"undecodable {data.hex()}"
        escaped = row.pop(ESCAPED, None) or {}
        return json.dumps([escaped.get(name, written(value) if value is not None else None)
                           for name, value in row.items()])  # fmt: skip

    # -- tables ----------------------------------------------------------------------------------------------

    def _compare(
        self, snapshot: Connection, table: Table, only: Mapping[tuple[Any, ...], Any] | None
    ) -> None:
        """Put into `doubt` the keys whose latest record is not their row."""
        keys = None if only is None else [key for topic, key in only if topic == table.topic]
        if keys is not None and not keys:
            return
        self._store.execute("create or replace table there (key varchar, row varchar)")
        for rows in _rows(snapshot, table, keys):
            if keys is None:
                self._rows += len(rows)
            self._put("there", rows)
        restricted = ""
        if keys is not None:
            self._store.execute("create or replace table asked (key varchar)")
            self._put("asked", [(key,) for key in keys])
            restricted = "semi join asked using (key)"
        cursor = self._store.cursor()
        cursor.execute(
            f"""select coalesce(l.key, t.key), t.row, l.value, l.o
                  from (select * from latest {restricted} where topic = ?) as l
                  full join there as t on t.key = l.key""",
            [table.topic],
        )
        while rows := cursor.fetchmany(_CHUNK):
            found = [self._judge(table, row) for row in rows]
            self._put("doubt", [one for one in found if one is not None])

    def _judge(self, table: Table, found: tuple[Any, ...]) -> tuple[Any, ...] | None:
        key, row, value, offset = found
        if row is None:
            return None if value is None else (table.topic, key, "extra_key", "[]", offset)
        if value is None:
            return table.topic, key, "missing_key", "[]", offset
        try:
            schema, decoded = self._schemas.decode(value)
            fields = differing(schema, decoded, json.loads(row))
        except Undecodable:
            fields = ["(the value can't be decoded)"]
        if not fields:
            return None
        return table.topic, key, "different_row", json.dumps(fields), offset

    def _put(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            made = pa.table(columns, names=[f"c{number}" for number in range(len(columns))])
            self._store.register("put", made)
            self._store.execute(f"insert into {table} select * from put")
            self._store.unregister("put")

    # -- the report ------------------------------------------------------------------------------------------

    def _report(
        self,
        wrong: list[tuple[Any, ...]],
        undecided: list[tuple[Any, ...]],
        fences: list[str],
        pinned: Pinned,
    ) -> Report:
        counts = dict.fromkeys(("missing_key", "extra_key", "different_row"), 0)
        for row in wrong:
            counts[row[2]] += 1
        counts["indeterminate"] = len(undecided)
        keys = self._store.execute("select count(*) from latest where value is not null").fetchall()[0][0]
        names = {table.topic: table for table in self._tables}
        rows = [
            *wrong[: self._request.samples],
            *[(*row[:2], "indeterminate", *row[3:]) for row in undecided],
        ]
        return Report(
            verdict="anomalies" if wrong else "indeterminate" if undecided else "clean",
            window={"fences": fences},
            expected=self._rows,
            actual=keys,
            balance={"expected": {}, "actual": {}},
            classes=counts,
            without={},
            findings=[self._finding(names[row[0]], row) for row in rows],
            found={name: number for name, number in counts.items() if number},
            by_topic=[],
            by_time=[],
            details={"cluster": pinned.cluster_id, "tables": [table.full_name for table in self._tables]},
        )

    def _finding(self, table: Table, row: tuple[Any, ...]) -> Finding:
        topic, key, name, fields, offset = row
        shown: Any = None
        if self._request.show_values and key.startswith("["):
            shown = dict(zip(table.key, json.loads(key), strict=False))
        return Finding(
            name,
            topic=topic,
            offset=offset,
            table=table.full_name,
            key=shown or dict.fromkeys(table.key, "…"),
            fields=[{"field": field} for field in json.loads(fields)],
            hop="relay" if name == "different_row" else "",
        )


def _rows(snapshot: Connection, table: Table, keys: Sequence[str] | None) -> Iterator[list[tuple[str, str]]]:
    """Yield (key's texts, row's texts), as the types' output functions write them."""

    def text(column: str) -> str:
        # concat, unlike a cast, writes a value as the stream does: t for true, and char(5) with its blanks.
        name = quote_identifier(column)
        return f"case when {name} is not null then pg_catalog.concat({name}) end"

    select = ", ".join(text(column) for column in table.columns)
    sql = f"select {select} from {quote_qualified(table.namespace, table.name)}"
    conditions = [f"({table.row_filter})"] if table.row_filter else []
    if keys is not None:
        texts = ", ".join(text(column) for column in table.key)
        wanted = ", ".join(quote_literal(_compact(key)) for key in keys if key.startswith("["))
        if not wanted:
            return
        conditions.append(f"pg_catalog.array_to_json(array[{texts}])::text in ({wanted})")
    if conditions:
        sql += " where " + " and ".join(conditions)
    # A cursor of the server's, for a table may be larger than memory; psycopg2's own ones need a
    # transaction that psycopg2 began.
    execute(snapshot, f"declare bwtui_verify no scroll cursor for {sql}")
    while rows := query(snapshot, f"fetch {_CHUNK} from bwtui_verify"):
        yield [_texts(table, row) for row in rows]
    execute(snapshot, "close bwtui_verify")


def _compact(key: str) -> str:
    """Return a key as PostgreSQL's array_to_json writes it."""
    return json.dumps(json.loads(key), separators=(",", ":"), ensure_ascii=False)


def _texts(table: Table, row: tuple[Any, ...]) -> tuple[str, str]:
    texts = dict(zip(table.columns, row, strict=True))
    return json.dumps([texts[name] for name in table.key]), json.dumps(texts)
