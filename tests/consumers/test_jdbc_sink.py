"""A second PostgreSQL behind Debezium's JDBC sink has the rows, keys and types of the first."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.attempts import Attempts
from tests.consumers.jars import connect_standalone
from tests.consumers.snippets import properties
from tests.database import Session
from tests.second_postgres import SecondPostgres
from tests.waiting import eventually

pytestmark = [pytest.mark.services, pytest.mark.long]

_TABLE = """
create table "Items" (
    id bigint, part text, name text, "Price" numeric(10, 2), at timestamp, made timestamptz, opens time,
    day date, uid uuid, doc jsonb, plain json, lasts interval, page xml, flag boolean, ratio double precision,
    single real, number integer, small smallint, short varchar(20), free numeric, raw bytea,
    primary key (id, part));
insert into "Items"
select g, 'p' || g, 'größe ' || g, g + 0.25, timestamp '2026-01-31 10:15' + g * interval '1.5 s',
       timestamptz '2026-01-31 10:15+00' + g * interval '1 min', time '10:00' + g * interval '0.25 s',
       date '2026-01-31' - g, gen_random_uuid(), jsonb_build_object('a', g), '{"a" : 1}',
       g * interval '36 hours', '<a>b</a>', g % 2 = 0, g / 7.0, g / 3.0, -g, g, 'short', g / 9.0,
       decode(lpad(to_hex(g), 4, '0'), 'hex')
  from generate_series(1, 40) g;
insert into "Items" (id, part) values (1000, 'nothing but null');
"""
_CHANGES = """
update "Items" set name = 'updated', doc = '{"b": [null]}' where id < 5;
delete from "Items" where id in (7, 8);
update "Items" set id = 2000, name = 'moved' where id = 9;
update "Items" set part = 'moved' where id = 10;
insert into "Items" (id, part, at) values (11, 'another', '1969-12-31 23:59:59.999999');
"""
_ROWS = """
select id, part, name, "Price", at, made::timestamp, opens, day, uid, doc::jsonb, plain::text,
       lasts::interval, page::text, flag, ratio, single, number, small, short, free::text, raw::text
  from "Items" order by id, part
"""
_TYPES = """
select column_name, data_type from information_schema.columns
 where table_name = 'Items' and column_name <> '__escaped' order by 1
"""
_KEY = """
select array_agg(attname::text order by attname)
  from pg_index join pg_attribute on attrelid = indrelid and attnum = any (indkey)
 where indrelid = '"Items"'::regclass and indisprimary
"""
#: The sink's types for PostgreSQL types that Connect does not name, as docs/consumers.md says.
_OTHERS = {
    "made": "timestamp without time zone",
    "doc": "json",
    "small": "integer",
    "short": "text",
    "free": "text",
    "lasts": "text",
}


@pytest.fixture
def target() -> Iterator[SecondPostgres]:
    """A second PostgreSQL, empty."""
    server = SecondPostgres()
    server.start()
    try:
        yield server
    finally:
        server.remove()


def rows(session: Session, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query; none while the table does not exist."""
    if session.value("select to_regclass('\"Items\"') is null"):
        return []
    return session.rows(query)


@pytest.mark.parametrize("escaped", ["without", "hstore"])
def test_rows_deletes_keys_and_types(
    services: ServiceAddresses, database: str, target: SecondPostgres, tmp_path: Path, escaped: str
) -> None:
    attempts = Attempts(services, tmp_path)
    given = {
        "kafka:9092": services.broker,
        "http://registry:8081": services.schema_registry,
        "shop": attempts.name,
        "jdbc:postgresql://copy/": "jdbc:postgresql://" + target.dsn.partition("@")[2],
    }
    worker, sink = properties("worker.properties", given), properties("sink.properties", given)
    if escaped == "hstore":
        sink = {key: value for key, value in sink.items() if "escaped" not in key} | {"transforms": "table"}
    with closing(Session(database)) as source, closing(Session(target.dsn)) as copy:
        if escaped == "hstore":
            copy.run("create extension hstore")
        for one in (source, copy):
            one.run("set timezone to 'UTC'")
        source.run(_TABLE)
        attempts.succeed(database, "--connect-names")
        with connect_standalone(tmp_path, worker, sink) as process:

            def equal() -> bool:
                log = (tmp_path / "connect.log").read_text(errors="replace")
                assert process.poll() is None and "Task threw an uncaught" not in log, log[-6000:]
                return rows(copy, _ROWS) == rows(source, _ROWS)

            eventually("the copy has the rows", equal, 120)
            source.run(_CHANGES)
            attempts.succeed(database, "--connect-names")
            eventually("the copy has the changes", equal, 120)
        assert dict(rows(copy, _TYPES)) == dict(rows(source, _TYPES)) | _OTHERS
        assert rows(copy, _KEY) == rows(source, _KEY)
