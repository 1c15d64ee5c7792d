"""What is measured: tables, how they are filled, and which ways are taken over them."""

from dataclasses import dataclass
from enum import StrEnum

from benchmarks.bench_table import COLUMNS, VALUES

#: A way's name: what stands before the first dash says whose it is.
BWTUI, DEBEZIUM, RECVLOGICAL = "bwtui", "debezium", "pg_recvlogical"
WAYS = {
    "bwtui": "bwtui, default options",
    "bwtui-record": "bwtui with --record",
    "bwtui-exactly": "bwtui with --exactly-once",
    "bwtui-1": "bwtui with --snapshot-workers 1",
    "bwtui-2": "bwtui with --snapshot-workers 2",
    "bwtui-4": "bwtui with --snapshot-workers 4",
    "debezium": "Debezium, with one snapshot thread",
    "debezium-2": "Debezium with snapshot.max.threads 2",
    "pg_recvlogical": "pg_recvlogical to /dev/null",
}


class Kind(StrEnum):
    """What is done with the rows."""

    #: They are written first, and then read from a slot that is older than they are.
    STREAM = "stream"
    #: They are in the tables already.
    SNAPSHOT = "snapshot"
    #: They are written at a fixed rate while they are read.
    LATENCY = "latency"


@dataclass(frozen=True)
class Workload:
    """Rows of one shape, and what is done with them."""

    name: str
    title: str
    ways: tuple[str, ...]
    kind: Kind = Kind.STREAM
    #: So many of --rows, and of --warm-up: rows that are larger, or transactions that cost more, are fewer.
    share: float = 1.0
    tables: int = 1
    #: Nothing is committed in between, where this is None.
    transaction_rows: int | None = 100
    #: Of one INSERT, of which all rows go into one table.
    statement_rows: int = 100
    columns: str = COLUMNS
    values: str = VALUES

    def rows(self, total: int) -> int:
        """Return how many rows it has of ``total``, in whole transactions."""
        whole = self.transaction_rows or 1
        return max(round(total * self.share / whole), 1) * whole

    @property
    def table_names(self) -> tuple[str, ...]:
        """The tables that are measured."""
        return ("bench",) if self.tables == 1 else tuple(f"bench_{one}" for one in range(self.tables))

    @property
    def partitions(self) -> int:
        """Of each topic; one broker is to bear many topics."""
        return 3 if self.tables == 1 else 1


_BOTH = ("bwtui", "debezium")
_WIDE = (
    ("int4", "id % {n}00 + {n}"),
    ("int8", "id * {n}"),
    ("text", "'text {n} of ' || id"),
    ("numeric(12,2)", "(id % {n}000) / 100.0"),
    ("timestamptz", "timestamptz '2026-01-01' + (id + {n}) * interval '1 millisecond'"),
    ("boolean", "(id + {n}) % 3 = 0"),
)
_WIDE_COLUMNS = [(number, *_WIDE[number % len(_WIDE)]) for number in range(1, 200)]

WORKLOADS = {
    one.name: one
    for one in (
        Workload("stream", "Stream, transactions of 100 rows", (*_BOTH, "bwtui-record", "pg_recvlogical")),
        Workload(
            "snapshot",
            "First snapshot of one table",
            ("bwtui", "debezium", "debezium-2", "bwtui-1", "bwtui-2", "bwtui-4"),
            Kind.SNAPSHOT,
        ),
        Workload(
            "single", "Stream, 1 row a transaction", _BOTH, share=1 / 4, transaction_rows=1, statement_rows=1
        ),
        Workload(
            "wide",
            "Stream, 200 columns",
            _BOTH,
            share=1 / 20,
            columns="id int8 primary key, "
            + ", ".join(f"c{number} {kind}" for number, kind, _ in _WIDE_COLUMNS),
            values="id, " + ", ".join(value.format(n=number) for number, _, value in _WIDE_COLUMNS),
        ),
        Workload(
            "large",
            "Stream, rows of 2 kB",
            _BOTH,
            share=1 / 4,
            columns="id int8 primary key, a int4, doc text",
            # Nothing that a compression makes small, and nothing that PostgreSQL puts aside.
            values="id, id % 1000, (select string_agg(md5((id * 100 + part)::text), '')"
            " from generate_series(1, 60) part)",
        ),
        Workload(
            "tables",
            "Stream, 500 tables, transactions of 100 rows in 10 of them",
            _BOTH,
            share=1 / 4,
            tables=500,
            statement_rows=10,
        ),
        Workload(
            "transaction",
            "Stream, all rows in one transaction",
            _BOTH,
            transaction_rows=None,
            statement_rows=1_000_000,
        ),
        Workload(
            "latency",
            "Latency at 300 transactions/s",
            _BOTH,
            Kind.LATENCY,
            transaction_rows=1,
            statement_rows=1,
        ),
    )
}


def takes_part(way: str, workload: Workload) -> bool:
    """Whether a way can do what a workload asks for."""
    if workload.kind is Kind.SNAPSHOT:
        return way != RECVLOGICAL
    return not way[-1].isdigit() and (way != RECVLOGICAL or workload.kind is Kind.STREAM)
