"""Large values that an UPDATE did not change: --toast never sends null or an empty value for them."""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import psycopg2
import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.source.catalog import find_table, load_relation
from bwtui.source.connection import Connection, connect
from bwtui.source.present_rows import PresentRows, present_fields
from bwtui.state_folder import state_folder
from tests.attempts import Attempts
from tests.database import Session, session
from tests.decoded_topic import Decoded, decoded_avro, decoded_json, latest, of_key
from tests.integration.type_relay import copied
from tests.integration.type_samples import SAMPLES, SETUP, SINCE

pytestmark = pytest.mark.services

PLACEHOLDER = "unchanged TOAST"
READERS: dict[str, Callable[[ServiceAddresses, str], list[Decoded]]] = {
    "avro": decoded_avro,
    "json": decoded_json,
}


@pytest.fixture
def source(database: str) -> Iterator[Session]:
    """A session on a database with one table, whose large values are stored out of line."""
    with closing(Session(database)) as opened:
        opened.run("create table doc (id int primary key, n int, big text)")
        opened.run("alter table doc alter big set storage external")
        yield opened


def large() -> str:
    """Return a value that PostgreSQL stores out of line."""
    return secrets.token_hex(2_000)


def fill(source: Session, count: int, table: str = "doc") -> dict[int, str]:
    """Insert rows 1 to ``count``, and return their large values."""
    values = {number: large() for number in range(1, count + 1)}
    for number, value in values.items():
        source.run(f"insert into {table} values (%s, 0, %s)", number, value)
    return values


def figures(status: dict[str, Any], table: str = "public.doc") -> tuple[int, int, int]:
    """Return the numbers of fetched values, marked values and skipped rows."""
    found = status["tables"][table]
    return found["toast_fetched"], found["toast_placeholders"], found["toast_superseded"]


@pytest.mark.parametrize("form", ["avro", "json"])
def test_fetched(attempts: Attempts, source: Session, database: str, form: str) -> None:
    big = fill(source, 7)
    attempts.succeed(database, "-f", form)
    source.run("update doc set n = 1 where id = 1")
    source.run("update doc set n = 1 where id = 2")
    source.run("delete from doc where id = 2")
    source.run("update doc set id = 30 where id = 3")
    source.run("update doc set n = 1 where id = 4")
    source.run("update doc set id = 40, n = 2 where id = 4")
    source.run("update doc set n = 1 where id = 5")
    source.run("update doc set n = 2, big = 'small' where id = 5")
    source.run("update doc set big = null where id = 6")
    source.run("update doc set n = 1 where id = 6")
    source.run("update doc set n = 1, big = '' where id = 7")
    status = attempts.succeed(database, "-f", form).status
    found = READERS[form](attempts.services, f"{attempts.name}.doc")
    rows = [
        {"id": 1, "n": 1, "big": big[1]},
        {"id": 5, "n": 2, "big": "small"},
        {"id": 6, "n": 1, "big": None},
        {"id": 7, "n": 1, "big": ""},
        {"id": 30, "n": 0, "big": big[3]},
        {"id": 40, "n": 2, "big": big[4]},
    ]
    assert sorted(latest(found).values(), key=lambda row: row["id"]) == rows
    # Row 2 was deleted, and row 4 no longer had its old key: that version was skipped.
    assert of_key(found, 2) == [{"id": 2, "n": 0, "big": big[2]}, None]
    assert of_key(found, 4) == [{"id": 4, "n": 0, "big": big[4]}, None]
    # The version in between holds a value that is newer than its commit, as documented.
    assert of_key(found, 5)[1] == {"id": 5, "n": 1, "big": "small"}
    assert figures(status) == (4, 0, 2)


def _finished(source: Session) -> int:
    """Return the number of transactions that ended in the database; each of our statements is one."""
    sql = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
    return int(source.value(sql))


def test_values_of_many_rows_are_read_with_few_statements(
    attempts: Attempts, source: Session, database: str
) -> None:
    """Also in several transactions, for rows with changed keys or deleted rows, with a second table."""
    source.run("create type mood as enum ('glad', 'sad')")
    source.run(
        """create table pairs (a int[], b mood, c char(4), n int, big text, more text,
           primary key (a, b, c))"""
    )
    source.run("alter table pairs alter big set storage external, alter more set storage external")
    source.run("insert into doc select i, 0, repeat(md5(i::text), 100) from generate_series(1, 3000) i")
    source.run(
        """insert into pairs
           select array[i, null], 'sad', 'x', 0, repeat(md5(i::text), 100), repeat(md5(i::text), 90)
             from generate_series(1, 200) i"""
    )
    attempts.succeed(database)
    source.run("update doc set n = 1 where id <= 1000")
    for number in range(100):
        source.run("update doc set n = 2 where id between %s and %s", number * 20 + 1001, number * 20 + 1020)
        source.run("update pairs set n = 1 where a[1] between %s and %s", number * 2 + 1, number * 2 + 2)
    source.run("update pairs set n = 2, big = 'short' where a[1] % 2 = 0")
    source.run("update pairs set n = 2, more = 'short' where a[1] % 2 = 1")
    source.run("delete from doc where id % 100 = 0")
    source.run("update doc set id = -id where id % 100 = 1")
    before = _finished(source)
    status = attempts.succeed(database).status
    assert _finished(source) - before < 1_000
    rows = latest(decoded_avro(attempts.services, f"{attempts.name}.doc"))
    want = source.rows("select id, n, big from doc")
    assert rows == {(id,): {"id": id, "n": n, "big": big} for id, n, big in want}
    pairs = latest(decoded_avro(attempts.services, f"{attempts.name}.pairs")).values()
    found = sorted((row["a"], row["n"], row["big"], row["more"]) for row in pairs)
    assert found == source.rows("select a, n, big, more from pairs order by a")
    fetched, marked, superseded = figures(status)
    # Each row that was deleted, or has a different key now, was skipped once.
    assert (fetched, marked, superseded) == (3_000 - 60 + 30, 0, 60)


def test_values_of_many_tables_that_alternate_are_read_with_few_statements(
    attempts: Attempts, source: Session, database: str
) -> None:
    tables = [f"t{number}" for number in range(12)]
    for table in tables:
        source.run(f"create table {table} (id int primary key, n int, big text)")
        source.run(f"alter table {table} alter big set storage external")
        source.run(
            f"insert into {table} select i, 0, repeat(md5(i::text), 100) from generate_series(1, 50) i"
        )
    attempts.succeed(database)
    for number in range(50):
        source.run("; ".join(f"update {table} set n = 1 where id = {number + 1}" for table in tables))
    before = _finished(source)
    status = attempts.succeed(database).status
    assert _finished(source) - before < 600
    assert [figures(status, f"public.{table}") for table in tables] == [(50, 0, 0)] * len(tables)


def test_values_that_are_large_together_are_read_in_parts(
    attempts: Attempts, source: Session, database: str
) -> None:
    source.run("insert into doc select i, 0, repeat(md5(i::text), 25000) from generate_series(1, 40) i")
    attempts.succeed(database)
    source.run("update doc set n = 1")
    status = attempts.succeed(database).status
    rows = latest(decoded_avro(attempts.services, f"{attempts.name}.doc"))
    assert rows == {
        (id,): {"id": id, "n": 1, "big": big} for id, big in source.rows("select id, big from doc")
    }
    assert figures(status) == (40, 0, 0)


def test_a_table_that_is_altered_between_updates_is_read_as_it_was_each_time(
    attempts: Attempts, source: Session, database: str
) -> None:
    big = fill(source, 3)
    attempts.succeed(database)
    source.run("update doc set n = 1")
    source.run("alter table doc rename big to large")
    source.run("alter table doc rename id to number")
    source.run("update doc set n = 2")
    attempts.succeed(database)
    rows = [row for _, row in decoded_avro(attempts.services, f"{attempts.name}.doc") if row is not None]
    # Another key schema moves a key to another partition, so rows are in no order here.
    assert {row["number"]: row["large"] for row in rows if row["n"] == 2} == big
    assert {row["id"]: row["big"] for row in rows if row["n"] == 1} == big


@pytest.mark.parametrize("mode", ["fetch", "error", "placeholder"])
def test_the_old_row_has_it_under_full(attempts: Attempts, source: Session, database: str, mode: str) -> None:
    source.run("alter table doc replica identity full")
    big = fill(source, 2)
    attempts.succeed(database, "--toast", mode)
    source.run("update doc set n = 1 where id = 1")
    source.run("delete from doc where id = 1")
    source.run("update doc set id = 3 where id = 2")
    status = attempts.succeed(database, "--toast", mode).status
    found = decoded_avro(attempts.services, f"{attempts.name}.doc")
    assert of_key(found, 1)[1:] == [with_marks({"id": 1, "n": 1, "big": big[1]}, mode), None]
    assert latest(found) == {(3,): with_marks({"id": 3, "n": 0, "big": big[2]}, mode)}
    assert figures(status) == (0, 0, 0)


def with_marks(row: dict[str, Any], mode: str) -> dict[str, Any]:
    """Return the row as the mode's schema has it: only a placeholder's has room for marks here."""
    return row | ({"__escaped": None} if mode == "placeholder" else {})


def test_error_and_exit(attempts: Attempts, source: Session, database: str) -> None:
    big = fill(source, 1)
    attempts.succeed(database, "--toast", "error")
    source.run("insert into doc values (2, 0, 'before')")
    source.run("update doc set n = 1 where id = 1")
    error, hint = attempts.fail(database, 2, "--toast", "error")
    assert 'column "big": an unchanged TOAST value was not sent' in error
    assert "--toast fetch" in hint
    assert big[1][:20] not in error
    topic = f"{attempts.name}.doc"
    assert of_key(decoded_avro(attempts.services, topic), 1) == [{"id": 1, "n": 0, "big": big[1]}]
    # Nothing was confirmed past it: another mode continues right there.
    attempts.succeed(database)
    assert of_key(decoded_avro(attempts.services, topic), 1)[-1] == {"id": 1, "n": 1, "big": big[1]}


def test_error_and_log(
    attempts: Attempts, source: Session, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = fill(source, 2)
    chosen = ("--toast", "error", "--on-error", "log")
    attempts.succeed(database, *chosen)
    source.run("update doc set n = 1 where id = 1")
    source.run("update doc set n = 1, big = 'short' where id = 2")
    status = attempts.run(database, *chosen).status
    assert status["tables"]["public.doc"]["dead_letters"] == 1
    found = decoded_avro(attempts.services, f"{attempts.name}.doc")
    assert of_key(found, 1) == [{"id": 1, "n": 0, "big": big[1]}]
    assert of_key(found, 2)[-1] == {"id": 2, "n": 1, "big": "short"}
    monkeypatch.setenv("BWTUI_STATE_HOME", str(attempts.state))
    (letter,) = (state_folder(attempts.name) / "dead-letters.jsonl").read_text().splitlines()
    assert "unchanged TOAST" in letter


@pytest.mark.parametrize("form", ["avro", "json"])
def test_placeholder(attempts: Attempts, source: Session, database: str, form: str) -> None:
    source.run("alter table doc add also text, add none text")
    source.run("alter table doc alter also set storage external")
    source.run("insert into doc values (1, 0, %s, %s)", large(), large())
    source.run("insert into doc values (2, 0, '', null)")
    attempts.succeed(database, "--toast", "placeholder", "-f", form)
    source.run("update doc set n = 1")
    status = attempts.succeed(database, "--toast", "placeholder", "-f", form).status
    found = latest(READERS[form](attempts.services, f"{attempts.name}.doc"))
    if form == "avro":
        marked: dict[str, Any] = {"big": None, "also": None, "__escaped": {PLACEHOLDER: "big also"}}
        plain: dict[str, Any] = {"__escaped": None}
    else:
        marked = {name: {PLACEHOLDER: True} for name in ("big", "also")}
        plain = {}
    assert found[1,] == {"id": 1, "n": 1, "none": None} | marked
    assert found[2,] == {"id": 2, "n": 1, "big": "", "also": None, "none": None} | plain
    assert figures(status) == (0, 2, 0)


def test_large_key(attempts: Attempts, source: Session, database: str) -> None:
    source.run("create table by_text (k text primary key, n int, big text)")
    source.run("alter table by_text alter k set storage external, alter big set storage external")
    key, other, big = secrets.token_hex(1_200), secrets.token_hex(1_200), large()
    source.run("insert into by_text values (%s, 0, %s)", key, big)
    attempts.succeed(database)
    source.run("update by_text set n = 1")
    source.run("update by_text set k = %s", other)
    attempts.succeed(database)
    found = decoded_avro(attempts.services, f"{attempts.name}.by_text")
    assert latest(found) == {(other,): {"k": other, "n": 1, "big": big}}
    assert of_key(found, key)[-1] is None


def test_fetched_where_types_live_elsewhere(attempts: Attempts, source: Session, database: str) -> None:
    """The session has an empty search_path: an operator of the key's type must be found all the same."""
    source.run("create extension ltree; create extension citext; create type mood as enum ('glad', 'sad')")
    source.run("create domain way as ltree; create domain short as char(4)")
    source.run(
        r"""create table doc_of (a way, b citext, c mood, d short, e timestamptz, f numeric, g text, n int,
            big text, primary key (a, b, c, d, e, f, g))"""
    )
    source.run("alter table doc_of alter big set storage external")
    big = large()
    row = "'a.b', 'Ab', 'sad', 'x', '2024-03-01 12:00+02', 1.50"
    source.run(f"insert into doc_of values ({row}, %s, 0, %s)", "100%s \\ '", big)
    attempts.succeed(database)
    source.run("update doc_of set n = 1")
    attempts.succeed(database)
    (found,) = latest(decoded_avro(attempts.services, f"{attempts.name}.doc_of")).values()
    assert (found["n"], found["big"]) == (1, big)


KEYS = {
    "types.pair": "(1,x)",
    "types.pair[]": '{"(1,x)"}',
    "types.range": "[1.00,2.50)",
    "regclass": "pg_class",
    "money": "-1.50",
    "xid8": "18446744073709551615",
    '"char"': "x",
    "float8": "-0",
    "date": "0044-03-15 BC",
    "bytea": "\\x00ff",
    "interval": "1 mon",
    "oidvector": "1 2",
    "int[]": "[0:1]={1,NULL}",
}


def test_fetched_by_a_key_of_any_type(attempts: Attempts, source: Session, database: str) -> None:
    source.run("create schema types; create type types.pair as (a int, b text)")
    source.run("create domain types.price as numeric(8,2)")
    source.run("create type types.range as range (subtype = types.price)")
    big = large()
    for number, (kind, value) in enumerate(KEYS.items()):
        source.run(f"create table k{number} (k {kind} primary key, n int, big text)")
        source.run(f"alter table k{number} alter big set storage external")
        source.run(f"insert into k{number} values (%s, 0, %s)", value, big)
    # With array_nulls off, NULL in an array is the text: no row has such a key.
    source.run(f'alter database "{source.value("select current_database()")}" set array_nulls = off')
    attempts.succeed(database)
    for number in range(len(KEYS)):
        source.run(f"update k{number} set n = 1")
    status = attempts.succeed(database).status
    assert [figures(status, f"public.k{number}") for number in range(len(KEYS))] == [(1, 0, 0)] * len(KEYS)
    for number in range(len(KEYS)):
        _, row = decoded_avro(attempts.services, f"{attempts.name}.k{number}")[-1]
        assert row is not None
        assert (row["n"], row["big"]) == (1, big)


def test_a_row_is_found_by_a_key_of_every_type(source: Session, database: str) -> None:
    """Every type that can be a key: as itself, in a domain of a domain, and in arrays of both."""
    source.run(SETUP)
    source.run("create type types.places as (p point, a int)")
    keys = [kind for kind in SAMPLES if source.connection.server_version >= SINCE.get(kind, 0)]
    found: set[str] = set()
    with closing(connect(database)) as reader:
        for number, kind in enumerate([*keys, "types.places"]):
            samples = SAMPLES.get(kind, ['("(1,2)",3)'])
            with suppress(psycopg2.Error):
                source.run(
                    f"create domain inner{number} as {kind}; create domain outer{number} as inner{number}"
                )
            forms = {kind: "%s::text", f"outer{number}": "%s::text", f"{kind}[]": "array[%s::{}]::text"}
            forms[f"outer{number}[]"] = forms[f"{kind}[]"]
            for form, cast in forms.items():
                if kind.endswith("[]") and "outer" not in form and form != kind:
                    continue
                if _found_by_key(source, reader, form, cast.format(kind), samples):
                    found.add(f"{kind} as {form.replace(kind, 'it').replace(str(number), '')}")
    assert {"types.mood as outer", "types.mood as outer[]", "types.places as it"} <= found
    assert len(found) > 150


def _found_by_key(source: Session, reader: Connection, form: str, cast: str, samples: list[str]) -> bool:
    """Return whether a column of ``form`` can be a key; every row that has one must be found by it."""
    source.run("drop table if exists kept")
    try:
        source.run(f"create table kept (k {form} primary key, n serial)")
    except psycopg2.Error:
        return False
    for sample in samples:
        # Some values are not in the domain, too long for an index, or have no equality.
        with suppress(psycopg2.Error):
            source.run(f"insert into kept (k) values ({cast}::{form}) on conflict do nothing", sample)
    table = find_table(reader, "public", "kept")
    assert table is not None
    relation = load_relation(reader, table, None)
    lines = copied(reader, "public.kept")
    for key, number in lines:
        assert key is not None
        assert present_fields(reader, relation, {"k": key}, ["n"]) == [number], (form, key[:80])
    if not lines:
        return False
    keys = [{"k": key} for key, _ in lines if key is not None]
    many = PresentRows().read(reader, relation, keys, ["n"], 1 << 20)
    # One statement can't find the rows of types that have no equality; it leaves all but the first.
    assert many == {at: [number] for at, (_, number) in enumerate(lines[: len(many)])}, form
    return True


def test_keys_of_any_text_are_found_together(source: Session, database: str) -> None:
    """Texts with a special meaning in an array, in SQL, or as a parameter; so may the names."""
    source.run('create schema "50%"; create type "50%"."%s\'" as enum (\'%s\', \'"\')')
    source.run(
        """create table "50%"."it's ""%s" ("k%" text, "%(n)s" "50%"."%s'", "big%s" text, n int,
           primary key ("k%", "%(n)s"))"""
    )
    texts = ["", " ", '"', "\\", '\\"', "{}", "a,b", "NULL", "%s", "'", "é", "a\nb\tc", '{"x"}', "\\x41"]
    for text in texts:
        for label in ("%s", '"'):
            source.run("""insert into "50%%"."it's ""%%s" values (%s, %s, %s, 1)""", text, label, text * 2)
    with closing(connect(database)) as reader:
        table = find_table(reader, "50%", "it's \"%s")
        assert table is not None
        relation = load_relation(reader, table, None)
        keys = [{"k%": text.encode(), "%(n)s": label} for text in texts for label in (b"%s", b'"')]
        keys.insert(3, {"k%": b"gone", "%(n)s": b'"'})
        for wanted in ("big%s", "n"):
            found = PresentRows().read(reader, relation, keys, [wanted], 1 << 20)
            fields = {
                at: [key["k%"] * 2 if wanted == "big%s" else b"1"] if at != 3 else None
                for at, key in enumerate(keys)
            }
            assert {at: row and list(row) for at, row in found.items()} == fields


@pytest.mark.parametrize("kind", ["text", "jsonb"])
def test_rows_that_are_larger_than_the_limit_together_are_left_out(
    source: Session, database: str, kind: str
) -> None:
    """They must not look deleted: only the first row that does not exist does."""
    source.run(f"create table t (id int primary key, big {kind}, also {kind})")
    source.run(
        f"""insert into t select i, to_json(repeat('x', 998))::text::{kind}, null
              from generate_series(1, 50) i where i <> 2"""
    )
    value = b'"' + b"x" * 998 + b'"'
    with closing(connect(database)) as reader:
        table = find_table(reader, "public", "t")
        assert table is not None
        relation = load_relation(reader, table, None)
        keys = [{"id": b"%d" % number} for number in range(1, 51)]
        found = PresentRows().read(reader, relation, keys, ["big", "also"], 10_000)
    exist = {at: row for at, row in found.items() if at != 1}
    assert 9 <= len(exist) <= 11
    assert all(row is not None and list(row) == [value, None] for row in exist.values())
    assert found.get(1) is None


@pytest.mark.since(18, "keys WITHOUT OVERLAPS")
def test_a_key_without_overlaps_is_compared_whole(attempts: Attempts, source: Session, database: str) -> None:
    """Its index finds overlapping values; a different row may overlap now."""
    source.run("create extension btree_gist")
    source.run(
        "create table t (id int, at int4range, n int, big text, primary key (id, at without overlaps))"
    )
    source.run("alter table t alter big set storage external")
    first, second = large(), large()
    source.run("insert into t values (1, '[1,9)', 0, %s), (2, '[1,9)', 0, %s)", first, first)
    attempts.succeed(database)
    source.run("update t set n = 1")
    source.run("delete from t where id = 1; insert into t values (1, '[1,5)', 2, %s)", second)
    status = attempts.succeed(database).status
    assert figures(status, "public.t") == (1, 0, 1)
    found = latest(decoded_avro(attempts.services, f"{attempts.name}.t"))
    assert {key: (row["n"], row["big"]) for key, row in found.items()} == {
        (1, "[1,5)"): (2, second),
        (2, "[1,9)"): (1, first),
    }


def test_a_key_that_its_type_does_not_know_any_more(
    attempts: Attempts, source: Session, database: str
) -> None:
    source.run("create type mood as enum ('glad', 'sad')")
    source.run("create table t (k mood primary key, n int, big text)")
    source.run("alter table t alter big set storage external")
    source.run("insert into t values ('sad', 0, %s)", large())
    attempts.succeed(database)
    source.run("update t set n = 1; alter type mood rename value 'sad' to 'blue'")
    assert figures(attempts.succeed(database).status, "public.t") == (0, 1, 0)


def test_a_policy_that_hides_rows_hides_no_change(attempts: Attempts, source: Session, database: str) -> None:
    """Row security would make a present row look deleted, and its change would be skipped."""
    from tests.integration.test_bad_input import PASSWORD, as_role

    role = f"role_{secrets.token_hex(4)}"
    big = fill(source, 1)
    source.run(f"create role {role} login replication bypassrls password '{PASSWORD}'")
    try:
        source.run(f"grant select on doc to {role}; create publication bwtui_{attempts.name} for table doc")
        attempts.succeed(as_role(database, role))
        source.run("alter table doc enable row level security")
        source.run(f"alter role {role} nobypassrls")
        source.run("update doc set n = 1")
        error, hint = attempts.fail(as_role(database, role), 4, server=database)
        assert "row-level security" in error
        assert "BYPASSRLS" in hint
        source.run(f"alter role {role} bypassrls")
        attempts.succeed(as_role(database, role))
    finally:
        with session(database) as owner:
            owner.run(f"drop owned by {role}; drop role {role}")
    assert latest(decoded_avro(attempts.services, f"{attempts.name}.doc"))[1,] == {
        "id": 1,
        "n": 1,
        "big": big[1],
    }


def test_doctor_names_the_tables(attempts: Attempts, source: Session, database: str) -> None:
    source.run(
        "create table small (id int primary key, n int); create table whole (id int primary key, t text)"
    )
    source.run("create table part (id int primary key, t text) partition by range (id)")
    source.run("create table part1 partition of part for values from (0) to (10)")
    source.run("alter table whole replica identity full")
    services = attempts.services
    ends = ("-d", database, "-b", services.broker, "-r", services.schema_registry)
    ended = attempts.command("doctor", *ends, "--toast", "error", "--json")
    assert ended.code == 0, ended.stdout
    told = {check["name"]: check["message"] for check in json.loads(ended.stdout)["checks"]}
    concerned = "--on-error applies to rows without them (public.doc, public.part)"
    found = told["unchanged large values"]
    assert found == f"--toast error: {concerned}; REPLICA IDENTITY FULL sends them"
