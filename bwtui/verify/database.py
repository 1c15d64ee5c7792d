"""Check that the latest value of every key equals the table's row, at one LSN, while writes continue.

The exported snapshot of a temporary slot shows the tables at an exact LSN, a *fence*. Once the relay's slot
has confirmed the fence, everything up to it is in the topics; they are read up to their ends at that time,
and folded to the latest record of each key. That record may be newer than the fence. So a key that differs is
checked again after another fence: if it has no newer record since, its last one must equal its row there, and
any difference is real. A key that is written all the time is checked repeatedly until both sides agree, up to
a maximum number of rounds; in the last round it is enough that the row equals one of the records that may
have been the latest at the fence.

Rows without a key are counted: a row that the table has more often at the fence than the topic ever had it is
missing. More copies in the topic mean nothing, as rows are deleted, and sent again.

A table that the relay should capture, but that is in none of its publications, is itself a finding: its
topic, if there is one, is out of date.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from bwtui.audit.canonical_values import AskRegistry, Schemas
from bwtui.audit.classes import DATABASE, UNDECIDED, balance_classes, verdict_of
from bwtui.audit.report import AuditFinding, AuditSummary, unreadable
from bwtui.errors import Indeterminate, RefusedError
from bwtui.kafka.client import Config
from bwtui.kafka.scan import PinnedTopics, pin
from bwtui.model.lsn import format_lsn
from bwtui.signals.duckdb_session import session
from bwtui.sink.dead_letters import DeadLetter, keys_of, printed_name
from bwtui.source.connection import Connection, connect
from bwtui.source.raw_session import connect_raw
from bwtui.source.raw_stream import reached_server
from bwtui.source.slot import create_temporary, slot_state
from bwtui.source.snapshot import TablesChanged, import_snapshot
from bwtui.spark.scratch import scratch
from bwtui.verify.folding import SPELLED, UNTRUSTED, Doubt, Fold, KeyDifference, differences, note_letters
from bwtui.verify.tables import ComparedTable, TableShape, shapes

__all__ = [
    "ComparedTable",
    "ComparisonRequest",
    "Doubt",
    "Fence",
    "KeyDifference",
    "OnDifferences",
    "verify_database",
]

#: Maximum number of rounds before a key is left undecided, and the timeout for a fence.
ROUNDS = 8
FENCE_SECONDS = 120.0
#: A relay that lost its connection has reconnected within this time.
_RECONNECT_SECONDS = 5.0


#: Called with a table, the doubts about its topic, and its differing keys.
OnDifferences = Callable[[ComparedTable, Sequence[Doubt], Iterator[KeyDifference]], None]


@dataclass(frozen=True, slots=True)
class Fence:
    """A snapshot exported by a session that stays open; it shows the tables at ``lsn``."""

    lsn: int
    snapshot: str


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """The tables to compare with their topics, and how to reach both."""

    dsn: str
    slot: str
    tables: Sequence[ComparedTable]
    config: Config
    #: The partitioner of the relay's producer; "" if unknown.
    partitioner: str = ""
    show_values: bool = False
    samples: int = 1_000
    #: Tables that the relay should capture but does not, each with the reason.
    not_captured: Mapping[str, str] = field(default_factory=dict)
    #: Returns the name of the local relay that uses the slot of a database, if there is one.
    reconnecting: Callable[[str], str | None] = lambda _: None
    #: Further notes for the report, such as rows that are not published.
    notes: Sequence[str] = ()
    #: Returns the open dead letters by relay. Called after the topics were read: the relay may still write
    #: those of changes that the comparison waits for.
    open_letters: Callable[[], Mapping[str, Sequence[DeadLetter]]] = dict
    #: Called at the end for each table that was compared, with all of its differences.
    on_differences: OnDifferences | None = None
    #: By topic: the encoding in which the relay writes keys now; without an entry, that of most keys counts.
    spellings: Mapping[str, str] = field(default_factory=dict)
    #: The only fence if no relay runs: the topics are compared as they are, without waiting.
    at: Fence | None = None


def verify_database(
    request: ComparisonRequest, ask: AskRegistry, on_phase: Callable[[str], None] = lambda _: None
) -> AuditSummary:
    """Compare the tables with their topics; ``on_phase`` is called with a description of each phase.

    Raises Indeterminate, RefusedError or ConnectionFailed.
    """
    begin = time.monotonic()
    if not request.tables and not request.not_captured:
        hint = "check --table and --exclude-table; \\dRp+ in psql lists the tables of each publication"
        raise RefusedError("no table is selected for the comparison", hint)
    with (
        scratch("bwtui-verify-") as folder,
        contextlib.closing(connect(request.dsn)) as connection,
        # In memory as long as there is room, and then in the folder.
        session(temp_directory=str(folder / "spill")) as store,
    ):
        report = _LiveAudit(request, connection, store, Schemas({}, ask)).run(on_phase)
    report.details["seconds"] = {"audit": round(time.monotonic() - begin, 2)}
    return report


class _LiveAudit:
    """One audit of tables while writes continue: its fences, and its results."""

    def __init__(
        self,
        request: ComparisonRequest,
        connection: Connection,
        store: duckdb.DuckDBPyConnection,
        schemas: Schemas,
    ) -> None:
        self._request = request
        self._connection = connection
        self._store = store
        self._fold = Fold(store, request.config, schemas, request.partitioner, request.spellings)
        self._fences: list[str] = []
        #: The servers on which the fences were taken.
        self._servers: set[tuple[str, str, int | None]] = set()
        self._lacking: set[str] = set()
        #: Topic → its table as it was at the last fence at which it was compared.
        self._shapes: dict[str, TableShape] = {}

    def run(self, on_phase: Callable[[str], None]) -> AuditSummary:
        """Compare until no key is in doubt, or only keys remain that were written too often to decide."""
        cluster = ""
        for number in range(ROUNDS if self._request.tables else 0):
            on_phase(f"waiting until the relay reaches snapshot {number + 1} of the tables")
            with self._fence(is_first=not number) as (pinned, snapshot, shapes_at_fence):
                cluster = pinned.cluster_id
                on_phase(f"reading topics, and snapshot {number + 1} of the tables")
                self._fold.read(pinned, snapshot, shapes_at_fence)
                for shape in shapes_at_fence:
                    self._shapes[shape.table.topic] = shape
                    self._fold.compare(snapshot, shape, again=number > 0, is_last=number == ROUNDS - 1)
            if not self._fold.settle(is_first=not number):
                break
        report = self._report(cluster)
        if self._request.on_differences is not None:
            for shape in self._shapes.values():
                every = differences(self._store, shape)
                self._request.on_differences(shape.table, self._fold.doubts(shape.table), every)
        return report

    @contextlib.contextmanager
    def _fence(self, *, is_first: bool) -> Iterator[tuple[PinnedTopics, Connection, list[TableShape]]]:
        # Tables without a key are compared once.
        tables = [table for table in self._request.tables if table.key or is_first]
        for _ in range(ROUNDS):
            lsn, snapshot = self._snapshot()
            with contextlib.closing(snapshot):
                if self._request.at is None:
                    self._wait(lsn)
                # Immediately: records that arrive after the fence make keys seem to differ that do not.
                pinned = pin(self._request.config, [table.topic for table in tables], some_may_lack=True)
                self._lacking = (self._lacking | {one.topic for one in tables}) - pinned.topics.keys()
                try:
                    shapes_at_fence = shapes(snapshot, tables)
                except TablesChanged:
                    continue
                self._fences.append(format_lsn(lsn))
                yield pinned, snapshot, shapes_at_fence
                return
        raise Indeterminate(
            "the tables were altered or truncated during every attempt",
            "verify again when no DDL runs on them",
        )

    def _snapshot(self) -> tuple[int, Connection]:
        if self._request.at is not None:
            return self._request.at.lsn, import_snapshot(
                connect(self._request.dsn), self._request.at.snapshot
            )
        raw = connect_raw(self._request.dsn)
        # In every case: the slot ends with its session.
        with contextlib.ExitStack() as stack:
            stack.callback(raw.finish)
            self._servers.add(reached_server(raw, self._request.dsn).identity)
            slot = create_temporary(raw)
            return slot.consistent_point, import_snapshot(connect(self._request.dsn), slot.snapshot)

    def _wait(self, lsn: int) -> None:
        """Wait until the relay has confirmed ``lsn``. Raises RefusedError or Indeterminate."""
        begin = last_read = time.monotonic()
        while True:
            state = slot_state(self._connection, self._request.slot)
            if state is None:
                raise RefusedError(
                    f"slot {self._request.slot!r} does not exist, so the position of its topics is unknown",
                    "name the relay's slot with -s; 'bwtui slots list' shows them",
                )
            if state.confirmed_lsn >= lsn:
                return
            now = time.monotonic()
            if state.active:
                last_read = now
            elif now - last_read > _RECONNECT_SECONDS:
                if (name := self._request.reconnecting(self._connection.info.dbname)) is not None:
                    raise Indeterminate(
                        f"relay {name} is reconnecting to PostgreSQL: slot {self._request.slot!r} is at"
                        f" {format_lsn(state.confirmed_lsn)}, not yet at {format_lsn(lsn)}",
                        f"verify again once it streams; 'bwtui status {name}' shows what it is blocked on",
                    )
                raise Indeterminate(
                    f"no relay reads slot {self._request.slot!r}: it is at {format_lsn(state.confirmed_lsn)},"
                    f" not yet at {format_lsn(lsn)}",
                    "start the relay ('bwtui connect'), and verify while it runs",
                )
            if now - begin > FENCE_SECONDS:
                raise Indeterminate(
                    f"the relay did not reach {format_lsn(lsn)} within {FENCE_SECONDS:.0f} seconds",
                    "verify again once 'bwtui status' shows that it has caught up",
                )
            time.sleep(0.1)

    # -- the report ------------------------------------------------------------------------------------------

    def _report(self, cluster: str) -> AuditSummary:
        tables = {table.topic: table for table in self._request.tables}
        counts = dict.fromkeys((*DATABASE, UNDECIDED), 0) | self._fold.counts()
        counts[UNDECIDED] += self._fold.damaged.total()
        missing = self._request.not_captured
        counts["not_captured"] = len(missing)
        about_letters = self._note_letters()
        differences = self._fold.findings(self._request.samples)
        findings = [self._finding(tables[topic], *rest) for topic, *rest in differences]
        some = sorted(missing.items())[: self._request.samples]
        findings += [AuditFinding("not_captured", table=name, note=why) for name, why in some]
        return AuditSummary(
            verdict=verdict_of(counts),
            window={"fences": self._fences, "now_ms": time.time_ns() // 1_000_000},
            expected=self._fold.rows,
            actual=self._fold.keys,
            balance=_balance(counts, self._fold.rows, self._fold.keys),
            classes=counts,
            without={},
            findings=findings,
            found={name: number for name, number in counts.items() if number},
            by_topic=[],
            by_time=[],
            notes=[*self._notes(), *about_letters],
            question="database",
            details={
                "cluster": cluster,
                "tables": [table.full_name for table in self._request.tables],
                "unkeyed": [table.full_name for table in self._request.tables if not table.key],
                "servers": sorted(map(list, self._servers), key=str),
                "differing": sorted(tables[topic].full_name for topic in self._fold.differing()),
                **self._proven(is_clean=verdict_of(counts) == "clean"),
            },
        )

    def _proven(self, *, is_clean: bool) -> dict[str, list[str]]:
        """Return the tables whose topics lack nothing, and those whose topics have no additional rows
        either.
        """
        complete = [
            table
            for table in self._request.tables
            if is_clean and not any(doubt.name in UNTRUSTED for doubt in self._fold.doubts(table))
        ]
        equal = [table.full_name for table in complete if not self._fold.surplus[table.topic]]
        return {"proven": equal, "complete": [table.full_name for table in complete]}

    def _notes(self) -> list[str]:
        notes = list(self._request.notes)
        unkeyed = [table.full_name for table in self._request.tables if not table.key]
        if unkeyed:
            notes.append(
                f"only missing rows can be found in tables without a key: {', '.join(unkeyed)}"
                + (
                    f"; their topics have {surplus:,} more rows than the tables: rows that were "
                    "deleted, changed"
                    " or sent again"
                    if (surplus := self._fold.surplus.total())
                    else ""
                )
            )
        notes += unreadable(self._fold.damaged)
        notes += [
            f"topic {name} does not exist, so all rows of its table are missing"
            for name in sorted(self._lacking)
        ]
        notes += [
            f"{number:,} records of {topic} have no key, so they can't be the latest value of a "
            "key: they are from before the table had one, or from a different producer"
            for topic, number in sorted(self._fold.without_key.items())
            if number
        ]
        notes += [one.note for one in self._fold.unknown_schemas]
        if self._fold.unsent.total():
            notes.append(
                f"{self._fold.unsent.total():,} rows have placeholders for unchanged TOAST values,"
                " which were not compared"
            )
        return notes

    def _note_letters(self) -> list[str]:
        """Add notes on dead letters to the differing keys; return notes on the tables that have some."""
        notes = []
        for relay, letters in self._request.open_letters().items():
            for shape in self._shapes.values():
                table = shape.table
                table_letters = [letter for letter in letters if letter.table == table.full_name]
                command = f"--relay {relay} --table {printed_name(table.full_name)}'"
                if not table.key and table_letters:
                    notes.append(
                        f"open dead letters of {table.full_name}, which has no key: {len(table_letters):,}; "
                        f"'bwtui dead-letters list {command} shows them"
                    )
                by_key = {
                    tuple(dict(key)[name] or "" for name in table.key): letter.id
                    for letter in table_letters
                    for key in keys_of(letter)
                    if dict(key).keys() == set(table.key)
                }
                if by_key and (number := note_letters(self._store, shape, by_key)):
                    notes.append(
                        f"{number:,} of the differing keys of {table.full_name} have changes in dead letters;"
                        f" 'bwtui dead-letters retry {command} makes the relay send their rows"
                    )
        return notes

    def _finding(
        self,
        table: ComparedTable,
        key: str,
        name: str,
        fields: str,
        partition: int | None,
        offset: int | None,
        note: str | None,
    ) -> AuditFinding:
        names = table.key or table.columns
        key = key.partition(SPELLED)[0]
        values = json.loads(key) if key[:1] in ("[", "{") else None
        if isinstance(values, list):
            values = dict(zip(names, values, strict=False))
        shown = {name: _visible(text) for name, text in values.items()} if values else None
        if shown and not self._request.show_values:
            shown = dict.fromkeys(shown, "…")
        return AuditFinding(
            name,
            topic=table.topic,
            partition=partition,
            offset=offset,
            table=table.full_name,
            key=shown or dict.fromkeys(names, "…"),
            fields=[self._field(*one) for one in json.loads(fields)],
            note=note,
        )

    def _field(self, name: str, row: Any, latest: Any) -> dict[str, Any]:
        shown = self._request.show_values
        row, latest = (_visible(row), _visible(latest)) if shown else ("…", "…")
        return {"field": name, "postgresql": row, "kafka": latest}


def _visible(text: Any) -> Any:
    """Return a text without the zero byte that marks the hexadecimal form of invalid bytes."""
    return text.removesuffix("\0") if isinstance(text, str) else text


def _balance(counts: Mapping[str, int], rows: int, keys: int) -> dict[str, dict[str, int]]:
    """Return the totals of both sides; keys that were checked again later count as of the first fence."""
    missing = {name: counts.get(name, 0) for name in balance_classes("database", "expected")}
    extra = {name: counts.get(name, 0) for name in balance_classes("database", "actual")}
    return {"expected": {"rows": rows, **missing}, "actual": {"rows": keys, **extra}}
