"""A primary key that is not the replica identity is reported as such, with the statement."""

import re
from dataclasses import replace

import pytest

from bwtui.errors import RefusedError
from bwtui.pgoutput.messages import Relation
from bwtui.settings import RelaySettings
from bwtui.source import doctor, preflight, replica_identity
from bwtui.source.catalog import Attribute, KeyColumn, TableInfo
from bwtui.source.connection import Connection

CONNECTION = Connection.__new__(Connection)
#: The columns of the catalog, those of the key, and whether the table is partitioned.
Facts = tuple[list[Attribute], list[str], bool]


def column(*, primary: bool = False, identity: bool = False) -> Attribute:
    return Attribute("id", 23, in_primary_key=primary, in_identity=identity)


NOTHING: Facts = [column(primary=True)], ["id"], False
INDEX_DROPPED: Facts = [column(primary=True)], [], False
DEFERRABLE: Facts = [column()], ["id"], False
DEFERRABLE_ROOT: Facts = [column()], ["id"], True
LEAF_WITHOUT: Facts = [column(primary=True, identity=True)], ["id"], True
KEYLESS: Facts = [column()], [], False


def made(oid: int, name: str, facts: Facts) -> TableInfo:
    return TableInfo(oid, "public", name, "n", False, True, facts[2], None)


def planted(monkeypatch: pytest.MonkeyPatch, *tables: Facts) -> None:
    """Let the catalog return these facts; a table's oid is its index."""

    def key_of(connection: Connection, oid: int) -> list[KeyColumn]:
        return [KeyColumn(name, "integer", False, None, None, None, None) for name in tables[oid][1]]

    monkeypatch.setattr(replica_identity, "attributes", lambda connection, oid: tables[oid][0])
    monkeypatch.setattr(replica_identity, "key_of", key_of)
    monkeypatch.setattr(
        replica_identity, "query", lambda connection, sql, oid: [("public", "t", tables[oid][2], "t_pkey")]
    )


@pytest.mark.parametrize(
    ("facts", "says", "helps"),
    [
        (NOTHING, "has REPLICA IDENTITY NOTHING", 'run: ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT;'),
        (INDEX_DROPPED, "replica identity was dropped", 'ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT;'),
        (
            DEFERRABLE,
            "has a deferrable primary key",
            'run: BEGIN; CREATE UNIQUE INDEX "t_replica_identity" ON "public"."t" ("id"); '
            'ALTER TABLE "public"."t" REPLICA IDENTITY USING INDEX "t_replica_identity"; COMMIT;',
        ),
        (
            DEFERRABLE_ROOT,
            "has a deferrable primary key",
            'run: ALTER TABLE "public"."t" DROP CONSTRAINT "t_pkey", ADD PRIMARY KEY ("id");',
        ),
        (
            LEAF_WITHOUT,
            "has partitions without a replica identity",
            "set a replica identity on each partition",
        ),
        (KEYLESS, "has no primary key and no replica identity index", "add a primary key"),
    ],
)
def test_what_keeps_a_table_from_having_a_key(
    monkeypatch: pytest.MonkeyPatch, facts: Facts, says: str, helps: str
) -> None:
    planted(monkeypatch, facts)
    table = made(0, "t", facts)
    monkeypatch.setattr(preflight, "selected_tables", lambda *_: (table,))
    (keyed,) = (
        check
        for check in preflight.server_checks(CONNECTION, RelaySettings())
        if check.name == "tables are keyed"
    )
    with pytest.raises(RefusedError) as refused:
        keyed.run()
    assert says in refused.value.message
    assert helps in refused.value.hint
    assert "--exclude-table 'public.t', or allow with -u" in refused.value.hint
    assert ("no primary key" in refused.value.message) == (facts is KEYLESS)


@pytest.mark.parametrize(
    ("patterns", "hint"),
    [
        (("t0",), "add a primary key, or allow with -u"),
        (("t.",), "add a primary key, exclude with --exclude-table 'public.t0', or allow with -u"),
    ],
)
def test_the_only_selected_table_is_not_to_be_excluded(
    monkeypatch: pytest.MonkeyPatch, patterns: tuple[str, ...], hint: str
) -> None:
    planted(monkeypatch, KEYLESS)
    tables = (made(0, "t0", KEYLESS), replace(made(1, "t1", KEYLESS), has_key=True))
    selected = [table for table in tables if re.fullmatch(patterns[0], table.name)]
    monkeypatch.setattr(preflight, "selected_tables", lambda *_: selected)
    checks = preflight.server_checks(CONNECTION, RelaySettings(tables=patterns))
    with pytest.raises(RefusedError) as refused:
        next(check for check in checks if check.name == "tables are keyed").run()
    assert refused.value.hint == hint


def test_doctor_does_not_ask_for_a_primary_key_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, DEFERRABLE, KEYLESS)
    tables = [made(0, "late", DEFERRABLE), made(1, "bare", KEYLESS)]
    monkeypatch.setattr(doctor, "selected_tables", lambda *_: tables)
    monkeypatch.setattr(doctor, "query", lambda *_: [])
    deferrable, keyless = doctor.advice(CONNECTION, RelaySettings(allow_unkeyed=True))
    assert deferrable.message.startswith("has a deferrable primary key")
    assert deferrable.hint.startswith("if no transaction relies on deferring it, run: BEGIN; CREATE UNIQUE")
    assert keyless.hint.startswith("add a primary key")


def test_tables_are_named_with_their_own_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, KEYLESS, NOTHING, KEYLESS)
    tables = [made(oid, f"t{oid}", KEYLESS) for oid in range(3)]
    error = replica_identity.unkeyed_refusal(CONNECTION, tables)
    without, unused = error.message.split("; ")
    assert without.endswith(": public.t0, public.t2")
    assert unused.startswith("table public.t1 has REPLICA IDENTITY NOTHING")
    assert error.hint.endswith('or run: ALTER TABLE "public"."t1" REPLICA IDENTITY DEFAULT;')


def test_rows_from_before_the_key_are_not_blamed_on_the_key_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, ([column(primary=True, identity=True)], ["id"], False))
    error = replica_identity.unkeyed_refusal(CONNECTION, [Relation(0, "public", "t", "d", ())])
    assert error.message == "table public.t has no primary key and no replica identity index"
