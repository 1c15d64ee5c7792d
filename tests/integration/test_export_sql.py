"""A recording of a real database, exported as SQL and run on an empty one, gives the same tables."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest
from psycopg2 import sql

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.database import Session, session
from tests.fix_sandbox import drop_database

pytestmark = pytest.mark.services

_SCHEMA = """
create schema "Odd 'Sch\\ema";
create type mood as enum ('sad', 'so "so"', 'happy');
create table many_types (
    id bigint generated always as identity primary key, n numeric(10,2), free numeric, f float8, r real,
    b bool, c char(5), v varchar(20), t text, d date, ts timestamp(3), tz timestamptz, i interval, m money,
    u uuid, j json, jb jsonb, x bytea, ip inet, net cidr, p point, bx box, bits bit varying, ints int[],
    texts text[][], range int4range, big text, mood mood, doubled numeric generated always as (n * 2) stored);
alter table many_types alter big set storage external;
create table "Odd 'Sch\\ema"."we""ird -- t" (
    "a ""b"" 'c'" text, "back\\slash" int, "é; --" text, primary key ("back\\slash", "a ""b"" 'c'"));
create table by_index (code text not null, other int, note text);
create unique index by_index_code on by_index (code);
alter table by_index replica identity using index by_index_code;
create table full_rows (a char(4), b numeric, c json, d bool, e inet, f float8);
alter table full_rows replica identity full;
create type pair as (a int, b text);
create table full_pairs (p pair, n int);
alter table full_pairs replica identity full;
create table full_keyed (id int primary key, big text, x int);
alter table full_keyed replica identity full;
alter table full_keyed alter big set storage external;
create table parent (id int primary key);
create table child (id int primary key, parent int references parent on delete cascade);
create table emptied (id int primary key);
create table only_inserts (a text);
create extension citext;
create table by_extension (code citext primary key, n int);
create table by_composite (id int, p pair, m mood, n int, primary key (p, id, m));
create schema "dot.ted";
create table "dot.ted"."t.t" (id int primary key);
create table "dot.ted".other (id int primary key);
create table dot (id int primary key);
"""

_BEFORE = """
insert into by_extension values ('Abc', 1), ('d', 2);
insert into by_composite values (1, (1, 'a"b'), 'sad', 1), (1, (2, null), 'happy', 2);
insert into "dot.ted"."t.t" values (1); insert into "dot.ted".other values (1); insert into dot values (1);
insert into parent select generate_series(1, 5);
insert into child select i, i from generate_series(1, 5) i;
insert into emptied select generate_series(1, 50);
insert into only_inserts values ('snapshot'), (null);
insert into full_rows values
    ('a', 1.0, '{"x": 1}', true, '10.0.0.1', 0.1), ('a', 1.00, '{"x":1}', true, '10.0.0.1/24', 0.1),
    ('a', 1.0, '{"x": 1}', true, '10.0.0.1', 0.1), (null, null, null, null, null, null);
insert into full_pairs values ((null, 'x'), 1), (null, 2), ((null, null), 2), ((1, null), 4);
insert into full_keyed select i, repeat(md5(i::text), 200), i from generate_series(1, 10) i;
insert into many_types (n, t, big)
    select i, 'row ' || i, repeat(md5(i::text), 200) from generate_series(1, 20) i;
insert into by_index values ('k1', 1, 'x'), ('k2', 2, null);
"""

_STREAM = """
begin;
insert into many_types (n, free, f, r, b, c, v, t, d, ts, tz, i, m, u, j, jb, x, ip, net, p, bx, bits, ints,
    texts, range, big, mood) values
  (-1.5, 1e-20, 'NaN', '-Infinity', false, 'ab', '', E'tab\\t new\\nline ''quoted'' \\\\ back',
   '0044-03-15 BC', 'infinity', '2026-01-31 10:00:00.123456+02', '-1 mons +2 days -03:04:05.6', '-12.34',
   'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
   '{"a": 1,  "a": 2}', '{"b": "\\\\"}', '\\x00ff27', '::1', '10.0.0.0/8', '(1.5,-2)', '(1,1),(0,0)', '10101',
   '{1,NULL,-3}',
   '[2:2][1:2]={{"a b","N\\"ULL"}}', '(,5]', repeat('é', 9000), 'so "so"'),
  (null, null, null, null, null, null, null, null, null, null,
   null, null, null, null, null, null, null, null, null, null,
   null, null, null, null, null, null, null);
commit;
update many_types set t = 'large value unchanged' where n = 3;
update many_types set big = 'short now' where n = 4;
update many_types set n = n where n = 5;
delete from many_types where n = 6;
insert into "Odd 'Sch\\ema"."we""ird -- t" values
  ('x''y', 1, '); drop table parent; --'), (E'\\\\', 2, E'$$ :name \\n\\\\q');
update "Odd 'Sch\\ema"."we""ird -- t" set "back\\slash" = 3 where "back\\slash" = 1;
update "Odd 'Sch\\ema"."we""ird -- t" set "é; --" = null where "back\\slash" = 2;
update by_index set code = 'k3' where code = 'k1';
update by_index set note = 'set' where code = 'k2';
delete from full_rows where ctid = (select ctid from full_rows where b::text = '1.00');
update full_rows set d = false where ctid = (select min(ctid) from full_rows where a is not null);
delete from full_rows where a is null;
update full_pairs set n = n + 10;
delete from full_pairs where p is not distinct from null;
update full_keyed set x = 100 where id < 5;
update full_keyed set id = id + 1000 where id > 7;
delete from full_keyed where id = 6;
delete from parent where id < 3;
truncate emptied;
insert into emptied values (7);
insert into only_inserts values ('stream');
begin; insert into parent values (9); update parent set id = 10 where id = 9;
delete from parent where id = 10; commit;
update by_extension set n = 5 where code = 'ABC';
update by_extension set code = 'aBC' where code = 'ABC';
delete from by_extension where code = 'd';
update by_composite set n = 7 where n = 1;
update by_composite set p = (3, 'c'), m = 'so "so"' where n = 2;
delete from by_composite where n = 7;
truncate dot, "dot.ted"."t.t", "dot.ted".other;
insert into "dot.ted".other values (2);
truncate parent, child;
insert into parent values (1);
insert into child values (1, 1);
"""

#: Tables, and the columns that the stream has.
_COLUMNS = """
select format('%I.%I', n.nspname, c.relname),
       string_agg(format('concat(%I), %I is not distinct from null', a.attname, a.attname), ', '
              order by a.attnum)
  from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid
 where c.relkind = 'r' and n.nspname in ('public', 'dot.ted', 'Odd ''Sch\\ema')
   and a.attnum > 0 and a.attgenerated = ''
 group by 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for everything, and none of the tester's settings."""
    for name in [name for name in os.environ if name.startswith("BWTUI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def copy(services: ServiceAddresses, database: str) -> Iterator[str]:
    """A second database, empty."""
    name = urlsplit(database).path[1:][-50:] + "_copy"
    with closing(psycopg2.connect(services.postgres)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
            yield urlsplit(services.postgres)._replace(path=f"/{name}").geturl()
        drop_database(connection, name)


def bwtui(*args: str) -> bytes:
    ran = subprocess.run(
        [sys.executable, "-c", "from bwtui.cli.main import main; main()", *args],
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def record(database: str, folder: Path) -> str:
    name = "s" + database.rpartition("_")[2]
    target = str(folder / "recording")
    bwtui("record", "-d", database, "-s", name, "-o", target, "-u", "--until-caught-up")
    return target


def contents(dsn: str, tables: dict[str, str]) -> dict[str, list[tuple[object, ...]]]:
    with session(dsn) as one:
        one.run("set datestyle = 'ISO'; set timezone = 'UTC'; set intervalstyle = 'iso_8601'")
        one.run("set lc_monetary = 'C'")
        return {name: sorted(one.rows(f"select {columns} from {name}")) for name, columns in tables.items()}


def recorded(database: str, folder: Path) -> tuple[str, dict[str, str]]:
    """Record the snapshot, a stream, and a stream behind a restart."""
    with session(database) as one:
        run_all(one, _SCHEMA + _BEFORE)
        record(database, folder)
        for statement in _STREAM.split(";\n"):
            one.run(statement.replace("%", "%%")) if statement.strip() else None
        path = record(database, folder)
        one.run("insert into only_inserts values ('after a restart')")
        assert record(database, folder) == path
        return path, dict(one.rows(_COLUMNS))


def run_all(one: Session, script: str) -> None:
    with one.connection.cursor() as cursor:
        cursor.execute(script)


@pytest.mark.parametrize("create", [True, False])
def test_the_sql_of_a_recording_rebuilds_the_tables(
    database: str, copy: str, folder: Path, create: bool
) -> None:
    path, tables = recorded(database, folder)
    text = bwtui("recording", "export", path, "--format", "sql", *(["--create"] if create else [])).decode()
    with session(copy) as target:
        if not create:
            run_all(target, _SCHEMA)
        run_all(target, text)
    assert contents(copy, tables) == contents(database, tables)
    assert "the row is unknown" not in text


def test_the_sql_is_a_transaction_for_each_that_was_recorded(database: str, folder: Path) -> None:
    with session(database) as one:
        run_all(one, "create table t (id int primary key)")
        record(database, folder)
        run_all(
            one, "begin; insert into t values (1); insert into t values (2); commit; insert into t values (3)"
        )
        path = record(database, folder)
    lines = (
        bwtui("recording", "export", path, "--format", "sql", "--where", "table = t").decode().splitlines()
    )
    kinds = [line.split()[0] for line in lines[lines.index("END $$;") + 1 :] if line]
    assert kinds == ["BEGIN;", "INSERT", "INSERT", "COMMIT;", "BEGIN;", "INSERT", "COMMIT;"]


_REORDERED = """
create table reord (id int primary key, a text);
create table twice (id int primary key, a text, b int);
create table swapped (id int primary key, a int, b text);
create table migrated (id int primary key, a int, b text);
create table keyless (a int, b text); alter table keyless replica identity full;
insert into reord values (1, 'x'), (2, '7');
insert into twice values (1, 'no number', 1), (2, '5', 2);
insert into swapped values (1, 10, 'ten'), (2, 20, 'twenty');
insert into migrated values (1, 10, 'ten'), (2, 20, 'twenty');
insert into keyless values (1, 'one'), (1, 'one'), (2, 'two');
"""
#: What changes the columns, and a change of a row behind it, so that the stream knows of it.
_ALTERED = """
alter table reord add column b int; update reord set b = 1;
alter table reord drop column a; alter table reord add column a int; update reord set a = 2, b = 5;
alter table twice alter column a type int using length(a); update twice set b = 3 where id = 1;
alter table swapped rename a to c; alter table swapped rename b to a; alter table swapped rename c to b;
update swapped set a = 'X' where id = 1;
alter table migrated add column "a new" bigint; update migrated set "a new" = a;
alter table migrated drop column a; alter table migrated rename "a new" to a;
insert into migrated values (3, 'three', 30);
alter table keyless add column c int default 9; update keyless set b = 'eins', c = c where b = 'one';
delete from keyless where a = 2;
"""


_SWAPPED = """
create schema "green.1"; create schema blue;
create table a (id int primary key, n int); create table new (id int primary key, n int);
create table blue.t (id int primary key, n int); create table "green.1".t (id int primary key, n int);
create table b (id int primary key); create table c (id int primary key);
create table moved (id int primary key); create table blue.moved_too (id int primary key);
create table shop (id int primary key); create table shop_new (id int primary key);
create table left_one (id int primary key); create table right_one (id int primary key);
insert into a values (1, 1), (2, 1); insert into new values (1, 10), (2, 10);
insert into blue.t values (1, 1); insert into "green.1".t values (1, 10);
insert into b values (1); insert into c values (2);
insert into moved values (1); insert into blue.moved_too values (2);
insert into shop values (1); insert into shop_new values (2);
insert into left_one values (1); insert into right_one values (2);
"""
#: The stream learns of a name with the next row, or TRUNCATE.
_SWAPS = """
begin; alter table a rename to old; alter table new rename to a; commit;
update a set n = 11 where id = 1; update old set n = 2 where id = 1; insert into a values (3, 10);
begin; alter table blue.t rename to kept; alter table blue.kept set schema public;
alter table "green.1".t set schema blue; commit;
update blue.t set n = 12; update kept set n = 3;
begin; alter table a rename to older; alter table old rename to a; commit;
update a set n = n + 1; update older set n = n + 1 where id = 2;
begin; alter table a rename to old; alter table older set schema blue; alter table blue.older rename to a;
alter table blue.a set schema public; commit;
insert into a values (4, 4); delete from old where id = 2;
begin; alter table b rename to d; alter table c rename to b; alter table d rename to c; commit;
insert into c values (10); insert into b values (20);
begin; alter table moved set schema blue; alter table blue.moved_too set schema public;
alter table moved_too rename to moved; commit;
insert into moved values (20); insert into blue.moved values (10);
begin; alter table shop rename to shop_old; alter table shop_new rename to shop; commit;
truncate shop_old; insert into shop values (3); insert into shop_old values (4);
begin; alter table left_one rename to between; alter table right_one rename to left_one;
alter table between rename to right_one; commit;
truncate left_one; insert into left_one values (3); insert into right_one values (4);
"""


@pytest.mark.parametrize("create", [True, False])
def test_tables_that_exchange_their_names_can_be_loaded(
    database: str, copy: str, folder: Path, create: bool
) -> None:
    with session(database) as one, session(copy) as target:
        run_all(one, _SWAPPED)
        record(database, folder)
        for statement in _SWAPS.replace("\n", " ").split(";"):
            one.run(statement) if statement.strip() else None
        path = record(database, folder)
        if not create:
            run_all(target, _SWAPPED.partition("insert")[0])
        text = bwtui("recording", "export", path, "--format", "sql", *(["--create"] if create else []))
        run_all(target, text.decode())
        sql = _COLUMNS.replace("in ('public'", "in ('blue', 'public'")
        tables = dict(one.rows(sql))
        assert dict(target.rows(sql)).keys() == tables.keys()
    assert contents(copy, tables) == contents(database, tables)


def test_a_table_that_made_room_and_was_not_heard_of_again_is_told(
    database: str, copy: str, folder: Path
) -> None:
    """It may have been dropped; its rows are not those of the table that has its name."""
    with session(database) as one, session(copy) as target:
        for table in ("a", "b"):
            run_all(one, f"create table {table} (id int primary key); insert into {table} values (1)")
        record(database, folder)
        one.run("alter table a rename to old; drop table b")
        publication = one.publications()[0]
        for table in ("a", "b"):
            one.run(f"create table {table} (id int primary key)")
            one.run(f"alter publication {publication} add table {table}")
        one.run("insert into a values (2)")
        one.run("truncate b")
        name = record(database, folder)
        ran = subprocess.run(
            [sys.executable, "-m", "bwtui", "recording", "export", name, "--format", "sql", "--create"],
            capture_output=True, check=True, text=True,
        )  # fmt: skip
        run_all(target, ran.stdout)
        assert target.rows("select relname, a.id from pg_class, public.a where relkind = 'r'"
                           " and relnamespace = 'public'::regnamespace order by 1") == [
            ("a", 2), ("old", 2)
        ]  # fmt: skip
    # The rows of the renamed table came again under its name.
    told = "without later changes; dropped: 1 (public.b)"
    assert told in ran.stderr


def test_tables_whose_columns_were_moved_about_can_be_loaded(database: str, copy: str, folder: Path) -> None:
    with session(database) as one:
        run_all(one, _REORDERED)
        record(database, folder)
        for statement in _ALTERED.replace("\n", " ").split(";"):
            one.run(statement) if statement.strip() else None
        path = record(database, folder)
    ran = subprocess.run(
        [sys.executable, "-m", "bwtui", "recording", "export", path, "--format", "sql", "--create"],
        capture_output=True,
        check=True,
        text=True,
    )
    notes = ran.stderr.splitlines()
    with session(copy) as target:
        run_all(target, ran.stdout)
        for table, columns in {
            "reord": "id, a, b",
            "swapped": "id, a, b",
            "migrated": "id, a, b",
            "keyless": "a, b, c",
        }.items():
            query = f"select {columns} from public.{table}"
            with session(database) as one:
                assert sorted(target.rows(query)) == sorted(one.rows(query)), table
        # What a USING made of a value that no later change has is not known: it is NULL, as a comment says.
        assert sorted(target.rows("select id, a, b from public.twice")) == [(1, 9, 3), (2, None, 2)]
    assert '-- public.twice: column "a" changed its type' in ran.stdout
    assert '-- public.reord: column "a" was dropped and added again' in ran.stdout
    assert '-- public.keyless: column "c" was added' in ran.stdout
    assert [note.partition(":")[0] for note in notes] == ["note"] * 3
    assert "public.twice.a" in notes[2] and "public.keyless.c" in notes[0] and "public.reord.a" in notes[1]


_REKEYED = """
create table wider (id int primary key, v int); create table other (id int primary key, v int not null);
create table bare (id int primary key, v int); create table named (id int primary key, v text);
create schema "bwtui 1"; create table "bwtui 1".t ("bwtui 0" int primary key, "bwtui 1" int);
insert into wider values (1, 1); insert into other values (1, 1), (2, 2); insert into bare values (1, 1);
insert into named values (1, 'x'), (2, 'y'); insert into "bwtui 1".t values (1, 1);
"""
_REKEYS = """
alter table wider drop constraint wider_pkey, add primary key (id, v);
insert into wider values (1, 2), (1, 3); update wider set v = 9 where v = 2; delete from wider where v = 1;
alter table other drop constraint other_pkey, add primary key (v);
insert into other values (1, 3); update other set id = 7 where v = 1; delete from other where v = 2;
alter table bare drop constraint bare_pkey, alter id drop not null, replica identity full;
insert into bare values (1, 1), (null, 4); update bare set v = 5 where v = 4;
alter table named add n int; update named set n = id;
alter table named drop constraint named_pkey, add primary key (n), alter id drop not null;
update named set id = null; delete from named where n = 2; insert into named values (1, 'z', 3);
alter table "bwtui 1".t rename "bwtui 0" to q; alter table "bwtui 1".t rename "bwtui 1" to "bwtui 0";
update "bwtui 1".t set "bwtui 0" = 5
"""


def test_tables_whose_keys_become_others_can_be_loaded(database: str, copy: str, folder: Path) -> None:
    with session(database) as one, session(copy) as target:
        run_all(one, _REKEYED)
        record(database, folder)
        for statement in _REKEYS.replace("\n", " ").split(";"):
            one.run(statement)
        path = record(database, folder)
        text = bwtui("recording", "export", path, "--format", "sql", "--create")
        run_all(target, text.decode())
        tables = dict(one.rows(_COLUMNS.replace("in ('public'", "in ('bwtui 1', 'public'")))
        assert dict(target.rows(_COLUMNS.replace("in ('public'", "in ('bwtui 1', 'public'"))) == tables
        # The key that a table has now is the one that its rows are found by.
        keys = "select conrelid::regclass::text, conkey::int[] from pg_constraint where contype = 'p'"
        found = dict(target.rows(f"{keys} and connamespace = 'public'::regnamespace"))
    assert found == {"public.wider": [1, 2], "public.other": [2], "public.named": [3]}
    assert contents(copy, tables) == contents(database, tables)


def test_one_row_of_a_partitioned_table_is_one(database: str, copy: str, folder: Path) -> None:
    """Partitions have rows of the same places."""
    schema = """
    create table parted (r int, v text) partition by range (r);
    create table low partition of parted for values from (0) to (10);
    create table high partition of parted for values from (10) to (20);
    alter table parted replica identity full; alter table low replica identity full;
    alter table high replica identity full;"""
    rows = "insert into parted values (1, 'a'), (11, 'b'), (2, 'c'), (12, 'd')"
    with session(database) as one, session(copy) as target:
        run_all(one, schema + rows)
        record(database, folder)
        run_all(one, "delete from parted where r = 1; update parted set v = 'z' where r = 12")
        one.run("update parted set r = 3 where r = 11")
        path = record(database, folder)
        run_all(target, schema + bwtui("recording", "export", path, "--format", "sql").decode())
        query = "select r, v from public.parted order by r"
        assert target.rows(query) == one.rows(query) == [(2, "c"), (3, "b"), (12, "z")]
