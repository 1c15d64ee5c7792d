"""``bwtui verify --database`` by digests: it finds the same differences of all types as row by row."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from bwtui.audit.report import AuditSummary
from bwtui.source.raw_session import connect_raw
from bwtui.source.slot import create_temporary
from bwtui.verify import tables
from bwtui.verify.canonical import kind_of
from bwtui.verify.database import (
    ComparedTable,
    ComparisonRequest,
    Doubt,
    Fence,
    KeyDifference,
    verify_database,
)
from tests.attempts import Attempts
from tests.database import Session
from tests.integration.type_samples import SAMPLES, SETUP, SINCE, TWICE_ROUNDED

pytestmark = pytest.mark.services

#: Two rows of (f, n, a, b, t) with equal or nearly equal text, which are not the same.
_ALIKE = [
    ("'0'", "'1.0'", "'x|'", "'y'", "'1970-01-01'"),
    ("'-0'", "'1.0'", "'x|'", "'y'", "'1970-01-01'"),
    ("'0'", "'1.00'", "'x|'", "'y'", "'1970-01-01'"),
    ("'0'", "'1.0'", "'x'", "'|y'", "'1970-01-01'"),
    ("'0'", "'1.0'", "'x|y'", "''", "'1970-01-01'"),
    ("'0'", "'1.0'", "'x|y'", "null", "'1970-01-01'"),
    ("null", "'1.0'", "'x|'", "'y'", "'1970-01-01'"),
    ("'NaN'", "'NaN'", "'NaN'", "'NaN'", "'infinity'"),
    ("'NaN'", "'0'", "'NaN'", "'NaN'", "'-infinity'"),
    ("'0'", "'1.0'", "'x|'", "'y'", "null"),
    ("'0'", "'1.0'", "'x|'", "'y'", "'2000-01-01'"),
]


def test_a_change_of_any_column(
    attempts: Attempts, source: Session, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row for each column: at first all equal the topic, then each differs in that column only."""
    source.run(SETUP)
    kinds = [kind for kind in SAMPLES if source.connection.server_version >= SINCE.get(kind, 0)]
    columns = [f"c{number}" for number in range(len(kinds))]
    definition = ", ".join(f"{name} {kind}" for name, kind in zip(columns, kinds, strict=True))
    source.run(f"create table every (id int primary key, {definition})")
    rows = [[SAMPLES[kind][row % len(SAMPLES[kind])] for kind in kinds] for row in range(len(kinds))]
    casts = ", ".join(f"%s::{kind}" for kind in kinds)
    for number, row in enumerate(rows):
        source.run(f"insert into every values ({number}, {casts})", *row)
    digested = _digested(source, columns)
    assert len(digested) > 30
    source.run(f"create table quick as select id, {', '.join(digested)} from every")
    source.run("alter table quick add primary key (id)")
    attempts.succeed(database)
    every, quick = _table(attempts, "every", columns), _table(attempts, "quick", digested)
    for table in (every, quick):
        report = _compared(attempts, database, table)
        assert {one["field"]: one for found in report.findings for one in found.fields} == {}
    changed = []
    for number, (column, kind) in enumerate(zip(columns, kinds, strict=True)):
        others = [one for one in SAMPLES[kind] if one != rows[number][number]]
        if others:
            for name in ("every", "quick") if column in digested else ("every",):
                source.run(f"update {name} set {column} = %s::{kind} where id = {number}", others[0])
            changed.append(number)
    for table, ids in ((every, changed), (quick, [one for one in changed if columns[one] in digested])):
        found = _differences(attempts, database, table)
        assert sorted(int(one.key[0]) for one in found if one.key) == ids
        monkeypatch.setattr(tables, "can_digest", lambda _: False)
        assert _differences(attempts, database, table) == found
        monkeypatch.undo()


def test_values_that_print_alike(attempts: Attempts, source: Session, database: str) -> None:
    """Every pair of rows: the topic has one, the table has the other."""
    source.run("create table alike (id int primary key, f float8, n numeric, a text, b text, t timestamp)")
    count = len(_ALIKE)
    for number in range(count * count):
        source.run(f"insert into alike values ({number}, {', '.join(_ALIKE[number // count])})")
    attempts.succeed(database)
    for number in range(count * count):
        values = ", ".join(_ALIKE[number % count])
        source.run(f"update alike set (f, n, a, b, t) = ({values}) where id = {number}")
    found = _differences(attempts, database, _table(attempts, "alike", ["f", "n", "a", "b", "t"]))
    same = {number * count + number for number in range(count)}
    assert {int(one.key[0]) for one in found if one.key} == set(range(count * count)) - same


def test_a_real_and_its_neighbour(attempts: Attempts, source: Session, database: str) -> None:
    """Each row's text is that of one real; the topic has the real next to it, in a value or in a key."""
    texts = [one for one in TWICE_ROUNDED if "13e" not in one]
    neighbours = [one for one in TWICE_ROUNDED if "13e" in one]
    source.run("create table reals (id int primary key, r real, a real[])")
    source.run("create table real_keys (r real primary key)")
    for number, text in enumerate(neighbours):
        source.run("insert into reals values (%s, %s, array[%s::real])", number, text, text)
        source.run("insert into real_keys values (%s)", text)
    attempts.succeed(database)
    reals = _table(attempts, "reals", ["r", "a"])
    keys = ComparedTable("public", "real_keys", f"{attempts.name}.real_keys", ("r",), ("r",))
    assert not _differences(attempts, database, reals) and not _differences(attempts, database, keys)
    for number, text in enumerate(texts):
        source.run("update reals set r = %s, a = array[%s::real] where id = %s", text, text, number)
        source.run("update real_keys set r = %s where r = %s::real", text, neighbours[number])
    found = _differences(attempts, database, reals)
    assert [(one.name, one.key) for one in found] == [("different_row", ("0",)), ("different_row", ("1",))]
    found = _differences(attempts, database, keys)
    assert Counter(one.name for one in found) == {"missing_key": 2, "extra_key": 2}


def test_rows_that_agree_are_not_read(
    attempts: Attempts, source: Session, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.run("create table large (id bigint primary key, v text, m money, u uuid)")
    source.run("insert into large select i, 'v' || i, i, gen_random_uuid() from generate_series(1, 2000) i")
    attempts.succeed(database)
    source.run("update large set v = 'other' where id = 7; delete from large where id = 8")
    source.run("insert into large values (-1, 'new', 0, null)")
    read: list[int] = []
    whole = tables.rows_at

    def noted(*args: object) -> object:
        read.append(len(args[-1]))  # type: ignore[arg-type]
        return whole(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("bwtui.verify.agreement.rows_at", noted)
    found = _differences(attempts, database, _table(attempts, "large", ["v", "m", "u"]))
    assert [(one.name, one.key) for one in found] == [
        ("missing_key", ("-1",)),
        ("different_row", ("7",)),
        ("extra_key", ("8",)),
    ]
    assert sum(read) == 2


def test_without_a_key(attempts: Attempts, source: Session, database: str) -> None:
    """Rows without digests are counted together with those that have them."""
    source.run("create table bag (f float8, d date, u uuid); alter table bag replica identity full")
    source.run("""insert into bag values (1, '2024-01-01', null), (1, '2024-01-01', null),
                  ('NaN', null, null), (2, 'infinity', null), (2, 'infinity', null), ('-0', null, null)""")
    attempts.succeed(database, "--allow-unkeyed")
    table = ComparedTable("public", "bag", f"{attempts.name}.bag", ("f", "d", "u"), ())
    report = _compared(attempts, database, table)
    assert (report.found, report.expected, report.actual) == ({}, 6, 6)
    source.run("""insert into bag values (1, '2024-01-01', null), ('NaN', null, null), (2, 'infinity', null),
                  (0, null, null)""")
    report = _compared(attempts, database, table)
    assert (report.found, report.expected, report.actual) == ({"missing_row": 4}, 10, 6)
    assert sorted(one.note or "" for one in report.findings) == [
        "1 in the table, 0 in the topic",
        "2 in the table, 1 in the topic",
        "3 in the table, 2 in the topic",
        "3 in the table, 2 in the topic",
    ]


def test_a_partitioned_table(attempts: Attempts, source: Session, database: str) -> None:
    """Rows of two partitions have the same ctid, and are distinguished."""
    source.run("create table parts (id int primary key, v text) partition by hash (id)")
    for number in range(3):
        source.run(
            f"create table parts{number} partition of parts for values with (modulus 3, remainder {number})"
        )
    source.run("insert into parts select i, 'v' from generate_series(1, 30) i")
    attempts.succeed(database)
    table = _table(attempts, "parts", ["v"])
    assert _differences(attempts, database, table) == []
    source.run("update parts set v = 'w' where id in (1, 2, 3, 4, 5)")
    assert {one.key for one in _differences(attempts, database, table)} == {
        (str(one),) for one in range(1, 6)
    }


# -- helpers -------------------------------------------------------------------------------------------------


def _digested(source: Session, columns: Sequence[str]) -> list[str]:
    """Return the columns of the table of all types that are digested."""
    from bwtui.source.catalog import load_types

    oids = dict(source.rows(
        "select attname, atttypid from pg_attribute where attrelid = 'every'::regclass and attnum > 1"
    ))  # fmt: skip
    types = load_types(source.connection, sorted(set(oids.values())))
    return [name for name in columns if kind_of(oids[name], types) is not None]


def _table(attempts: Attempts, name: str, columns: Sequence[str]) -> ComparedTable:
    return ComparedTable("public", name, f"{attempts.name}.{name}", ("id", *columns), ("id",))


def _differences(attempts: Attempts, dsn: str, table: ComparedTable) -> list[KeyDifference]:
    found: list[KeyDifference] = []

    def take(_: ComparedTable, doubts: Sequence[Doubt], differences: Iterator[KeyDifference]) -> None:
        assert not doubts
        found.extend(differences)

    _compared(attempts, dsn, table, take)
    return found


def _compared(
    attempts: Attempts,
    dsn: str,
    table: ComparedTable,
    take: object = None,
) -> AuditSummary:
    """Compare at the test's own fence, while no relay runs."""
    with contextlib.ExitStack() as stack:
        raw = connect_raw(dsn)
        stack.callback(raw.finish)
        slot = create_temporary(raw)
        ends = {"url": attempts.services.schema_registry}
        registry = stack.enter_context(closing(SchemaRegistryClient(ends)))
        request = ComparisonRequest(
            dsn,
            attempts.name,
            [table],
            {"bootstrap.servers": attempts.services.broker},
            show_values=True,
            on_differences=take,  # type: ignore[arg-type]
            at=Fence(slot.consistent_point, slot.snapshot),
        )
        return verify_database(request, lambda number: str(registry.get_schema(number).schema_str))
